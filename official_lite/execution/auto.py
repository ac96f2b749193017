"""The choice that `runtime.execution: auto` makes: the mode chosen before, or the fastest one."""

import time
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from official_lite.checkpoint import directories
from official_lite.execution import execution_record, modes
from official_lite.execution.execution_record import ExecutionRecord
from official_lite.modeling import distributed_gradients, embedding_lookups

__all__ = ["VariableSnapshot", "choose_execution", "choose"]


class VariableSnapshot:
    """The values of all variables that compiled functions can touch.

    Not only what a checkpoint holds: metrics, sums that reports wait for and variables that nothing
    else knows of are among them. On a CPU it costs no copy, since a value that is still in use is
    not overwritten.

    Args:
        functions: Concrete functions.
    """

    def __init__(self, functions: Iterable[Any]) -> None:
        handles = {
            id(handle): handle
            for function in functions
            for handle in function.captured_inputs
            if handle.dtype == tf.resource and _value_dtype(handle) is not None
        }
        self._values = [
            (handle, tf.raw_ops.ReadVariableOp(resource=handle, dtype=_value_dtype(handle)))
            for handle in handles.values()
        ]

    def restore(self) -> None:
        """Gives all of them the values that they had."""
        for handle, value in self._values:
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    def __len__(self) -> int:
        return len(self._values)


def _value_dtype(handle: Any) -> tf.DType | None:
    """The type of the variable's value; None for a resource that is no variable."""
    data = getattr(handle, "_handle_data", None)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    return tf.dtypes.as_dtype(data.shape_and_type[0].dtype)


# A shorter training is over before anything could be found out.
_FEWEST_STEPS = 100

# What finding out may cost, as a part of the time that the training would take in graph mode.
_BUDGET = 0.05

# XLA takes about as long as two or three traces.
_TRACES_PER_COMPILATION = 3.0

# Steps below it are mostly overhead, which is what a loop inside of XLA saves.
_SHORT_STEP_SECONDS = 2e-3

# What it must gain to be preferred, so that the choice does not hang on a moment's noise.
_GAIN = 0.95

# Many short goes, of which the best one counts, find a moment in which the machine is not busy.
_SECONDS_PER_TRIAL = 0.5

_SECONDS_PER_GO = 0.02

_FEWEST_GOES = 3

# Not less is spent on a mode before it is hopeless: three goes may all meet a busy machine.
_FEWEST_SECONDS = 0.1

_GROWING_GOES = 9


def choose_execution(trainer: Any, num_steps: int, num_eval_steps: int = 0) -> ExecutionRecord:
    """Tries the modes on a trainer, and leaves it in the fastest one.

    The state of the training is what it was before, the trainer's data are at their beginning.

    Args:
        trainer: A `Trainer` that has not begun yet, in graph mode.
        num_steps: The steps that it is going to train.
        num_eval_steps: The steps of all evaluations on the way.
    """
    return _Tuner(trainer, num_steps, num_eval_steps).choose()


