"""Recovery from non-finite values: back to the last checkpoint, and past the bad batches."""

import dataclasses
import json
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from official_lite import orbit
from official_lite.checkpoint import directories
from official_lite.common import errors, files, keras_variables
from official_lite.modeling import distributed_gradients, embedding_lookups
from official_lite.run import preemption

__all__ = ["FiniteState", "RECORD_NAME", "BadStep", "RecoveryAction", "RecoveryCondition"]


# Large tables are passed over at most once in so many steps that each has this many numbers of
# them to bear: it is less than what an update reads and writes anyway.
_NUMBERS_A_STEP = 50_000

_ROWS_AT_ONCE = 2**15


class FiniteState:
    """Looks through the variables of a trainer, in one compiled pass over them.

    The loss of a step says nothing of the update that follows it: a gradient may be bad though the
    loss was not.

    Tables of which a step updates some rows may be so large that a pass takes as long as hundreds
    of steps. They are looked at less often; a bad row shows in the loss when it is looked up.

    Args:
        trainer: Its `model`, `optimizer` and `global_step` are looked at.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._all_but_tables: _Search | None = None
        self._tables: _Search | None = None
        self._steps_between = 0
        self._last_look: int | None = None

    def bad_variables(self) -> list[str]:
        """The paths of variables that hold infinities or NaN."""
        if self._all_but_tables is None or self._tables is None:
            self._all_but_tables, self._tables = self._build()
        bad = self._all_but_tables.bad_variables()
        step = int(self._trainer.global_step.numpy())
        if bad or not self._is_time_for_tables(step):
            return bad
        bad = self._tables.bad_variables()
        # The step that did it is searched for one by one.
        self._last_look = None if bad else step
        return bad

    def _is_time_for_tables(self, step: int) -> bool:
        last = self._last_look
        return last is None or not last <= step < last + self._steps_between

    def _build(self) -> tuple["_Search", "_Search"]:
        optimizer = self._trainer.optimizer
        found = [*self._trainer.model.variables, *getattr(optimizer, "variables", ())]
        found = [v for v in found if keras.backend.is_float_dtype(v.dtype)]
        tables: list[Any] = []
        if distributed_gradients.updates_rows(optimizer):
            tables = [v for v in found if len(v.shape) == 2 and embedding_lookups.is_large(v)]
        are_tables = {id(table) for table in tables}
        others = [v for v in found if id(v) not in are_tables]
        self._steps_between = sum(embedding_lookups.size(v) for v in tables) // _NUMBERS_A_STEP
        return _Search(others, _is_finite), _Search(tables, _rows_are_finite)


class _Search:
    """Looks for bad ones among variables, on all replicas of this host."""

    def __init__(
        self, variables: Sequence[Any], is_finite: Callable[[tf.Variable], tf.Tensor]
    ) -> None:
        self._names: list[str] = []
        values = []
        for variable in variables:
            for value in keras_variables.local_values(variable):
                self._names.append(keras_variables.path_of(variable))
                values.append(value)

        @tf.function(autograph=False)
        def are_finite() -> tf.Tensor:
            flags = [is_finite(value) for value in values]
            return tf.stack(flags) if flags else tf.constant([True])

        self._are_finite = are_finite.get_concrete_function()

    def bad_variables(self) -> list[str]:
        flags = self._are_finite().numpy()
        if flags.all():
            return []
        return [name for name, flag in zip(self._names, flags, strict=True) if not flag]


def _is_finite(variable: tf.Variable) -> tf.Tensor:
    return tf.reduce_all(tf.math.is_finite(variable))


def _rows_are_finite(table: tf.Variable) -> tf.Tensor:
    """Some rows after others: to read it as a whole would be to copy it."""
    num_rows = table.shape[0]

    def look(first: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        rows = tf.range(first, tf.minimum(first + _ROWS_AT_ONCE, num_rows))
        are_finite = tf.reduce_all(tf.math.is_finite(table.sparse_read(rows)))
        return first + _ROWS_AT_ONCE, are_finite

    def goes_on(first: tf.Tensor, are_finite: tf.Tensor) -> tf.Tensor:
        return (first < num_rows) & are_finite

    _, are_finite = tf.while_loop(
        goes_on, look, (tf.constant(0), tf.constant(True)), parallel_iterations=1
    )
    result: tf.Tensor = are_finite
    return result


RECORD_NAME = "recovery.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BadStep:
    """The first step of which the loss or the update was bad.

    Attributes:
        step: Its number, from 1.
        batches: Those that it drew, from 0, counted over the whole training.
        num_batches: All that were drawn since the last checkpoint, to the end of the step.
    """

    step: int
    batches: range
    num_batches: int

    def __str__(self) -> str:
        first, last = self.batches[0], self.batches[-1]
        drew = f"batch {first}" if first == last else f"batches {first} to {last}"
        return f"step {self.step}, which drew {drew} of the training data (counted from 0)"


class RecoveryAction:
    """Goes back to the last checkpoint, and leaves out the batches up to the one that was bad."""

    def __init__(
        self,
        checkpoint_manager: tf.train.CheckpointManager,
        trainer: Any = None,
        is_bad: Callable[[orbit.runner.Output], bool] = lambda _: False,
    ) -> None:
        """Does nothing yet.

        Args:
            checkpoint_manager: Knows the last checkpoint.
            trainer: A `Trainer`; without it the same batches come again.
            is_bad: Whether the output of a single step is a blow-up.
        """
        self.checkpoint_manager = checkpoint_manager
        self._trainer = trainer
        self._is_bad = is_bad

    def __call__(self, _: orbit.runner.Output) -> None:
        """Restores.

        Raises:
            errors.DivergedError: If there is no checkpoint yet.
        """
        if not self._can_repeat():
            self._restore()
            return
        found = self.find_bad_step()
        if found is None:
            logging.warning("It did not come up again: the training goes on as it was repeated.")
            return
        self._restore()
        logging.warning("The bad one was %s. The data up to there are left out.", found)
        self._trainer.skip_batches(found.num_batches)

    def find_bad_step(self) -> BadStep | None:
        """Goes back, and runs one by one the steps that had been run, up to the bad one.

        Returns:
            The step; None if it did not come up again, with the training where it was before, or
            if nothing would be repeated.
        """
        if not self._can_repeat():
            return None
        last = self._step
        self._restore()
        start = self._step
        found = next((step for step in range(start + 1, last + 1) if self._runs_badly()), None)
        # What came up in these steps has been reported before.
        self._trainer.event_storage.take()
        if found is None:
            return None
        count = self._trainer.batches_per_step
        first = (found - 1) * count + self._skipped
        return BadStep(
            step=found,
            batches=range(first, first + count),
            num_batches=(found - start) * count,
        )

    def _restore(self) -> None:
        skipped = self._skipped
        path = self.checkpoint_manager.restore_or_initialize()
        if path is None:
            raise errors.DivergedError(
                "The training blew up before its first checkpoint, so there is nothing to go back "
                "to. Lower the learning rate, or `trainer.checkpoint_interval`."
            )
        logging.warning("Recovering the model from checkpoint: %s.", path)
        if self._trainer is not None:
            # What was left out since, when it went back to the same checkpoint before, stays out.
            self._trainer.skip_batches(max(0, skipped - self._skipped))

    def _can_repeat(self) -> bool:
        """Not on workers that run on their own: they go on with batches that they have not read."""
        return self._trainer is not None and not self._trainer.has_coordinator

    def _runs_badly(self) -> bool:
        preemption.check()
        return self._is_bad(self._trainer.train(tf.constant(1)))

    @property
    def _skipped(self) -> int:
        """Batches that were left out so far."""
        return int(self._trainer.checkpoint.skipped_batches.numpy()) if self._trainer else 0

    @property
    def _step(self) -> int:
        return int(self._trainer.global_step.numpy())


class RecoveryCondition:
    """Whether the training blew up: a loss that is not finite or above a bound, or bad weights.

    The first four arguments of the constructor are the fields of the same names in `TrainerConfig`.
    """

    def __init__(
        self,
        global_step: tf.Variable,
        loss_upper_bound: float,
        recovery_begin_steps: int = 0,
        recovery_max_trials: int = 3,
        *,
        model_dir: str | None = None,
        state: FiniteState | None = None,
        find_bad_step: Callable[[], BadStep | None] | None = None,
    ) -> None:
        """Looks up how often this run has blown up before.

        Args:
            global_step: The variable.
            loss_upper_bound: A loss above it is a blow-up.
            recovery_begin_steps: The step from which the bound holds.
            recovery_max_trials: How often to recover.
            model_dir: Where blow-ups are counted over restarts.
            state: Looked at where the loss is good.
            find_bad_step: Finds the step to name when it gives up.
        """
        self.recovery_begin_steps = recovery_begin_steps
        self.recovery_max_trials = recovery_max_trials
        self.loss_upper_bound = loss_upper_bound
        self.global_step = global_step
        self._state = state
        self._find_bad_step = find_bad_step
        self._path = model_dir and os.path.join(model_dir, RECORD_NAME)
        self._blow_ups = _read(self._path)
        self.recover_counter = len(self._blow_ups)
        self._last_good_step: int | None = None

    def __call__(self, outputs: orbit.runner.Output) -> bool:
        """Looks at `outputs["training_loss"]`, and at the state.

        Raises:
            errors.DivergedError: If it blew up more often than `recovery_max_trials` allows.
        """
        if "training_loss" not in outputs:
            return False
        step = int(orbit.utils.get_value(self.global_step))
        what = self.describe_blow_up(outputs)
        if what is None:
            self._last_good_step = step
            return False
        self._count(step, what)
        if self.recover_counter <= self.recovery_max_trials:
            logging.warning("%s at step %d.", what, step)
            return True
        raise errors.DivergedError(
            f"{what} at step {step}; it blew up {self.recover_counter} times, and "
            f"`trainer.recovery_max_trials` is {self.recovery_max_trials}. {self._where(step)}"
        )

    def describe_blow_up(self, outputs: orbit.runner.Output) -> str | None:
        """What is wrong with the output of a report, or with the state; None if nothing is."""
        # Of several values, such as one from each replica, the worst decides; NaN is the worst.
        loss = float(np.max(orbit.utils.get_value(outputs["training_loss"])))
        step = int(orbit.utils.get_value(self.global_step))
        is_high = step >= self.recovery_begin_steps and loss > self.loss_upper_bound
        if not math.isfinite(loss) or is_high:
            return f"The training loss is {loss} (bound: {self.loss_upper_bound})"
        bad = self._state.bad_variables() if self._state else []
        if bad:
            return f"The loss is finite, but {bad[0]} is not, nor are {len(bad) - 1} others"
        return None

    def _count(self, step: int, what: str) -> None:
        self.recover_counter += 1
        self._blow_ups.append({"step": step, "what": what})
        if self._path and self.recovery_max_trials > 0 and directories.is_chief():
            text = json.dumps({"blow_ups": self._blow_ups}, indent=2)
            files.write_text(self._path, text + "\n")

    def _where(self, step: int) -> str:
        """Where it was, and what to do."""
        # Without trials an end at once is what was asked for.
        find = self._find_bad_step if self.recovery_max_trials > 0 else None
        found = find() if find else None
        if found is not None:
            return f"The last time it was in {found}. {self._advice()}"
        if self._last_good_step is not None:
            return f"Step {self._last_good_step} was good. {self._advice()}"
        return self._advice()

    def _advice(self) -> str:
        if self._path and self.recovery_max_trials > 0:
            return f"Blow-ups are counted over restarts: remove {self._path} to begin anew."
        return "Look at the data, or lower the learning rate; the hook `non_finite` says more."


def _read(path: str | None) -> list[dict[str, Any]]:
    if not path or not files.exists(path):
        return []
    try:
        found: list[dict[str, Any]] = json.loads(files.read_text(path))["blow_ups"]
    except (ValueError, KeyError, TypeError):
        logging.warning("%s can't be read; blow-ups are counted from 0.", path)
        return []
    return found
