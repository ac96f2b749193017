"""The implementation of `runtime.execution: auto`: reuse the recorded mode, or find the fastest."""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from official_lite import orbit
from official_lite.checkpoint import directories
from official_lite.common import keras_variables
from official_lite.execution import execution_record, executors, modes, repeatability
from official_lite.execution.execution_record import ExecutionRecord
from official_lite.modeling import distributed_gradients, embedding_lookups

__all__ = ["VariableSnapshot", "choose_execution", "choose"]


class VariableSnapshot:
    """Snapshot of all variables that compiled functions can change.

    Besides the contents of a checkpoint, the snapshot includes metrics, sums for pending reports
    and variables that no other object refers to. On a CPU it makes no copies, because TensorFlow
    does not overwrite a value that is still in use.

    Args:
        functions: The concrete functions.
    """

    def __init__(self, functions: Iterable[Any]) -> None:
        handles = {
            id(handle): (handle, spec.dtype)
            for function in functions
            for handle in function.captured_inputs
            if handle.dtype == tf.resource
            and (spec := keras_variables.value_spec(handle)) is not None
        }
        self._values = [
            (handle, tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype))
            for handle, dtype in handles.values()
        ]

    def restore(self) -> None:
        """Restore the values of all variables."""
        for handle, value in self._values:
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    def __len__(self) -> int:
        return len(self._values)


# The minimum number of training steps for benchmarks. A shorter run would end before the modes
# could be compared.
_MIN_STEPS = 100

# The maximum duration of the benchmarks, as a fraction of the training time in graph mode.
_BUDGET = 0.05

# The assumed compilation time of a step as a multiple of its tracing time.
_TRACES_PER_COMPILATION = 3.0

# Steps that take less than this time, in seconds, consist mostly of overhead. The mode `xla_loop`
# avoids the overhead.
_SHORT_STEP_SECONDS = 2e-3

# A mode other than `graph` is chosen only if its steps take less than this fraction of the time in
# graph mode, so that the choice does not depend on measurement noise.
_GAIN = 0.95

# The time in seconds for which a mode is measured repeatedly. Only the shortest measurement counts,
# because other processes on the machine can make a measurement longer.
_SECONDS_PER_TRIAL = 0.5

_SECONDS_PER_MEASUREMENT = 0.02

# The minimum number of measurements of a mode.
_MIN_MEASUREMENTS = 3

# The minimum time in seconds for which a mode is measured before it is rejected. The machine may be
# busy during the first few measurements.
_MIN_SECONDS = 0.1

# The number of measurements, counted from the first, for which `_measure` uses half of
# `_SECONDS_PER_TRIAL` as the upper limit of a short measurement. Afterwards the limit is
# `_SECONDS_PER_MEASUREMENT`.
_GROWING_MEASUREMENTS = 9


def choose_execution(trainer: Any, num_steps: int, num_eval_steps: int = 0) -> ExecutionRecord:
    """Benchmark the execution modes on a trainer and set the fastest one.

    Afterwards the training state is unchanged and the trainer's data is at its beginning.

    Args:
        trainer: A `Trainer` in graph mode that has not started training.
        num_steps: The number of steps to train.
        num_eval_steps: The total number of steps of all evaluations during training.
    """
    with executors.measuring():
        return _Tuner(trainer, num_steps, num_eval_steps).choose()


