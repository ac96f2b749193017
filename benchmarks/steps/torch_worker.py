"""A hand-written PyTorch loop: eager, compiled, or with a `DataLoader`.

python -m benchmarks.steps.torch_worker --model=tiny_mlp
python -m benchmarks.steps.torch_worker --model=tiny_mlp --compile
"""

import argparse
import itertools
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.steps import models, torch_models, worker


def repeat_batches(model: models.Model, num_workers: int) -> Iterator[Any]:
    """Yield the batches without end: from memory, or through the workers of a `DataLoader`."""
    features, labels = torch_models.load_batches(model)
    batches = list(zip(*features, labels, strict=True))
    if not num_workers:
        return itertools.cycle(batches)
    loader = torch.utils.data.DataLoader(
        batches,
        batch_size=None,
        sampler=itertools.cycle(range(len(batches))),
        num_workers=num_workers,
        persistent_workers=True,
        pin_memory=False,
    )
    return iter(loader)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compile", action="store_true", help="Use `torch.compile`.")
    parser.add_argument("--num_workers", type=int, default=0, help="Workers of a `DataLoader`.")
    args = worker.parse_args(parser)
    model = args.model
    built = torch_models.build(model)
    optimizer = torch_models.create_optimizer(model, built)
    batches = repeat_batches(model, args.num_workers)
    score = torch_models.Score(model)

    def evaluate(features: list[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
        logits = built(*features)
        score.update(logits, labels)
        return torch_models.mean_loss(model, logits, labels)

    evaluate_step, update = evaluate, optimizer.step
    if args.compile:
        evaluate_step = torch.compile(evaluate)
        # Do not compile Adagrad: its update of sparse gradients would break into many graphs.
        update = torch.compile(update) if model.optimizer == "adamw" else update

    def train_steps(num_steps: int) -> dict[str, float]:
        total = torch.zeros(())
        score.counts.zero_()
        for *features, labels in itertools.islice(batches, num_steps):
            optimizer.zero_grad()
            loss = evaluate_step(features, labels)
            loss.backward()
            update()
            total += loss.detach()
        return {"loss": float(total) / num_steps, "metric": score.result()}

    worker.run_rounds(args, train_steps)


if __name__ == "__main__":
    main()
