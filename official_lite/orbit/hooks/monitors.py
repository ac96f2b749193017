"""Hooks that watch training: times, waits for data, rates, norms, memory, graphs and profiles."""

import dataclasses
import datetime
import itertools
import math
import pathlib
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite import telemetry
from official_lite.checkpoint import directories
from official_lite.common import (
    errors,
    goodput,
    keras_variables,
    nested_dict,
    nests,
    suggestions,
)
from official_lite.orbit import runner, standard_runner, triggers, utils
from official_lite.orbit.hooks.hook import GraphHook, Hook, output_directory
from official_lite.orbit.utils import loop_fns

_STALL_MESSAGE = (
    "No step was completed for %.0f s, since step %d. Either the input pipeline hangs, or a "
    "compilation or evaluation is taking a long time. Stack traces of all threads:\n%s"
)

_MIB = 2**20
_PROCESS_STATUS = pathlib.Path("/proc/self/status")
# Fields of `/proc/self/status` on Linux: the current resident memory, and its maximum so far.
_MEMORY_FIELDS = {"VmRSS": "memory/rss_mib", "VmHWM": "memory/peak_rss_mib"}


class IterationTimer(Hook):
    """Logs times to the event storage, and summarizes them in the log when training ends or fails.

    Every `every_n_steps` steps:

    * `seconds_per_step`: the time in the compiled loop, excluding the time between its calls;
    * `eta_seconds`: the estimated time until the last step, including the time between calls;
    * `examples_per_second`, if the batch size is known.

    At the end of each epoch, if the controller knows the length of an epoch, in the event storage
    and in the log:

    * `epoch_seconds`: the time of the epoch in the compiled loop. For the epoch in which a run
      resumes, only the remaining part counts.

    The hook also reads the clock whenever the loop stops for another reason. If recovery restores a
    checkpoint, all measurements restart, except for the total time in the log.

    Args:
        every_n_steps: The interval.
        batch_size: The number of examples per step over all replicas. Defaults to the trainer's
            `global_batch_size`, if it has one.
        warmup_steps: The minimum number of initial steps to exclude from the measurements, because
            the first step includes compilation.
    """

    def __init__(
        self, every_n_steps: int = 100, batch_size: int | None = None, warmup_steps: int = 3
    ) -> None:
        self.every_n_steps = every_n_steps
        self._batch_size = batch_size
        self._warmup_steps = warmup_steps
        self._start: _Mark | None = None
        self._warm: _Mark | None = None

    def build_trigger(self) -> triggers.Trigger:
        # `EverySeconds(0)` never makes the loop stop, but is due whenever the loop stops for any
        # other reason.
        return triggers.AnyOf(
            [triggers.every(self.every_n_steps), self._epoch_trigger(), triggers.EverySeconds(0)]
        )

    def before_train(self) -> None:
        self._start = self._mark()
        self._begin(self._start)

    def after_restore(self) -> None:
        # Restart, because the time of discarded steps must not count toward the steps that are
        # kept.
        self._begin(self._mark())

    def after_step(self) -> None:
        self._now = self._mark()
        if self._epoch_trigger().is_due(self._now.step):
            self._report_epoch()
        if self._warm is None:
            self._end_warmup(since=self._first)
        elif triggers.every(self.every_n_steps).is_due(self._now.step):
            self._report_pace(self._warm)

    def after_train(self, success: bool) -> None:
        if self._start is None:
            return
        # A short run may end before the warm-up does.
        is_warm = self._warm is not None and self._warm.step < self._now.step
        self._log_pace(self._warm if self._warm is not None and is_warm else self._first)
        end = self._mark()
        total = end.seconds - self._start.seconds
        between = total - (end.train_seconds - self._start.train_seconds)
        logging.info(
            "total time %s (including %s for hooks, evaluations and checkpoints)",
            _in_words(total),
            _in_words(between),
        )

    def _begin(self, mark: "_Mark") -> None:
        self._warm = None
        self._first = self._now = self._reported = self._epoch_start = mark

    def _log_pace(self, since: "_Mark") -> None:
        steps = self._now.step - since.step
        if steps > 0:
            seconds = self._now.train_seconds - since.train_seconds
            text = "%d iterations in %s (%.4g s/it), from step %d on"
            logging.info(text, steps, _in_words(seconds), seconds / steps, since.step)

    def _end_warmup(self, since: "_Mark") -> None:
        if self._now.step - since.step >= self._warmup_steps:
            self._warm = self._reported = self._now

    def _report_pace(self, warm: "_Mark") -> None:
        since, self._reported = self._reported, self._now
        steps, warm_steps = self._now.step - since.step, self._now.step - warm.step
        if steps <= 0 or warm_steps <= 0:  # An older checkpoint was restored.
            return
        storage = self.controller.storage
        seconds_per_step = (self._now.train_seconds - since.train_seconds) / steps
        storage.put_scalar("seconds_per_step", seconds_per_step)
        pace = (self._now.seconds - warm.seconds) / warm_steps
        eta = pace * (self.controller.last_step - self._now.step)
        storage.put_scalar("eta_seconds", eta, smoothing_hint=False)
        batch_size = self._batch_size or getattr(self.trainer, "global_batch_size", None)
        if batch_size:
            storage.put_scalar("examples_per_second", batch_size / max(seconds_per_step, 1e-9))

    def _report_epoch(self) -> None:
        seconds = self._now.train_seconds - self._epoch_start.train_seconds
        self._epoch_start = self._now
        epoch = self._now.step // (self.controller.steps_per_epoch or 1)
        logging.info("epoch %d done, use time: %s", epoch, _in_words(seconds))
        self.controller.storage.put_scalar("epoch_seconds", seconds, smoothing_hint=False)

    def _epoch_trigger(self) -> triggers.Trigger:
        return triggers.every(self.controller.steps_per_epoch)

    def _mark(self) -> "_Mark":
        return _Mark(
            step=self.controller.step,
            seconds=time.monotonic(),
            train_seconds=self.controller.train_seconds,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Mark:
    """The clock reading at a step, and the time spent in training steps so far."""

    step: int
    seconds: float
    train_seconds: float


def _in_words(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.3g} s"
    return str(datetime.timedelta(seconds=round(seconds)))


class StallWarning(Hook):
    """Warns if no step completes for some time, and logs the stack of every Python thread.

    The usual cause is an input that hangs: a generator that waits for a server, or a file system
    that does not respond. Training continues if data arrive again. The delay doubles with each
    further warning. A separate thread reads the global step occasionally, which costs almost
    nothing.

    Args:
        seconds: The number of seconds without a completed step before the first warning.
            Compilation and evaluation time counts.
    """

    every_n_steps = 0

    def __init__(self, seconds: float = 600.0) -> None:
        self._seconds = seconds
        # An event can't be copied, but the hooks of a pipeline are, so do not create it here.
        self._stopped: threading.Event | None = None
        self._thread: threading.Thread | None = None

    def before_train(self) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._watch, args=(self._stopped,), name="stall_warning", daemon=True
        )
        self._thread.start()

    def after_train(self, success: bool) -> None:
        if self._stopped is not None and self._thread is not None:
            self._stopped.set()
            self._thread.join()
        self._stopped = self._thread = None

    def _watch(self, stopped: threading.Event) -> None:
        step, waited, limit = self.controller.step, 0.0, self._seconds
        pause = self._seconds / 4
        while not stopped.wait(pause):
            now = self.controller.step
            if now != step:
                step, waited, limit = now, 0.0, self._seconds
                continue
            waited += pause
            if waited >= limit:
                limit *= 2
                logging.warning(_STALL_MESSAGE, waited, step, _stacks())


