"""A hook that averages the weights over the course of training."""

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
from official_lite.orbit.hooks import batch_norm_statistics
from official_lite.orbit.hooks.hook import Hook, output_directory


class StochasticWeightAveraging(Hook):
    """Averages the trainable weights every `every_n_steps` steps (Izmailov et al., 2018).

    All averaged weights count equally. The average is kept in host memory and in the run's
    checkpoints, so a resumed run continues it exactly. When training ends without an error:

    1. The average replaces the weights.
    2. Exact batch normalization statistics are computed for it from `recalibration_steps` batches
       of training data (see `batch_norm_statistics`).
    3. The average is evaluated, if the controller has an evaluator. The results are reported as
       `swa/<name>`, together with those of training. It is never the best evaluation.
    4. The average is saved to `<model_dir>/swa/ckpt-<step>`. This checkpoint has the same contents
       as the run's own checkpoints. It works as a `task.init_checkpoint`, and with `--mode=eval` on
       that directory.
    5. The trained weights are restored exactly.

    Averaging works best with a learning rate that stays high, or is cyclic, from `start_step` on.
    If the learning rate has decayed, the averaged weights are nearly equal. If the optimizer keeps
    its own moving average, that average is not used in steps 3 and 4.

    Args:
      start_step: The first step whose weights may be averaged.
      every_n_steps: The interval. Weights are averaged at its multiples, usually once or a few
        times per epoch.
      recalibration_steps: The number of batches for batch normalization. 0 leaves the statistics
        unchanged.
      eval_steps: The number of steps in the evaluation; -1 means all the data. Defaults to the
        number in the run's last evaluation.

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
                f"{every_n_steps} and `recalibration_steps` is {recalibration_steps}; expected at "
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
                    f"StochasticWeightAveraging requires a trainer with a `{attribute}`, such as "
                    f"`core.base_trainer.Trainer`; got {type(self.trainer).__name__}."
                )
        if self._recalibration_steps:
            batch_norm_statistics.refuse_virtual_replicas(self.trainer)
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
                "StochasticWeightAveraging averaged nothing, because training ended at step %d "
                "before the first multiple of %d from step %d on.",
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
            with ema_optimizer.following_weights(trainer.optimizer):
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
        # which hooks and actions would take it for. Neither is it the best one.
        apart = getattr(evaluator, "evaluating_apart", contextlib.nullcontext)
        with storage.muted(), apart():
            output = dict(evaluator.evaluate(tf.constant(steps, tf.int32)) or {})
        logs = telemetry.numbers(reports.as_numpy(output))
        values = telemetry.Record(step=self._step(), split="swa", values=logs).flat()
        logging.info("Wrote the average of %d sets of weights: %s", self._num_averaged, values)
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
        return output_directory(self, "swa")

    def _weights(self) -> list[Any]:
        trainer: Any = self.trainer
        return list(trainer.model.trainable_variables)

    def _step(self) -> int:
        return self.controller.step


def _as_float(weight: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy for accumulation, in float32 if the dtype is less precise."""
    return np.array(weight, np.promote_types(weight.dtype, np.float32))
