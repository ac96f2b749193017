"""Training with Keras' `fit` on the backend `$KERAS_BACKEND`: TensorFlow by default, or JAX.

python -m benchmarks.steps.keras_worker --model=tiny_mlp --steps_per_execution=1000
"""

import argparse
from typing import Any

import keras

from benchmarks import turns
from benchmarks.steps import keras_models, models, worker


class TakeTurns(keras.callbacks.Callback):
    """A callback that treats several epochs of one long `fit` call as a round."""

    def __init__(self, rounds: turns.Rounds, epochs_per_round: int, steps: int) -> None:
        super().__init__()
        self._rounds = rounds
        self._epochs_per_round = epochs_per_round
        self._steps = steps

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch % self._epochs_per_round == 0:
            if not self._rounds.wait():
                raise SystemExit
            self._rounds.start()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if (epoch + 1) % self._epochs_per_round == 0:
            self._rounds.note(steps=self._steps, loss=logs["loss"], metric=logs["metric"])
            self._rounds.finish()


def compile_model(model: models.Model, steps_per_execution: int, jit_compile: Any) -> keras.Model:
    built = keras_models.build(model, keras)
    if model.metric == "auc":
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        metric = keras.metrics.AUC(from_logits=True, name="metric")
    else:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        metric = keras.metrics.SparseCategoricalAccuracy(name="metric")
    built.compile(
        optimizer=create_optimizer(model),
        loss=loss,
        metrics=[metric],
        steps_per_execution=steps_per_execution,
        jit_compile=jit_compile,
    )
    return built


def create_optimizer(model: models.Model) -> keras.optimizers.Optimizer:
    if model.optimizer == "adagrad":
        return keras.optimizers.Adagrad(
            models.LEARNING_RATE,
            initial_accumulator_value=models.INITIAL_ACCUMULATOR,
            epsilon=models.EPSILON,
        )
    return keras.optimizers.AdamW(
        models.LEARNING_RATE, weight_decay=models.WEIGHT_DECAY, epsilon=models.EPSILON
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps_per_execution", type=int, default=1)
    parser.add_argument("--jit_compile", choices=["auto", "off"], default="auto")
    args = worker.parse_args(parser)
    intervals = models.intervals(args.steps)
    if len(set(intervals)) > 1:
        raise SystemExit(
            f"--steps={args.steps}: expected a multiple of {models.STEPS_PER_REPORT}, or fewer."
        )
    built = compile_model(
        args.model,
        min(args.steps_per_execution, intervals[0]),
        "auto" if args.jit_compile == "auto" else False,
    )
    if keras.backend.backend() == "tensorflow":
        batches = keras_models.build_dataset(args.model)
    else:
        batches = keras_models.repeat_batches(args.model, keras)
    built.fit(
        batches,
        epochs=args.rounds.count * len(intervals),
        steps_per_epoch=intervals[0],
        verbose=0,
        callbacks=[TakeTurns(args.rounds, len(intervals), args.steps)],
    )


if __name__ == "__main__":
    main()