def _stacks() -> str:
    """Format the stacks of all threads except the current one."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    frames: dict[int, Any] = sys._current_frames()
    return "\n".join(
        f"Thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in frames.items()
        if ident != own
    )


class LearningRateLogger(Hook):
    """Logs `learning_rate`, the value of the schedule at this step, to the event storage.

    The schedule is part of the optimizer, so nothing has to advance it. If the trainer has several
    `optimizers` (a dictionary or a list), or a `keras.optimizers.MultiOptimizer`, the hook logs
    `learning_rate/<name>` for each of them.

    Args:
        every_n_steps: The interval.
    """

    def __init__(self, every_n_steps: int = 100) -> None:
        self.every_n_steps = every_n_steps

    def before_train(self) -> None:
        self._rates()

    def after_step(self) -> None:
        for name, rate in self._rates().items():
            self.controller.storage.put_scalar(name, rate, smoothing_hint=False)

    def _rates(self) -> dict[str, float]:
        optimizers = getattr(self.trainer, "optimizers", None)
        if optimizers:
            named = optimizers if isinstance(optimizers, Mapping) else _by_name(optimizers)
            return {f"learning_rate/{n}": self._rate(named[n]) for n in named}
        optimizer = runner.optimizer_of(self.trainer)
        if optimizer is None:
            raise errors.ConfigValueError(
                f"{type(self.trainer).__name__} has neither `optimizer` nor `optimizers`, so "
                "LearningRateLogger has no learning rate to log. Set one of these attributes, or "
                "remove the hook."
            )
        rates = utils.learning_rates(optimizer, self.controller.global_step)
        return {name: float(utils.get_value(rate)) for name, rate in rates.items()}

    def _rate(self, optimizer: keras.optimizers.Optimizer) -> float:
        rate = utils.current_learning_rate(optimizer, self.controller.global_step)
        return float(utils.get_value(rate))


def _by_name(optimizers: Iterable[keras.optimizers.Optimizer]) -> dict[str, Any]:
    optimizers = list(optimizers)
    names = nested_dict.unique_keys([optimizer.name for optimizer in optimizers])
    return dict(zip(names, optimizers, strict=True))


class WeightNorms(Hook):
    """Logs the L2 norm of trainable weights to the event storage.

    Without a pattern, the hook logs `weight_norm/global`, the norm over all weights. With a
    pattern, it logs `weight_norm/<path>` for each matching weight.

    Args:
        pattern: A regular expression that is searched for in variable paths.
        histograms: Whether to also log `weights/<path>`, a histogram of each weight.
        every_n_steps: The interval.
    """

    def __init__(
        self, pattern: str | None = None, histograms: bool = False, every_n_steps: int = 100
    ) -> None:
        self.every_n_steps = every_n_steps
        self._pattern = pattern
        self._histograms = histograms

    def before_train(self) -> None:
        self._weights()

    def after_step(self) -> None:
        storage = self.controller.storage
        weights = self._weights()
        squares = {path: _sum_of_squares(weight) for path, weight in weights.items()}
        if self._pattern is None:
            squares = {"global": tf.add_n(list(squares.values()))}
        for path, square in squares.items():
            storage.put_scalar(f"weight_norm/{path}", float(tf.sqrt(square)), smoothing_hint=False)
        if self._histograms:
            for path, weight in weights.items():
                storage.put_histogram(f"weights/{path}", tf.convert_to_tensor(weight).numpy())

    def _weights(self) -> dict[str, Any]:
        model = runner.model_of(self.trainer)
        if model is None:
            raise errors.ConfigValueError(
                f"{type(self.trainer).__name__} has no `model`, so WeightNorms has no weights to "
                "measure. Set this attribute, or remove the hook."
            )
        pairs = [(keras_variables.path_of(weight), weight) for weight in model.trainable_variables]
        found = [(path, w) for path, w in pairs if re.search(self._pattern or "", path)]
        if not found:
            raise _no_match(self, self._pattern, [path for path, _ in pairs])
        # Weights of two functional models may have the same path.
        names = nested_dict.unique_keys([path for path, _ in found])
        return dict(zip(names, [weight for _, weight in found], strict=True))


def _no_match(hook: Hook, pattern: str | None, paths: Iterable[str]) -> errors.ConfigValueError:
    return errors.ConfigValueError(
        f"{type(hook).__name__}: no trainable weight matches {pattern!r}. "
        + suggestions.did_you_mean(pattern or "", paths)
    )


def _sum_of_squares(weight: keras.Variable | tf.Variable) -> tf.Tensor:
    # Compute in float32, because squares overflow in half precision.
    return tf.reduce_sum(tf.square(tf.cast(tf.convert_to_tensor(weight), tf.float32)))


class GradientNorm(GraphHook):
    """Logs the L2 norm of the gradients of each update to the event storage.

    `gradient_norm` covers all variables, and `gradient_norm/<path>` covers a single variable. The
    gradients are those of the whole update: summed over replicas, averaged over micro-batches,
    without the loss scale, and not yet clipped. A report contains the mean over the updates in its
    interval, so a single spike shows at full height only with a `log_interval` of 1. Updates that
    loss scaling skips are not counted. If there are several optimizers, each makes its own update.
    The optimizers of a `keras.optimizers.MultiOptimizer` make one update together.

    Args:
        histograms: Whether to also log `gradients/<path>`, a histogram of each gradient.
        pattern: A regular expression that is searched for in variable paths. Norms and histograms
            of single variables are limited to matching variables. If `histograms` is false, a
            pattern implies `per_variable=True`.
        per_variable: Whether to also log the norm of each variable's gradient.
    """

    takes_rows = True

    def __init__(
        self, histograms: bool = False, pattern: str | None = None, per_variable: bool = False
    ) -> None:
        self._histograms = histograms
        self._pattern = re.compile(pattern or "")
        self._per_variable = per_variable or (pattern is not None and not histograms)

    def before_train(self) -> None:
        model = runner.model_of(self.trainer)
        if not self._pattern.pattern or model is None:
            return
        paths = [keras_variables.path_of(variable) for variable in model.trainable_variables]
        if not any(self._pattern.search(path) for path in paths):
            raise _no_match(self, self._pattern.pattern, paths)

    def on_gradients(self, grads_and_vars: Sequence[tuple[Any, Any]]) -> None:
        # Compute in float32, because squares overflow in half precision.
        gradients = [tf.cast(self._numbers(g), tf.float32) for g, _ in grads_and_vars]
        telemetry.put_scalar("gradient_norm", tf.linalg.global_norm(gradients))
        for gradient, (_, variable) in zip(gradients, grads_and_vars, strict=True):
            if self._pattern.search(keras_variables.path_of(variable)):
                self._put(keras_variables.path_of(variable), gradient)

    def _numbers(self, gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
        is_of_rows = isinstance(gradient, tf.IndexedSlices) and not self._histograms
        return gradient.values if is_of_rows else tf.convert_to_tensor(gradient)

    def _put(self, path: str, gradient: tf.Tensor) -> None:
        if self._per_variable:
            telemetry.put_scalar(f"gradient_norm/{path}", tf.norm(gradient))
        if self._histograms:
            telemetry.put_histogram(f"gradients/{path}", _of_first_replica(gradient))


def _of_first_replica(values: tf.Tensor) -> tf.Tensor:
    """Return the values on the first replica, and NaN, which histograms ignore, on the others."""
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return values
    return tf.where(tf.equal(replica.replica_id_in_sync_group, 0), values, math.nan)


class MemoryStats(Hook):
    """Logs the memory use of this process and its GPUs to the event storage, in MiB.

    The names are `memory/rss_mib` and `memory/peak_rss_mib` for this process (Linux only), and
    `memory/<device>_mib` and `memory/peak_<device>_mib` for each GPU.

    With several workers, only the chief's values are written.

    Args:
        every_n_steps: The interval.
    """

    def __init__(self, every_n_steps: int = 100) -> None:
        self.every_n_steps = every_n_steps

    def after_step(self) -> None:
        for name, mib in {**_process_memory(), **_device_memory()}.items():
            self.controller.storage.put_scalar(name, mib, smoothing_hint=False)


def _process_memory() -> dict[str, float]:
    if not _PROCESS_STATUS.exists():
        return {}
    lines = (line.partition(":") for line in _PROCESS_STATUS.read_text().splitlines())
    kib = {field: value for field, _, value in lines if field in _MEMORY_FIELDS}
    return {_MEMORY_FIELDS[field]: int(value.split()[0]) / 1024 for field, value in kib.items()}


def _device_memory() -> dict[str, float]:
    figures: dict[str, float] = {}
    for device in tf.config.list_logical_devices("GPU"):
        name = device.name.removeprefix("/device:")
        info = tf.config.experimental.get_memory_info(name)
        label = name.replace(":", "_").lower()
        figures[f"memory/{label}_mib"] = info["current"] / _MIB
        figures[f"memory/peak_{label}_mib"] = info["peak"] / _MIB
    return figures


class GraphSummary(Hook):
    """Writes the graph of the compiled training loop, for TensorBoard's Graphs page.

    The graph is written after the first step of each start. If nothing is compiled, the hook logs a
    warning.

    Args:
        directory: The output directory, relative to the run's `model_dir` unless it is absolute. It
            must not contain other event files, because TensorBoard reads the files of a directory
            one after another.
    """

    def __init__(self, directory: str = "graph") -> None:
        self._directory = directory
        self._first_step = _FirstStep()

    def build_trigger(self) -> triggers.Trigger:
        return self._first_step

    def before_train(self) -> None:
        output_directory(self, self._directory)
        self._first_step.is_over = False

    def after_step(self) -> None:
        self._first_step.is_over = True
        if directories.is_chief(self.controller.strategy):
            self._write()

    def _write(self) -> None:
        loop: Any = getattr(self.trainer, "train_loop", None)
        functions = [] if loop is None else loop.trace()
        if not functions:
            logging.warning(
                "GraphSummary writes no graph, because no training loop is compiled. Compile the "
                "loop (`trainer.train_tf_function=true`, or `use_tf_function=True` of Orbit), or "
                "remove the hook."
            )
            return
        writer = tf.summary.create_file_writer(output_directory(self, self._directory))
        # Write the graph even if an outer `tf.summary.record_if` disables summaries at this step.
        with writer.as_default(), tf.summary.record_if(True):
            tf.summary.graph(functions[0].graph)
        writer.close()


class _FirstStep(triggers.Trigger):
    """A trigger that is due only at the first step, after which its hook sets `is_over`."""

    def __init__(self) -> None:
        self.is_over = False

    def next_step(self, step: int) -> float:
        return math.inf if self.is_over else step + 1

    def is_due(self, step: int) -> bool:
        return not self.is_over


class Profiler(Hook):
    """Runs TensorFlow's profiler over selected steps, for TensorBoard's Profile page.

    The compiled loop stops only where a profile begins and ends. If another profiler session is
    active, the hook skips the profile with a warning.

    Args:
        start_step: The number of completed steps at which the profile begins. The first steps
            include compilation.
        num_steps: The number of steps to profile.
        at_steps: Several start steps, which replace `start_step`.
        directory: The output directory, relative to the run's `model_dir` unless it is absolute.

    Raises:
        errors.ConfigValueError: A number is out of range, or two profiles overlap.
    """

    def __init__(
        self,
        start_step: int = 10,
        num_steps: int = 10,
        at_steps: Sequence[int] | None = None,
        directory: str = "profile",
    ) -> None:
        starts = sorted({start_step} if at_steps is None else set(at_steps))
        gaps = [after - before for before, after in itertools.pairwise(starts)]
        if num_steps < 1 or min(starts, default=0) < 0 or min(gaps, default=num_steps) < num_steps:
            raise errors.ConfigValueError(
                f"Profiler can't profile {num_steps} steps from each of the start steps {starts}. "
                "Expected at least one step, start steps that are not negative, and profiles that "
                "don't overlap."
            )
        self._starts = starts
        self._num_steps = num_steps
        self._directory = directory
        self._is_active = False

    def build_trigger(self) -> triggers.Trigger:
        return triggers.AtSteps([*self._starts, *self._stops()])

    def before_train(self) -> None:
        output_directory(self, self._directory)
        if any(start <= self.controller.step < start + self._num_steps for start in self._starts):
            self._start()

    def after_step(self) -> None:
        if self.controller.step in self._stops():
            self._stop()
        if self.controller.step in self._starts:
            self._start()

    def after_train(self, success: bool) -> None:
        self._stop()

    def _stops(self) -> list[int]:
        return [start + self._num_steps for start in self._starts]

    def _start(self) -> None:
        if self._is_active or not directories.is_chief(self.controller.strategy):
            return
        directory = output_directory(self, self._directory)
        try:
            tf.profiler.experimental.start(directory)
        except tf.errors.AlreadyExistsError:
            logging.warning(
                "Skipping the profile at step %d, because another profiler session is active.",
                self.controller.step,
            )
            return
        self._is_active = True
        logging.info("Profiling %d steps into %s.", self._num_steps, directory)

    def _stop(self) -> None:
        if not self._is_active:
            return
        self._is_active = False
        try:
            tf.profiler.experimental.stop()
        except tf.errors.UnavailableError:
            logging.warning(
                "The profiler was stopped by other code before step %d.", self.controller.step
            )


class InputWait(Hook):
    """Logs the time spent waiting for data to the event storage, every `every_n_steps` steps.

    * `input_wait_share`: the fraction of the time in the compiled loop that was spent in
      `next(iterator)`;
    * `input_wait_seconds`: the same time in seconds per step.

    The goodput of the run counts this time as `waiting_for_input`; see `common.goodput`.

    The first `every_n_steps` steps of a run are skipped, because they include compilation. After a
    recovery, the steps up to the next multiple are also skipped. The share is an upper bound on the
    time that a faster input pipeline could save. On accelerators, where the host runs ahead of the
    device, the actual saving can be smaller, because the device may still be busy while the host
    waits.

    The time is measured inside the compiled loop, around each `next`, which adds two clock reads
    and an addition (a few microseconds). If several iterators are read at the same time, their
    times add up, to a share of at most 1. If the hook cannot instrument the training step, it warns
    and logs nothing. This is the case for a trainer that is not a `StandardTrainer`, for parameter
    servers, and for a step that does not call `next`.

    Args:
        threshold: A share above this value causes a single warning with advice.
        every_n_steps: The interval.
    """

    def __init__(self, threshold: float = 0.3, every_n_steps: int = 100) -> None:
        self.every_n_steps = every_n_steps
        self._threshold = threshold
        self._clock: _WaitClock | None = None
        self._timed_trainer: Any = None
        self._last: _WaitMark | None = None
        self._has_warned = False

    def before_train(self) -> None:
        self._last = None
        if not isinstance(self.trainer, standard_runner.StandardTrainer):
            self._warn(f"{type(self.trainer).__name__} is not a `StandardTrainer`")
        elif isinstance(self.controller.strategy, tf.distribute.ParameterServerStrategy):
            self._warn("the steps run on the workers of a `ParameterServerStrategy`")
        elif self._timed_trainer is not self.trainer:
            self._clock = _WaitClock()
            self._timed_trainer = self.trainer
            self.trainer.wrap_train_fetch(self._clock.timing)

    def detach(self) -> None:
        super().detach()
        self._clock = self._timed_trainer = None

    def after_restore(self) -> None:
        # Discard the mark, because the goodput already counts the time since the checkpoint as
        # lost, including the waits. Set no new mark here, because recovery may still repeat steps;
        # the next `after_step` sets it.
        self._last = None

    def after_step(self) -> None:
        if self._clock is None:
            return
        last, self._last = self._last, self._mark(self._clock)
        if self._last.fetches == 0:
            self._warn(f"`{type(self.trainer).__name__}.train_step` does not call `next(iterator)`")
            return
        if last is not None:
            goodput.current().add_input_wait(self._last.waited - last.waited)
        # If the step has not increased since the last call, a checkpoint has been restored.
        if last is not None and self._last.step > last.step:
            self._report(last, self._last)

    def _mark(self, clock: "_WaitClock") -> "_WaitMark":
        waited, fetches = clock.read()
        return _WaitMark(
            step=self.controller.step,
            waited=waited,
            fetches=fetches,
            train_seconds=self.controller.train_seconds,
        )

    def _report(self, last: "_WaitMark", now: "_WaitMark") -> None:
        waited = now.waited - last.waited
        share = min(waited / max(now.train_seconds - last.train_seconds, 1e-9), 1.0)
        storage = self.controller.storage
        storage.put_scalar("input_wait_share", share)
        storage.put_scalar("input_wait_seconds", waited / (now.step - last.step))
        if share > self._threshold and not self._has_warned:
            self._has_warned = True
            logging.warning(_ADVICE, 100 * share, last.step, now.step)

    def _warn(self, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            logging.warning(
                "`InputWait` can't measure the time spent waiting for data: %s.", reason
            )


_ADVICE = (
    "%.0f %% of the training time from step %d to step %d was spent waiting for data. To speed up "
    "the input, set `cache: true` in `task.train_data` if the data fit into memory, or increase "
    "`prefetch_buffer_size` and `cycle_length`. In the pipeline, use `map(..., "
    "num_parallel_calls=tf.data.AUTOTUNE)`, batch before a cheap `map`, avoid Python code "
    "(`tf.py_function`, generators), and read fewer and larger files. To use more machines, use "
    "the tf.data service."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _WaitMark:
    """The readings of a `_WaitClock` at a step, and the time spent in training steps so far."""

    step: int
    waited: float
    fetches: float
    train_seconds: float


class _WaitClock:
    """A clock that adds up the seconds spent in calls of `next` and counts the calls."""

    def __init__(self) -> None:
        # Create the variable outside of the step, once for all replicas, on the host that reads
        # the data.
        with tf.device("CPU:0"):
            self._sums = tf.Variable([0.0, 0.0], dtype=tf.float64, trainable=False)

    def timing(self, step_fn: loop_fns.StepFn) -> loop_fns.StepFn:
        """Return a step function that runs `step_fn` with iterators timed by this clock."""

        def timed_step(iterator: Iterator[nests.Nest]) -> Any:
            return step_fn(tf.nest.map_structure(self._timed, iterator))

        return timed_step

    def read(self) -> tuple[float, float]:
        seconds, calls = self._sums.numpy()
        return float(seconds), float(calls)

    def time(self, fetch: Callable[[], Any]) -> Any:
        # Each step begins only after the previous step has ended, so the measured time includes no
        # part of the previous step.
        started = tf.timestamp()
        with tf.control_dependencies([started]):
            batch = fetch()
        with tf.control_dependencies(nests.tensors_in(batch)):
            seconds = tf.timestamp() - started
        self._sums.assign_add(tf.stack([seconds, 1.0]))
        return batch

    def _timed(self, iterator: tf.data.Iterator) -> Any:
        return _TimedIterator(iterator, self)


class _TimedIterator:
    """An iterator wrapper that uses a clock to time each fetch.

    The class has no `__iter__`, because tracing a Python loop over the iterator would never end.
    """

    def __init__(self, iterator: tf.data.Iterator, clock: _WaitClock) -> None:
        self._iterator = iterator
        self._clock = clock

    @tf.autograph.experimental.do_not_convert
    def __next__(self) -> Any:
        return self._clock.time(lambda: next(self._iterator))

    @tf.autograph.experimental.do_not_convert
    def get_next(self) -> Any:
        return self._clock.time(self._iterator.get_next)

    @tf.autograph.experimental.do_not_convert
    def get_next_as_optional(self) -> Any:
        return self._clock.time(self._iterator.get_next_as_optional)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)