class _Tuner:
    def __init__(self, trainer: Any, num_steps: int, num_eval_steps: int) -> None:
        self._trainer = trainer
        self._num_steps = num_steps
        self._num_eval_steps = num_eval_steps
        self._started = time.monotonic()
        self._loops: dict[str, orbit.TrainLoop] = {}
        self._setup_seconds: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        self._functions: Sequence[Any] = ()
        self._trace_seconds = 0.0
        # Why the steps of the last mode that was tried can't be undone; None if they can.
        self._lasting: str | None = None

    def choose(self) -> ExecutionRecord:
        if self._num_steps < _MIN_STEPS:
            return self._decide("graph", "the training run is short")
        reason = modes.why_not_xla(self._trainer) or self._why_not_tried()
        if reason is not None:
            return self._decide("graph", reason)
        self._dataset = self._trainer.build_train_dataset()
        self._try("graph")
        if self._lasting is not None:
            return self._decide("graph", self._lasting)
        if "graph" not in self._seconds:
            return self._decide("graph", "the benchmark of this mode failed")
        if others := repeatability.find_other_numbers(self._functions):
            return self._decide("graph", f"XLA would draw different random numbers in {others[0]}")
        for mode in self._candidates():
            if not self._pays_for_another(self._seconds["graph"]):
                return self._decide(self._fastest(), f"benchmarking {mode} would not pay off")
            self._try(mode)
        return self._decide(self._fastest(), "the fastest of the benchmarked modes")

    def _why_not_tried(self) -> str | None:
        if self._trainer.config.trainer.virtual_replicas:
            return "with virtual replicas, the choice must not depend on the speed of the machine"
        if not isinstance(self._trainer.train_dataset, tf.data.Dataset):
            return "distributed data can't be used for benchmarks"
        if not self._trainer.config.trainer.train_tf_while_loop:
            return "`trainer.train_tf_while_loop` is off"
        if distributed_gradients.updates_rows(self._trainer.optimizer):
            tables = embedding_lookups.tables(self._trainer.model)
            large = [table.path for table in tables if embedding_lookups.is_large(table)]
            if large:
                return f"XLA would update all rows of {large[0]} in each step"
        return None

    def _candidates(self) -> Iterator[str]:
        """Yield the modes that may be faster than those measured so far, most promising first."""
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
        """Benchmark a mode; skip it with a warning if it fails.

        A step whose effects can't be undone is not run.
        """
        self._trainer.execution = mode
        snapshot = None
        try:
            started = time.monotonic()
            loop = self._trainer.create_train_loop(self._dataset)
            functions = loop.trace()
            if mode == "graph":
                self._trace_seconds = time.monotonic() - started
                self._functions = functions
            self._lasting = _why_not_undone(functions)
            if self._lasting is not None:
                return
            snapshot = VariableSnapshot(functions)
            # The first call also compiles the loop, so it counts toward the setup time.
            loop(tf.constant(1))
            self._setup_seconds[mode] = time.monotonic() - started
            seconds, num_steps = self._measure(loop)
            if self._trainer.num_batch_sizes > max(2, num_steps // 2):
                logging.info("Skipping the execution mode %s: most batches differ in size.", mode)
                return
            self._seconds[mode] = seconds
            self._loops[mode] = loop
        except Exception as error:  # XLA or the step may raise any error; try the other modes.
            logging.warning("Skipping the execution mode %s: %s", mode, _first_line(error))
        finally:
            if snapshot is not None:
                snapshot.restore()

    def _measure(self, loop: orbit.TrainLoop) -> tuple[float, int]:
        """Return the shortest measured time per step in seconds, and the number of steps run."""
        started = time.monotonic()
        deadline = started + _SECONDS_PER_TRIAL
        best, num_steps, count, total = float("inf"), 1, 0, 0
        while count < _MIN_MEASUREMENTS or time.monotonic() < deadline:
            seconds = _seconds_of(loop, num_steps)
            best = min(best, seconds / num_steps)
            count += 1
            total += num_steps
            is_known = count >= _MIN_MEASUREMENTS and time.monotonic() - started > _MIN_SECONDS
            if is_known and not self._is_worth_a_closer_look(best, seconds):
                break
            # Double the number of steps after a short measurement. At first, a larger limit defines
            # what is short, because on a busy machine a single step may exceed the smaller limit.
            is_growing = count <= _GROWING_MEASUREMENTS
            if seconds < (_SECONDS_PER_TRIAL / 2 if is_growing else _SECONDS_PER_MEASUREMENT):
                num_steps *= 2
        return best, total

    def _is_worth_a_closer_look(self, seconds_per_step: float, seconds: float) -> bool:
        if "graph" not in self._seconds:
            return self._pays_for_another(seconds_per_step)
        # Repeat a short measurement, because call overhead dominates it. Otherwise reject a mode
        # only if it is far slower than the fastest mode, because the machine may have been busy.
        is_long = seconds > _SECONDS_PER_MEASUREMENT
        return not is_long or seconds_per_step < 10 * min(self._seconds.values())

    def _pays_for_another(self, graph_seconds: float) -> bool:
        """Return whether the training run is long enough to benchmark one more mode."""
        spent = time.monotonic() - self._started
        expected = spent + _TRACES_PER_COMPILATION * self._trace_seconds
        return expected < _BUDGET * graph_seconds * self._num_steps

    def _fastest(self) -> str:
        fastest = min(self._seconds, key=lambda mode: self._seconds[mode])
        gains = self._seconds[fastest] < _GAIN * self._seconds["graph"]
        return fastest if gains else "graph"

    def _eval_execution(self, mode: str) -> str:
        """Return the evaluation mode: `mode` if its compilation pays off, otherwise `graph`."""
        if mode == "graph":
            return mode
        # An evaluation step takes about a third of the time of a training step, because it has
        # neither a backward pass nor an update.
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


def _why_not_undone(functions: Sequence[Any]) -> str | None:
    """Return why a step that these functions run can't be undone; None if it can."""
    if not functions:
        # The variables to restore afterward are known only from the trace of a step.
        return "the steps can't be traced, so benchmarking them can't be undone"
    if effects := sorted(set(repeatability.find_lasting_effects(functions))):
        return f"benchmarking has effects that can't be undone ({', '.join(effects[:3])})"
    return None


def _seconds_of(loop: orbit.TrainLoop, num_steps: int) -> float:
    started = time.monotonic()
    loop(tf.constant(num_steps))
    return time.monotonic() - started


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"


def choose(
    trainer: Any, num_steps: int, model_dir: str, *, evaluates: bool
) -> execution_record.ExecutionRecord:
    """Reuse the mode recorded in `model_dir`, or benchmark the modes and record the fastest.

    Args:
        trainer: A `Trainer` that has not started training.
        num_steps: The number of steps to train.
        model_dir: The model directory.
        evaluates: Whether the run evaluates during training.
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
    """Return whether the trainer supports the recorded mode.

    The run may have been moved to a machine with more devices, or to several machines, and its
    config may have been changed.
    """
    if record.execution == "graph":
        return True
    # With virtual replicas, the results must not depend on the machine, and neither may the mode.
    if trainer.config.trainer.virtual_replicas:
        return False
    is_loop = record.execution == "xla_loop"
    return (modes.why_not_xla_loop if is_loop else modes.why_not_xla)(trainer) is None


def _count_eval_steps(trainer: Any, num_steps: int) -> int:
    """Return the total number of steps of all evaluations during training; 0 if unknown."""
    config = trainer.config.trainer
    if not trainer.evaluates or not config.validation_interval:
        return 0
    steps = config.validation_steps
    if steps == -1 and isinstance(trainer.eval_dataset, tf.data.Dataset):
        steps = int(trainer.eval_dataset.cardinality())
    return max(0, steps) * (num_steps // config.validation_interval)
