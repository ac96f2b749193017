"""Actions that run after each training interval and after each evaluation.

Recovery from blow-ups restores the last checkpoint and skips the bad batches.
"""

import dataclasses
import functools
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from absl import logging

from official_lite import orbit
from official_lite.checkpoint import async_checkpoint_manager, directories
from official_lite.common import errors, files, keras_variables, preemption
from official_lite.core import base_trainer, config_definitions, train_data
from official_lite.data import input_errors
from official_lite.modeling import distributed_gradients, embedding_lookups
from official_lite.modeling.optimization import ema_optimizer
from official_lite.orbit.hooks import hook

__all__ = [
    "RECORD_NAME",
    "BadStep",
    "BlowUpRecord",
    "EMACheckpointing",
    "NonfiniteCheck",
    "RecoveryAction",
    "RecoveryCondition",
    "get_eval_actions",
    "get_train_actions",
]


# The maximum number of table elements that `NonfiniteCheck` reads per step, on average. An
# optimizer update reads and writes more elements, so the check is cheaper than an update.
_NUMBERS_A_STEP = 50_000

# The number of table rows in each block that `_rows_are_finite` reads.
_ROWS_AT_ONCE = 2**15


class NonfiniteCheck:
    """Checks a trainer's variables for non-finite values in one compiled pass.

    Values that were not finite when training began, such as those of a causal mask, are not
    checked.

    Checking the loss is not enough: a gradient, and thus the update, may be non-finite although
    the loss is finite.

    A pass over a large embedding table can take as long as hundreds of steps, although a step
    updates only some of its rows. Such tables are checked less often; a bad row also shows in the
    loss when it is looked up.

    Args:
        trainer: The trainer. The variables of its `model` are checked, and those of all optimizers
            in its `checkpoint`, together with the variables that they train, such as the critic of
            a GAN or the `alphas` of an architecture search.
    """

    def __init__(self, trainer: base_trainer.Trainer) -> None:
        self._trainer = trainer
        self._steps_between = 0
        self._last_look: int | None = None
        self._has_found_bad_table = False

    def begin(self) -> None:
        """Record which values are not finite when training begins."""
        for search in self._searches:
            search.begin()

    def bad_variables(self, is_repeated_step: bool = False) -> list[str]:
        """Return the paths of the variables that have become infinite or NaN somewhere.

        Args:
            is_repeated_step: Whether recovery is repeating the step to find one that was bad. If
                any large table has been bad, these tables are then checked even if they were
                checked recently. Otherwise, the step that damaged a table would not be found.
        """
        all_but_tables, tables = self._searches
        bad = all_but_tables.bad_variables()
        step = int(self._trainer.global_step.numpy())
        looks_again = is_repeated_step and self._has_found_bad_table
        if bad or not (looks_again or self._is_time_for_tables(step)):
            return bad
        bad = tables.bad_variables()
        self._has_found_bad_table |= bool(bad)
        # After a bad result, check the tables again at the next opportunity.
        self._last_look = None if bad else step
        return bad

    def _is_time_for_tables(self, step: int) -> bool:
        last = self._last_look
        return last is None or not last <= step < last + self._steps_between

    @functools.cached_property
    def _searches(self) -> tuple["_Search", "_Search"]:
        """Searches for non-finite values: in all variables except large tables; in the tables."""
        trainer = self._trainer
        parts = tf.train.TrackableView(trainer.checkpoint).descendants()
        optimizers = [part for part in parts if isinstance(part, keras.optimizers.Optimizer)]
        # `trainer.optimizer` need not be a Keras optimizer.
        variables = [*trainer.model.variables, *getattr(trainer.optimizer, "variables", ())]
        for optimizer in optimizers:
            variables += [*optimizer._trainable_variables, *optimizer.variables]
        unique = {id(v): v for v in variables}.values()
        found = [v for v in unique if keras.backend.is_float_dtype(v.dtype)]
        tables: list[Any] = []
        if any(map(distributed_gradients.updates_rows, optimizers)):
            tables = [v for v in found if len(v.shape) == 2 and embedding_lookups.is_large(v)]
        are_tables = {id(table) for table in tables}
        others = [v for v in found if id(v) not in are_tables]
        self._steps_between = sum(embedding_lookups.size(v) for v in tables) // _NUMBERS_A_STEP
        return _Search(others, _is_finite), _Search(tables, _rows_are_finite)


