"""A hook that measures how much of the training time is spent waiting for data."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from official_lite.common import goodput, nests
from official_lite.orbit import standard_runner
from official_lite.orbit.hooks.hook import Hook
from official_lite.orbit.utils import loop_fns


class InputWait(Hook):
    """Logs the time spent waiting for data to the event storage, every `every_n_steps` steps.

    * `input_wait_share`: the fraction of the time in the compiled loop that was spent in
      `next(iterator)`;
    * `input_wait_seconds`: the same time in seconds per step.

    The goodput of the run counts this time as `waiting_for_input`; see `common.goodput`.

    The first `every_n_steps` steps of a run are skipped because they include compilation. The share
    is an upper bound on the time that a faster input pipeline could save. On accelerators, where
    the host runs ahead of the device, the actual saving can be smaller, because the device may
    still be busy while the host waits.

    The time is measured inside the compiled loop, around each `next`, which adds two clock reads
    and an addition (some microseconds). If several iterators are read at the same time, their times
    add up, to a share of at most 1. If the hook cannot instrument the training step, it warns and
    logs nothing. This is the case for a trainer that is not a `StandardTrainer`, for parameter
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
        self._last: _Mark | None = None
        self._has_warned = False

    def before_train(self) -> None:
        self._last = None
        if not isinstance(self.trainer, standard_runner.StandardTrainer):
            self._warn(f"{type(self.trainer).__name__} is not a `StandardTrainer`")
        elif isinstance(self.controller.strategy, tf.distribute.ParameterServerStrategy):
            self._warn("the steps run on the workers of a parameter server")
        elif self._timed_trainer is not self.trainer:
            self._clock = _WaitClock()
            self._timed_trainer = self.trainer
            self.trainer.wrap_train_step(self._clock.timing)

    def after_step(self) -> None:
        if self._clock is None:
            return
        last, self._last = self._last, self._mark(self._clock)
        if self._last.fetches == 0:
            self._warn(f"`{type(self.trainer).__name__}.train_step` does not call `next(iterator)`")
            return
        if last is not None:
            goodput.current().add_input_wait(self._last.waited - last.waited)
        # At an older step, a checkpoint has been restored in between.
        if last is not None and self._last.step > last.step:
            self._report(last, self._last)

    def _mark(self, clock: "_WaitClock") -> "_Mark":
        waited, fetches = clock.read()
        return _Mark(
            step=self.controller.step,
            waited=waited,
            fetches=fetches,
            train_seconds=self.controller.train_seconds,
        )

    def _report(self, last: "_Mark", now: "_Mark") -> None:
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
            logging.warning("InputWait can't measure the time spent waiting for data: %s.", reason)


_ADVICE = (
    "%.0f %% of the training time from step %d to step %d was spent waiting for data. To speed up "
    "the input, set `cache: true` in `task.train_data` if the data fit into memory, or increase "
    "`prefetch_buffer_size` and `cycle_length`. In the pipeline, use `map(..., "
    "num_parallel_calls=tf.data.AUTOTUNE)`, batch before a cheap `map`, avoid Python code "
    "(`tf.py_function`, generators), and read fewer and larger files. To use more machines, use "
    "the tf.data service."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Mark:
    """The clock readings at a step."""

    step: int
    waited: float
    fetches: float
    train_seconds: float


class _WaitClock:
    """Accumulates the seconds spent in `next` and counts the calls."""

    def __init__(self) -> None:
        # Beside the step, not in it: one for all replicas, on the host that reads the data.
        with tf.device("CPU:0"):
            self._sums = tf.Variable([0.0, 0.0], dtype=tf.float64, trainable=False)

    def timing(self, step_fn: loop_fns.StepFn) -> loop_fns.StepFn:
        """Return the step with its iterators timed by this clock."""

        def timed_step(iterator: Iterator[nests.Nest]) -> Any:
            return step_fn(tf.nest.map_structure(self._timed, iterator))

        return timed_step

    def read(self) -> tuple[float, float]:
        seconds, calls = self._sums.numpy()
        return float(seconds), float(calls)

    def time(self, fetch: Callable[[], Any]) -> Any:
        # A step begins when all of the step before has run, so `started` is never too early.
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
    """An iterator with a clock that times each fetch.

    It has no `__iter__`, because a Python loop over it would never end in a graph.
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