class _Tuner:
    def __init__(self, trainer: Any, num_steps: int, num_eval_steps: int) -> None:
        self._trainer = trainer
        self._num_steps = num_steps
        self._num_eval_steps = num_eval_steps
        self._started = time.monotonic()
        self._loops: dict[str, Any] = {}
        self._setup_seconds: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        self._trace_seconds = 0.0

    def choose(self) -> ExecutionRecord:
        if self._num_steps < _FEWEST_STEPS:
            return self._decide("graph", "the training is short")
        reason = modes.why_not_xla(self._trainer) or self._why_not_tried()
        if reason is not None:
            return self._decide("graph", reason)
        self._dataset = self._trainer.build_train_dataset()
        self._try("graph")
        if "graph" not in self._seconds:
            return self._decide("graph", "it could not be tried")
        for mode in self._candidates():
            if not self._pays_for_another(self._seconds["graph"]):
                return self._decide(self._fastest(), f"trying {mode} would not pay")
            self._try(mode)
        return self._decide(self._fastest(), "the fastest of those tried")

    def _why_not_tried(self) -> str | None:
        if not isinstance(self._trainer.train_dataset, tf.data.Dataset):
            return "the data are distributed, and can't be tried"
        if not self._trainer.config.trainer.train_tf_while_loop:
            return "`trainer.train_tf_while_loop` is off"
        if distributed_gradients.updates_rows(self._trainer.optimizer):
            tables = embedding_lookups.tables(self._trainer.model)
            large = [table.path for table in tables if embedding_lookups.is_large(table)]
            if large:
                return f"XLA would pass over all rows of {large[0]} in each step"
        return None

    def _candidates(self) -> Iterator[str]:
        """What may be faster than what is known, the most promising first."""
        stackable = modes.why_not_xla_loop(self._trainer) is None
        if self._seconds["graph"] < _SHORT_STEP_SECONDS and stackable:
            yield "xla_loop"
            if self._fastest() == "graph":
                yield "xla"
            return
        yield "xla"
        if self._fastest() == "xla" and self._seconds["xla"] < _SHORT_STEP_SECONDS and stackable:
            yield "xla_loop"

    def _try(self, mode: str) -> None:
        """Measures a mode. One that fails is left out, and said so."""
        self._trainer.execution = mode
        snapshot = None
        try:
            started = time.monotonic()
            loop = self._trainer.create_train_loop(self._dataset)
            functions = loop.trace()
            if mode == "graph":
                self._trace_seconds = time.monotonic() - started
            snapshot = VariableSnapshot(functions)
            # The first step compiles.
            loop(tf.constant(1))
            self._setup_seconds[mode] = time.monotonic() - started
            self._seconds[mode] = self._measure(loop)
            self._loops[mode] = loop
        except Exception as error:  # Whatever XLA or the step may raise: there are other modes.
            logging.warning("The mode of execution %s is left out: %s", mode, _first_line(error))
        finally:
            if snapshot is not None:
                snapshot.restore()

    def _measure(self, loop: Any) -> float:
        """Seconds a step, at its best of several goes."""
        started = time.monotonic()
        deadline = started + _SECONDS_PER_TRIAL
        best, num_steps, goes = float("inf"), 1, 0
        while goes < _FEWEST_GOES or time.monotonic() < deadline:
            seconds = _seconds_of(loop, num_steps)
            best = min(best, seconds / num_steps)
            goes += 1
            is_known = goes >= _FEWEST_GOES and time.monotonic() - started > _FEWEST_SECONDS
            if is_known and not self._is_worth_a_closer_look(best, seconds):
                break
            # At first whatever a go takes: a busy machine makes single steps slow.
            if seconds < (_SECONDS_PER_TRIAL / 2 if goes <= _GROWING_GOES else _SECONDS_PER_GO):
                num_steps *= 2
        return best

    def _is_worth_a_closer_look(self, seconds_per_step: float, seconds: float) -> bool:
        if "graph" not in self._seconds:
            return self._pays_for_another(seconds_per_step)
        # A short go says more of the call than of the steps. And only what is far from the others
        # is hopeless, since a few goes may meet a busy machine.
        is_long = seconds > _SECONDS_PER_GO
        return not is_long or seconds_per_step < 10 * min(self._seconds.values())

    def _pays_for_another(self, graph_seconds: float) -> bool:
        """Whether the training is long enough to try one more mode."""
        spent = time.monotonic() - self._started
        expected = spent + _TRACES_PER_COMPILATION * self._trace_seconds
        return expected < _BUDGET * graph_seconds * self._num_steps

    def _fastest(self) -> str:
        fastest = min(self._seconds, key=lambda mode: self._seconds[mode])
        gains = self._seconds[fastest] < _GAIN * self._seconds["graph"]
        return fastest if gains else "graph"

    def _eval_execution(self, mode: str) -> str:
        """The same mode for evaluation, if there is enough of it to pay for one more program."""
        if mode == "graph":
            return mode
        # A step without backward pass and update is about a third of one.
        saved_a_step = (self._seconds["graph"] - self._seconds[mode]) / 3
        pays = self._num_eval_steps * saved_a_step > 2 * self._setup_seconds[mode]
        return mode if pays else "graph"

    def _decide(self, mode: str, reason: str) -> ExecutionRecord:
        self._trainer.execution = mode
        self._trainer.eval_execution = self._eval_execution(mode)
        if mode in self._loops:
            loop = self._loops[mode]
            loop.read(self._trainer.train_dataset)
            self._trainer.use_train_loop(loop)
        return ExecutionRecord(
            execution=mode,
            eval_execution=self._trainer.eval_execution,
            reason=reason,
            train_steps=int(self._trainer.global_step.numpy()) + self._num_steps,
            seconds_per_step=self._seconds,
            seconds=round(time.monotonic() - self._started, 3),
        )


def _seconds_of(loop: Any, num_steps: int) -> float:
    started = time.monotonic()
    loop(tf.constant(num_steps))
    return time.monotonic() - started


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"


def choose(
    trainer: Any, num_steps: int, model_dir: str, *, evaluates: bool
) -> execution_record.ExecutionRecord:
    """Puts a trainer into the mode that was chosen for its directory, or finds out and notes it.

    Args:
        trainer: A `Trainer` that has not begun yet.
        num_steps: The steps that it is going to train.
        model_dir: The directory of the run.
        evaluates: Whether it evaluates on the way.
    """
    train_steps = int(trainer.global_step.numpy()) + num_steps
    known = execution_record.load(model_dir)
    if known is not None and known.holds_for(train_steps) and _is_possible(known, trainer):
        trainer.execution = known.execution
        trainer.eval_execution = known.eval_execution
        return known
    num_eval_steps = _count_eval_steps(trainer, num_steps) if evaluates else 0
    record = choose_execution(trainer, num_steps, num_eval_steps)
    if record.seconds_per_step and directories.is_chief(trainer.strategy):
        execution_record.save(record, model_dir)
    return record


def _is_possible(record: execution_record.ExecutionRecord, trainer: Any) -> bool:
    """The directory may have come to a machine with more devices, or to several machines."""
    if trainer.has_coordinator:
        return record.execution == "graph"
    return record.execution != "xla_loop" or modes.why_not_xla_loop(trainer) is None


def _count_eval_steps(trainer: Any, num_steps: int) -> int:
    """Of all evaluations during so many steps of training; 0 if nobody knows."""
    config = trainer.config.trainer
    if not trainer.evaluates or not config.validation_interval:
        return 0
    steps = config.validation_steps
    if steps == -1 and isinstance(trainer.eval_dataset, tf.data.Dataset):
        steps = int(trainer.eval_dataset.cardinality())
    return max(0, steps) * (num_steps // config.validation_interval)