class _Search:
    """Finds variables with non-finite values on the replicas of this host."""

    def __init__(
        self, variables: Sequence[Any], is_finite: Callable[[tf.Variable], tf.Tensor]
    ) -> None:
        self._names: list[str] = []
        self._values: list[tf.Variable] = []
        for variable in variables:
            for value in keras_variables.local_values(variable):
                self._names.append(keras_variables.path_of(variable))
                self._values.append(value)

        @tf.function(autograph=False)
        def are_finite() -> tf.Tensor:
            flags = [is_finite(value) for value in self._values]
            return tf.stack(flags) if flags else tf.constant([True])

        self._are_finite = are_finite.get_concrete_function()
        # Copies of the tensors that had infinite or NaN elements when training began, by index in
        # `_values`.
        self._at_start: dict[int, npt.NDArray[Any]] = {}

    def begin(self) -> None:
        self._at_start = {i: self._values[i].numpy() for i in self._find_bad()}

    def bad_variables(self) -> list[str]:
        return [
            self._names[index]
            for index in self._find_bad()
            if index not in self._at_start
            or _has_changed_badly(self._at_start[index], self._values[index].numpy())
        ]

    def _find_bad(self) -> list[int]:
        return [int(i) for i in np.flatnonzero(~self._are_finite().numpy())]


def _has_changed_badly(before: npt.NDArray[Any], now: npt.NDArray[Any]) -> bool:
    # Convert to float64 first, because not all NumPy functions support bfloat16.
    before, now = before.astype(np.float64), now.astype(np.float64)
    is_bad = ~np.isfinite(now) & np.isfinite(before) | np.isnan(now) & ~np.isnan(before)
    return bool(is_bad.any())


def _is_finite(variable: tf.Variable) -> tf.Tensor:
    return tf.reduce_all(tf.math.is_finite(variable))


def _rows_are_finite(table: tf.Variable) -> tf.Tensor:
    """Return whether all rows are finite; read them in blocks, because each read makes a copy."""
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

# The field that marks a recorded blow-up from which the run has not recovered yet.
_OPEN = "open"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BadStep:
    """The first step whose loss or update was bad.

    Attributes:
        step: The number of the step, counted from 1.
        batches: The batches that the step read, counted from 0 over the whole training.
        num_batches: The number of batches read from the last checkpoint to the end of the step.
    """

    step: int
    batches: range
    num_batches: int

    def __str__(self) -> str:
        if not self.batches:
            return f"step {self.step}"
        first, last = self.batches[0], self.batches[-1]
        drew = f"batch {first}" if first == last else f"batches {first} to {last}"
        return f"step {self.step}, which drew {drew} of the training data (counted from 0)"


class BlowUpRecord:
    """The blow-ups of a run and the batches that recovery skipped, kept across restarts.

    Args:
        model_dir: The directory from which the record of earlier starts is read. None keeps
            nothing across restarts.
        writes: Whether the chief also writes the record to this directory.
    """

    def __init__(self, model_dir: str | None = None, writes: bool = True) -> None:
        path = model_dir and os.path.join(model_dir, RECORD_NAME)
        self._blow_ups = _read(path)
        self.path = path if writes else None

    def __len__(self) -> int:
        return len(self._blow_ups)

    def add(self, step: int, what: str) -> None:
        """Record a blow-up, which stays open until `close` is called.

        If the run ends before `close`, the resumed run repeats the blow-up and counts it again. The
        resumed run therefore ignores open blow-ups.
        """
        self._blow_ups.append({"step": step, "what": what, _OPEN: True})
        self._write()

    def close(self) -> None:
        """Record that the last blow-up was dealt with, so that it counts in later starts."""
        if self._blow_ups and self._blow_ups[-1].pop(_OPEN, False):
            self._write()

    def add_skip(
        self, checkpoint_step: int, next_batch: int, batch_size: int, micro_batches: int
    ) -> None:
        """Record the batch with which training continues after recovery to a checkpoint.

        The checkpoint itself does not contain this skip. Without this record, a run that is killed
        before its next checkpoint would read the bad batches again. The last blow-up is also
        closed.

        Args:
            checkpoint_step: The step of the checkpoint.
            next_batch: The batch, counted from 0 over the whole training.
            batch_size: See `train_data.batch_sizes`. A resumed run may use other sizes.
            micro_batches: See `train_data.batch_sizes`.
        """
        if self._blow_ups:
            self._blow_ups[-1].pop(_OPEN, None)
            self._blow_ups[-1].update(
                checkpoint=checkpoint_step,
                next_batch=next_batch,
                batch_size=batch_size,
                micro_batches=micro_batches,
            )
            self._write()

    def last_skip(self, checkpoint_step: int) -> Mapping[str, Any] | None:
        """Return the fields of the last `add_skip` for a checkpoint; None if there was none."""
        skips = (b for b in reversed(self._blow_ups) if b.get("checkpoint") == checkpoint_step)
        return next(skips, None)

    def _write(self) -> None:
        if self.path and directories.is_chief():
            text = json.dumps({"blow_ups": self._blow_ups}, indent=2)
            files.write_text(self.path, text + "\n")


