"""A hook that reports the duration of steps and epochs, and the estimated end of the run."""

import dataclasses
import datetime
import time

from absl import logging

from official_lite.orbit import triggers
from official_lite.orbit.hooks.hook import Hook


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

    The hook reads the clock whenever the loop stops for any other reason.

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
        # Every 0 seconds is every time that the loop stops for someone.
        return triggers.AnyOf(
            [triggers.every(self.every_n_steps), self._epoch_trigger(), triggers.EverySeconds(0)]
        )

    def before_train(self) -> None:
        self._warm = None
        self._start = self._now = self._reported = self._epoch_start = self._mark()

    def after_step(self) -> None:
        self._now = self._mark()
        if self._epoch_trigger().is_due(self._now.step):
            self._report_epoch()
        if self._warm is None:
            self._end_warmup(since=self._start or self._now)
        elif triggers.every(self.every_n_steps).is_due(self._now.step):
            self._report_pace(self._warm)

    def after_train(self, success: bool) -> None:
        if self._start is None:
            return
        # A short run may have nothing but its warm-up.
        is_warm = self._warm is not None and self._warm.step < self._now.step
        self._log_pace(self._warm if self._warm is not None and is_warm else self._start)
        end = self._mark()
        total = end.seconds - self._start.seconds
        between = total - (end.train_seconds - self._start.train_seconds)
        logging.info(
            "total %s (%s on hooks, evaluations and checkpoints)",
            _in_words(total),
            _in_words(between),
        )

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
    """The clock readings at a step: wall time, and time spent in training steps only."""

    step: int
    seconds: float
    train_seconds: float


def _in_words(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.3g} s"
    return str(datetime.timedelta(seconds=round(seconds)))
