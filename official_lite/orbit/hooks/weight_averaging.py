"""The average of the weights along the way."""

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from absl import logging

from official_lite import telemetry
from official_lite.checkpoint import async_checkpoint_manager, directories
from official_lite.common import errors
from official_lite.modeling.optimization import ema_optimizer
from official_lite.orbit import reports
from official_lite.orbit.hooks import batch_norm_statistics, output_directory
from official_lite.orbit.hooks.hook import Hook


class StochasticWeightAveraging(Hook):
    """Hook that averages the trainable weights every `every_n_steps` steps (Izmailov et al., 2018).

    All averaged weights count alike. They wait on the host, and in the checkpoints of the run, from
    which the average goes on exactly. When training ends without an error,

    1. the average takes the place of the weights,
    2. batch normalization gets exact statistics for it from `recalibration_steps` batches of
       training data (see `batch_norm_statistics`),
    3. it is evaluated, if the controller has an evaluator; the results are reported as
       `swa/<name>`, with those of training,
    4. a checkpoint goes to `<model_dir>/swa/ckpt-<step>`, that holds what the run's own hold:
       `task.init_checkpoint` takes it, and so does `--mode=eval` with that directory,
    5. the trained weights come back, to the last bit.

    It works best with a learning rate that stays high, or goes up and down, from `start_step` on;
    with one that has decayed there is little to average. Where the optimizer keeps a moving average
    of its own, that one plays no part in 3 and 4. The best checkpoint of a run that keeps one may
    turn out to be this one.

    Args:
      start_step: The first step whose weights may count.
      every_n_steps: The interval: its multiples count, usually one or a few an epoch.
      recalibration_steps: Batches for batch normalization; 0 leaves its statistics alone.
      eval_steps: Steps of the evaluation; -1 is all the data. By default as many as in the last
        evaluation of the run.

    Raises:
      errors.ConfigValueError: An argument is out of range.
    """

    def __init__(
        self,
        start_step: int,
        every_n_steps: int,
        recalibration_steps: int = 100,
        eval_steps: int | None = None,
    ) -> None:
        if start_step < 0 or every_n_steps < 1 or recalibration_steps < 0:
            raise errors.ConfigValueError(
                f"StochasticWeightAveraging: `start_step` is {start_step}, `every_n_steps` is "
                f"{every_n_steps} and `recalibration_steps` is {recalibration_steps}; wanted at "
                "least 0, 1 and 0."
            )
        self.every_n_steps = every_n_steps
        self._start_step = start_step
        self._recalibration_steps = recalibration_steps
        self._eval_steps = eval_steps
        self._average: list[npt.NDArray[Any]] = []
        self._num_averaged = 0

    def before_train(self) -> None:
        for attribute in ("model", "checkpoint"):
            if not hasattr(self.trainer, attribute):
                raise errors.ConfigTypeError(
                    f"StochasticWeightAveraging needs a trainer with a `{attribute}`, such as "
                    f"`core.base_trainer.Trainer`; this is a {type(self.trainer).__name__}."
                )
        self._directory()

    def after_step(self) -> None:
        if self._step() < self._start_step:
            return
        self._num_averaged += 1
        weights = [_as_float(weight.numpy()) for weight in self._weights()]
        if self._num_averaged == 1:
            self._average = weights
            return
        for average, weight in zip(self._average, weights, strict=True):
            average += (weight - average) / self._num_averaged

    def after_train(self, success: bool) -> None:
        if not success:
            return
        if self._num_averaged == 0:
            logging.warning(
                "StochasticWeightAveraging has averaged nothing: training ended at step %d, and "
                "the first multiple of %d from step %d on was not reached.",
                self._step(),
                self.every_n_steps,
                self._start_step,
            )
            return
        trainer: Any = self.trainer
        model = trainer.model
        with batch_norm_statistics.unchanged([*model.variables, *model.metrics_variables]):
            for weight, average in zip(self._weights(), self._average, strict=True):
                weight.assign(average)
            self._recalibrate()
            moving_average = ema_optimizer.get_moving_average(trainer.optimizer)
            with moving_average.following_weights() if moving_average else contextlib.nullcontext():
                self._evaluate()
                self._save()

    def state_dict(self) -> dict[str, Any]:
        # Never empty: what is restored may be from before the first weights counted.
        arrays = {f"average_{i}": average for i, average in enumerate(self._average)}
        return {"num_averaged": self._num_averaged, **arrays}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._num_averaged = state["num_averaged"]
        self._average = [np.array(state[f"average_{i}"]) for i in range(len(state) - 1)]

    def _recalibrate(self) -> None:
        if self._recalibration_steps:
            statistics = batch_norm_statistics.BatchNormStatistics(self.trainer)
            with self.controller.storage.muted():
                statistics.update(self._recalibration_steps)

    def _evaluate(self) -> None:
        evaluator, storage = self.controller.evaluator, self.controller.storage
        # In the mode `train` the trainer stands there, but was not made to evaluate.
        if evaluator is None or not getattr(evaluator, "evaluates", True):
            return
        steps = self.controller.eval_steps if self._eval_steps is None else self._eval_steps
        # Not `controller.evaluate`: this is no evaluation of the weights that the run goes on with,
        # which hooks and actions would take it for.
        with storage.muted():
            output = dict(evaluator.evaluate(tf.constant(steps, tf.int32)) or {})
        logs = telemetry.numbers(reports.as_numpy(output))
        values = telemetry.Record(step=self._step(), split="swa", values=logs).flat()
        logging.info("Average of %d weights: %s", self._num_averaged, values)
        for name, value in values.items():
            storage.put_scalar(f"swa/{name}", value, smoothing_hint=False)

    def _save(self) -> None:
        trainer: Any = self.trainer
        manager = async_checkpoint_manager.AsyncCheckpointManager(
            trainer.checkpoint,
            directories.writable_directory(self._directory(), self.controller.strategy),
            max_to_keep=1,
        )
        logging.info("Saved %s.", manager.save(checkpoint_number=self._step()))

    def _directory(self) -> str:
        return output_directory.output_directory(self, "swa")

    def _weights(self) -> list[Any]:
        trainer: Any = self.trainer
        return list(trainer.model.trainable_variables)

    def _step(self) -> int:
        return self.controller.step


def _as_float(weight: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy to add to, in float32 if the values are less precise."""
    return np.array(weight, np.promote_types(weight.dtype, np.float32))