class RecoveryAction:
    """Action that restores the last checkpoint and skips the batches up to the bad step.

    A trainer with several tasks or asynchronous workers can't repeat steps. It continues with
    batches that have not been read yet. Of a plain Orbit trainer, only `after_restore` is called.

    Args:
        checkpoint_manager: The manager of the training checkpoints.
        trainer: The trainer. Without one, only the checkpoint is restored.
        is_bad: A function that returns whether the output of a single step is a blow-up.
        record: The record of the blow-ups, to which skipped batches are added.
    """

    def __init__(
        self,
        checkpoint_manager: tf.train.CheckpointManager,
        trainer: orbit.AbstractTrainer | None = None,
        is_bad: Callable[[orbit.runner.Output], bool] = lambda _: False,
        record: BlowUpRecord | None = None,
    ) -> None:
        self.checkpoint_manager = checkpoint_manager
        self._trainer = trainer
        self._is_bad = is_bad
        self._record = BlowUpRecord() if record is None else record
        # The step of the last blow-up that did not occur again.
        self._unexplained: int | None = None

    def before_train(self) -> None:
        """Skip the batches that a recovery to the restored checkpoint skipped in an earlier start.

        The run may have been killed before it could save a checkpoint that contains the skip.
        """
        trainer = self._repeating_trainer
        if trainer is None:
            return
        if skip := self._record.last_skip(int(trainer.global_step.numpy())):
            missing = _next_batch(skip, trainer) - trainer.num_batches_read
            trainer.skip_batches(max(0, missing))

    def __call__(self, _: orbit.runner.Output) -> None:
        """Find the bad step, restore the last checkpoint, and skip the batches up to that step.

        If steps can't be repeated, only the checkpoint is restored. If the blow-up does not occur
        again in the repeated steps, no batch is skipped. If that happens twice at the same step,
        the repeated steps are kept.

        Raises:
            errors.DivergedError: If there is no checkpoint yet.
        """
        self._recover()
        self._record.close()

    def _recover(self) -> None:
        trainer = self._repeating_trainer
        if trainer is None:
            self._restore()
            return
        step = int(trainer.global_step.numpy())
        found = self.find_bad_step()
        if found is None and step == self._unexplained:
            # Repeating the steps once more would give the same result.
            logging.warning(
                "The blow-up at step %d did not occur when its steps were repeated one by one, for "
                "the second time. Training continues after the repeated steps.",
                step,
            )
            return
        # Restore again even if no step was bad: the repeated steps had no evaluations and called no
        # hooks, which may change the learning rate, stop training or keep the best checkpoint.
        self._restore()
        if found is None:
            self._unexplained = step
            logging.warning(
                "The blow-up did not occur again when the steps were repeated. Training continues "
                "from the checkpoint and skips no data."
            )
            return
        logging.warning("The loss blew up at %s. Training skips the data up to this point.", found)
        trainer.skip_batches(found.num_batches)
        self._record.add_skip(
            int(trainer.global_step.numpy()),
            trainer.num_batches_read,
            *train_data.batch_sizes(trainer.config),
        )

    def find_bad_step(self) -> BadStep | None:
        """Restore the last checkpoint and repeat the steps after it one by one, up to the bad step.

        Returns:
            The bad step. None if the blow-up did not occur again, or if the steps can't be
            repeated.

        Raises:
            errors.PreemptedError: A signal requested a stop. The last checkpoint is restored again,
                because the repeated steps had no evaluations and called no hooks.
        """
        trainer = self._repeating_trainer
        if trainer is None:
            return None
        last = int(trainer.global_step.numpy())
        self._restore()
        start = before = trainer.num_batches_read
        found = None
        try:
            for step in range(int(trainer.global_step.numpy()) + 1, last + 1):
                before = trainer.num_batches_read
                preemption.check()
                if self._is_bad(trainer.train(tf.constant(1)) or {}):
                    found = step
                    break
        except errors.PreemptedError:
            self._restore()
            raise
        finally:
            # Discard the events of the repeated steps, which were reported when they first ran.
            if trainer.event_storage is not None:
                trainer.event_storage.discard()
        if found is None:
            return None
        now = trainer.num_batches_read
        return BadStep(step=found, batches=range(before, now), num_batches=now - start)

    def find_bad_input(self) -> str | None:
        """Search the training data for non-finite numbers, for a few seconds.

        Returns:
            A sentence that says where the numbers are. None if none were found, or if several
            processes read the data, because they would have to read the same number of batches.
        """
        trainer = self._repeating_trainer
        if trainer is None:
            return None
        resolver = trainer.strategy.cluster_resolver
        if resolver is not None and resolver.cluster_spec().jobs:
            return None
        return input_errors.find_non_finite(trainer.build_train_dataset())

    def _restore(self) -> None:
        trainer = self._repeating_trainer
        if trainer is None:
            self._restore_without_repeating()
            return
        skipped = trainer.num_batches_skipped
        # Reset `batches_read`, because a checkpoint of an older version does not restore it.
        trainer.checkpoint.batches_read.assign(0)
        self._restore_checkpoint()
        # Skip again the batches that an earlier recovery from this checkpoint skipped.
        trainer.skip_batches(max(0, skipped - trainer.num_batches_skipped))

    def _restore_without_repeating(self) -> None:
        if isinstance(self._trainer, base_trainer.Trainer):
            # Training continues with the unread batches, so the data must not be rebuilt.
            with self._trainer.keeping_position():
                self._restore_checkpoint()
            return
        self._restore_checkpoint()
        if self._trainer is not None:
            self._trainer.after_restore()

    def _restore_checkpoint(self) -> None:
        path = self.checkpoint_manager.restore_or_initialize()
        if path is None:
            raise errors.DivergedError(
                "The training blew up before its first checkpoint, so it can't be recovered. "
                "Lower the learning rate or `trainer.checkpoint_interval`."
            )
        logging.warning("Recovering the model from checkpoint: %s.", path)
        states = getattr(self.checkpoint_manager.checkpoint, "hooks", None)
        if isinstance(states, hook.HookStates):
            states.after_restore()

    @property
    def _repeating_trainer(self) -> base_trainer.Trainer | None:
        """The trainer if it can repeat steps, else None.

        Asynchronous workers can't repeat steps, because they continue with unread batches. A
        trainer of several tasks can't either, because each task has its own position in its data.
        """
        trainer = self._trainer
        if not isinstance(trainer, base_trainer.Trainer):
            return None
        is_able = not trainer.has_coordinator and hasattr(trainer, "task")
        return trainer if is_able else None


