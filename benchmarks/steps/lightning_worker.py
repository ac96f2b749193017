"""PyTorch with Lightning's `Trainer.fit`.

python -m benchmarks.steps.lightning_worker --model=tiny_mlp
"""

import argparse
import logging
import warnings
from typing import Any

import lightning
import torch

from benchmarks import turns
from benchmarks.steps import models, torch_models, worker


class Module(lightning.LightningModule):
    """The user's code: the step, the optimizer, and the mean loss and metric of an epoch."""

    def __init__(self, model: models.Model, steps_per_epoch: int) -> None:
        super().__init__()
        self._model = model
        self._steps_per_epoch = steps_per_epoch
        self.built = torch_models.build(model)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch_models.create_optimizer(self._model, self.built)

    def on_train_epoch_start(self) -> None:
        self._score = torch_models.Score(self._model)
        self._total = torch.zeros(())

    def training_step(self, batch: Any, batch_index: int) -> torch.Tensor:
        *features, labels = batch
        logits = self.built(*features)
        loss = torch_models.mean_loss(self._model, logits, labels)
        self._score.update(logits, labels)
        if self.trainer.barebones:
            # Add up the losses here, because `self.log` does nothing in barebones mode.
            self._total += loss.detach()
        else:
            self.log("loss", loss, on_step=False, on_epoch=True, batch_size=len(labels))
        return loss

    def take_report(self) -> dict[str, float]:
        """Return the mean loss and metric of the epoch."""
        if self.trainer.barebones:
            loss = self._total / self._steps_per_epoch
        else:
            loss = self.trainer.callback_metrics["loss"]
        return {"loss": float(loss), "metric": self._score.result()}


class TakeTurns(lightning.Callback):
    """A callback that treats several epochs of one long `fit` call as a round."""

    def __init__(self, rounds: turns.Rounds, epochs_per_round: int, steps: int) -> None:
        self._rounds = rounds
        self._epochs_per_round = epochs_per_round
        self._steps = steps

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        if trainer.current_epoch % self._epochs_per_round == 0:
            if not self._rounds.wait():
                raise SystemExit
            self._rounds.start()

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        report = module.take_report()
        if (trainer.current_epoch + 1) % self._epochs_per_round == 0:
            self._rounds.note(steps=self._steps, **report)
            self._rounds.finish()


class Batches(torch.utils.data.IterableDataset):
    """An infinite stream of the batches in memory."""

    def __init__(self, model: models.Model, steps: int) -> None:
        self._features, self._labels = torch_models.load_batches(model)
        self._steps = steps
        self._next = 0

    def __iter__(self) -> Any:
        for index in range(self._next, self._next + self._steps):
            index %= len(self._labels)
            yield *(part[index] for part in self._features), self._labels[index]
        self._next += self._steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--barebones", action="store_true", help="Also turn `self.log` off.")
    args = worker.parse_args(parser)
    intervals = models.intervals(args.steps)
    if len(set(intervals)) > 1:
        raise SystemExit(
            f"--steps={args.steps}: expected a multiple of {models.STEPS_PER_REPORT}, or fewer."
        )
    warnings.filterwarnings("ignore", module="lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=args.rounds.count * len(intervals),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        barebones=args.barebones,
        callbacks=[TakeTurns(args.rounds, len(intervals), args.steps)],
    )
    data = torch.utils.data.DataLoader(Batches(args.model, intervals[0]), batch_size=None)
    trainer.fit(Module(args.model, intervals[0]), data)


if __name__ == "__main__":
    main()