def _next_batch(skip: Mapping[str, Any], trainer: base_trainer.Trainer) -> int:
    """Return the `next_batch` of a recorded skip, converted to the trainer's batch size."""
    count = int(skip["next_batch"])
    if "batch_size" not in skip:
        # Older versions recorded the number of steps that would read as many batches.
        return count * trainer.batches_per_step
    sizes = int(skip["batch_size"]), int(skip["micro_batches"])
    build_inputs = trainer.task.build_inputs
    (converted,) = train_data.convert_counts(trainer.config, build_inputs, [count], sizes)
    return math.ceil(converted)


class RecoveryCondition:
    """Condition that is true if the training blew up.

    A blow-up is a loss that is non-finite or above a bound, or a non-finite variable.

    Args:
        global_step: The variable with the global step.
        loss_upper_bound: See `TrainerConfig`.
        recovery_begin_steps: See `TrainerConfig`.
        recovery_max_trials: See `TrainerConfig`.
        model_dir: The directory in which blow-ups are counted across restarts. Earlier blow-ups of
            the run are read from it.
        state: Checks the variables if the loss is good.
        find_bad_step: A function that finds the step to name in the final error.
        find_bad_input: A function that describes non-finite training data for the final error.

    Attributes:
        record: The record of the blow-ups.
        recover_counter: The number of blow-ups so far, including those of earlier starts.
    """

    def __init__(
        self,
        global_step: tf.Variable,
        loss_upper_bound: float,
        recovery_begin_steps: int = 0,
        recovery_max_trials: int = 3,
        *,
        model_dir: str | None = None,
        state: NonfiniteCheck | None = None,
        find_bad_step: Callable[[], BadStep | None] | None = None,
        find_bad_input: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.recovery_begin_steps = recovery_begin_steps
        self.recovery_max_trials = recovery_max_trials
        self.loss_upper_bound = loss_upper_bound
        self.global_step = global_step
        self._state = state
        self._find_bad_step = find_bad_step
        self._find_bad_input = find_bad_input
        self.record = BlowUpRecord(model_dir, writes=recovery_max_trials > 0)
        self.recover_counter = len(self.record)
        self._last_good_step: int | None = None

    def before_train(self) -> None:
        """Record which variables are not finite when training begins."""
        if self._state is not None:
            self._state.begin()

    def __call__(self, outputs: orbit.runner.Output) -> bool:
        """Check `outputs["training_loss"]`, if there is one, and the variables for a blow-up.

        Raises:
            errors.DivergedError: If there were more blow-ups than `recovery_max_trials` allows.
        """
        if "training_loss" not in outputs and self._state is None:
            return False
        step = int(orbit.utils.get_value(self.global_step))
        what = self.describe_blow_up(outputs)
        if what is None:
            self._last_good_step = step
            # Close the record here, too, because a custom recovery action can't do so.
            self.record.close()
            return False
        self.record.add(step, what)
        self.recover_counter += 1
        if self.recover_counter <= self.recovery_max_trials:
            logging.warning("%s at step %d.", what, step)
            return True
        where = self._where(step)
        if bad_input := self._find_bad_input():
            where = f"{bad_input} {where}"
        times = "once" if self.recover_counter == 1 else f"{self.recover_counter} times"
        self.record.close()
        raise errors.DivergedError(
            f"{what} at step {step}; the training blew up {times}, and "
            f"`trainer.recovery_max_trials` is {self.recovery_max_trials}. {where}"
        )

    def describe_blow_up(
        self, outputs: orbit.runner.Output, is_repeated_step: bool = False
    ) -> str | None:
        """Describe what is wrong with the outputs or the variables; return None if nothing is.

        Args:
            outputs: What the trainer reported.
            is_repeated_step: See `NonfiniteCheck.bad_variables`.
        """
        if "training_loss" in outputs and (what := self._describe_loss(outputs["training_loss"])):
            return what
        if bad := self._state.bad_variables(is_repeated_step) if self._state else []:
            others = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
            if "training_loss" in outputs:
                return f"The loss is finite, but these variables are not: {bad[0]}{others}"
            return f"These variables are not finite: {bad[0]}{others}"
        return None

    def _describe_loss(self, losses: Any) -> str | None:
        # If there are several losses, such as one per replica, check the largest. `np.max` returns
        # NaN if any of them is NaN.
        loss = float(np.max(orbit.utils.get_value(losses)))
        step = int(orbit.utils.get_value(self.global_step))
        if not math.isfinite(loss):
            return f"The training loss is {loss}"
        if step >= self.recovery_begin_steps and loss > self.loss_upper_bound:
            return (
                f"The training loss is {loss:g}, above `trainer.loss_upper_bound` "
                f"({self.loss_upper_bound:g}; raise it if such losses are normal)"
            )
        return None

    def _where(self, step: int) -> str:
        """Describe where the blow-up occurred and what to do."""
        # Without recovery trials, the run must end immediately, so don't search for the bad step.
        find = self._find_bad_step if self.recovery_max_trials > 0 else None
        found = find() if find else None
        if found is not None:
            return f"The last blow-up was at {found}. {self._advice()}"
        if self._last_good_step is not None:
            return f"The check at step {self._last_good_step} found no blow-up. {self._advice()}"
        return self._advice()

    def _advice(self) -> str:
        if path := self.record.path:
            return f"Blow-ups are counted across restarts. To reset the count, remove {path}."
        return (
            "Check the data or lower the learning rate. To find the first layer whose output is "
            "not finite, add the hook `non_finite`."
        )


def _read(path: str | None) -> list[dict[str, Any]]:
    if not path or not files.exists(path):
        return []
    try:
        found: list[dict[str, Any]] = files.read_json(path)["blow_ups"]
    except (ValueError, KeyError) as error:
        files.set_aside(path, error)
        return []
    if found and found[-1].get(_OPEN):
        found.pop()
    return found


class EMACheckpointing:
    """Action that saves checkpoints with the averaged weights in place of the trained ones.

    The checkpoints are written to `<export_dir>/ema_checkpoints/average_weights-<step>`.

    Args:
        export_dir: The parent directory of the `ema_checkpoints` directory.
        optimizer: The optimizer that keeps the moving average.
        checkpoint: The checkpoint to save.
        max_to_keep: The number of checkpoints to keep.
        global_step: The variable that counts the steps. By default, `<step>` is the number of
            updates by the optimizer, which excludes skipped updates and includes loaded ones.

    Raises:
        ValueError: If the optimizer keeps no moving average.
    """

    def __init__(
        self,
        export_dir: str,
        optimizer: keras.optimizers.Optimizer,
        checkpoint: tf.train.Checkpoint,
        max_to_keep: int = 1,
        global_step: tf.Variable | None = None,
    ) -> None:
        if not ema_optimizer.keeps_averages(optimizer):
            raise errors.ConfigValueError(
                f"The optimizer, {type(optimizer).__name__}, keeps no moving average. Expected an "
                "`optimization.ExponentialMovingAverage`; set `optimizer_config.ema`."
            )
        self._optimizer = optimizer
        self._global_step = global_step
        self._checkpoint_manager = async_checkpoint_manager.AsyncCheckpointManager(
            checkpoint,
            directory=directories.writable_directory(os.path.join(export_dir, "ema_checkpoints")),
            max_to_keep=max_to_keep,
            checkpoint_name="average_weights",
        )

    def __call__(self, output: orbit.runner.Output | None = None) -> None:
        """Save a checkpoint; the trained weights are restored even if saving fails."""
        with ema_optimizer.evaluated_state(self._optimizer):
            step = self._global_step
            number = tf.convert_to_tensor(self._optimizer.iterations if step is None else step)
            self._checkpoint_manager.save(checkpoint_number=int(number))


@gin.configurable
def get_eval_actions(
    params: config_definitions.ExperimentConfig,
    trainer: base_trainer.Trainer,
    model_dir: str,
) -> list[orbit.Action]:
    """Return the actions that run after each evaluation."""
    if not ema_optimizer.keeps_averages(trainer.optimizer):
        return []
    # The strategy's scope determines which worker is the chief; only the chief's files are kept.
    with trainer.strategy.scope():
        return [
            EMACheckpointing(
                export_dir=model_dir,
                optimizer=trainer.optimizer,
                checkpoint=trainer.checkpoint,
                max_to_keep=params.trainer.max_to_keep,
                global_step=trainer.global_step,
            )
        ]


@gin.configurable
def get_train_actions(
    params: config_definitions.ExperimentConfig,
    trainer: base_trainer.Trainer,
    model_dir: str,
    checkpoint_manager: tf.train.CheckpointManager,
) -> list[orbit.Action]:
    """Return the actions that run after each reporting interval, before a checkpoint is saved."""
    config = params.trainer
    actions: list[orbit.Action] = []
    if config.recovery_max_trials >= 0:
        actions.append(_recovery(config, trainer, model_dir, checkpoint_manager))
    # Skip `SaveCheckpointIfPreempted` if this process catches signals, because the workers then
    # already agree on the step at which to stop. TensorFlow's preemption handler would wait for a
    # worker that has exited, and print a traceback.
    waits_for_notice = config.preemption_on_demand_checkpoint and not preemption.is_caught()
    if waits_for_notice and (resolver := trainer.strategy.cluster_resolver):
        actions.append(
            orbit.actions.SaveCheckpointIfPreempted(
                resolver,
                checkpoint_manager,
                trainer.global_step,
                keep_running_after_save=True,
            )
        )
    return actions


def _recovery(
    config: config_definitions.TrainerConfig,
    trainer: base_trainer.Trainer,
    model_dir: str,
    checkpoint_manager: tf.train.CheckpointManager,
) -> orbit.actions.ConditionalAction:
    # A plain Orbit trainer does not expose its data or weights.
    is_ours = isinstance(trainer, base_trainer.Trainer)

    # Checking variables that live on parameter servers would require fetching them first.
    state = NonfiniteCheck(trainer) if is_ours and not trainer.has_coordinator else None

    condition = RecoveryCondition(
        global_step=trainer.global_step,
        loss_upper_bound=config.loss_upper_bound,
        recovery_begin_steps=config.recovery_begin_steps,
        recovery_max_trials=config.recovery_max_trials,
        model_dir=model_dir,
        state=state,
        find_bad_step=lambda: action.find_bad_step(),
        find_bad_input=lambda: action.find_bad_input(),
    )
    action = RecoveryAction(
        checkpoint_manager,
        trainer,
        is_bad=lambda output: condition.describe_blow_up(output, is_repeated_step=True) is not None,
        record=condition.record,
    )
    return orbit.actions.ConditionalAction(condition, action)
