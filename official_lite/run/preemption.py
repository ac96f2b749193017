"""SIGTERM and SIGINT as a wish to stop, which loops see at their next step.

A handler in Python has to wait for compiled code to return. What the operating system writes into
a pipe at once (`signal.set_wakeup_fd`) is read by a thread here, so that the wish is known, and the
second signal ends the process, whatever the main thread is doing.
"""

import builtins
import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from official_lite.cluster import tf_config
from official_lite.common import errors

__all__ = [
    "catch_signals",
    "check",
    "error_of",
    "is_caught",
    "is_one_of_several",
    "rearm",
    "requested",
    "StopCheck",
]


_SIGNALS = (signal.SIGTERM, signal.SIGINT)

# A launcher may pass on what the terminal has sent to the whole group of processes.
_SECONDS_OF_ONE_WISH = 0.5


@contextlib.contextmanager
def catch_signals() -> Iterator[None]:
    """Within it, the first SIGTERM or SIGINT is a wish to stop; the second ends the process.

    The handlers that were there come back afterwards. A signal that is ignored stays so. Does
    nothing outside of the main thread, or within another one of its kind.

    In an interactive session the second SIGINT is a `KeyboardInterrupt`, which leaves the session
    alive.
    """
    global _watch
    if _watch is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    _watch = _Watch()
    try:
        with _watch.installed():
            yield
    finally:
        _watch = None


def is_caught() -> bool:
    """Whether signals are caught now."""
    return _watch is not None


def requested() -> signal.Signals | None:
    """The signal that has asked to stop; None if none has."""
    return _watch.first if _watch is not None else None


def check() -> None:
    """For loops of a single process: raises if a signal has asked to stop.

    Of several workers none may leave on its own: there it does nothing.

    Raises:
      errors.PreemptedError: One has; a `StoppedByUserError` if it was SIGINT.
    """
    if requested() is not None and not is_one_of_several():
        raise error_of(requested())


def error_of(asked: signal.Signals | None) -> errors.PreemptedError:
    """What a loop that was asked to stop ends with."""
    name = (asked or signal.SIGTERM).name
    kind = errors.StoppedByUserError if asked == signal.SIGINT else errors.PreemptedError
    return kind(f"{name} has ended this run. The same command goes on with it.")


def is_one_of_several() -> bool:
    """Whether this process trains together with others, of which none may leave on its own.

    The chief of parameter servers may: the others do nothing but what it says.
    """
    found = tf_config.read_tf_config()
    return found is not None and found.num_workers > 1 and "ps" not in found.jobs


def rearm() -> None:
    """Puts the handlers in place again, after libraries that may have put in their own."""
    if _watch is not None and threading.current_thread() is threading.main_thread():
        _watch.install()


class _Watch:
    """The handlers, the thread, and what has come so far."""

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self._first_time = 0.0
        self._may_exit = not _is_interactive()
        self._old_handlers: dict[signal.Signals, Any] = {}

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        receiver, sender = socket.socketpair()
        sender.setblocking(False)
        thread = threading.Thread(
            target=self._listen, args=(receiver,), name="stop signals", daemon=True
        )
        thread.start()
        handlers = {one: signal.getsignal(one) for one in _SIGNALS}
        # None is a handler that Python does not know, and could not put back.
        self._old_handlers = {
            one: old for one, old in handlers.items() if old not in (None, signal.SIG_IGN)
        }
        self.install()
        old_fd = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(old_fd)
            for one, old in self._old_handlers.items():
                signal.signal(one, old)
            sender.close()
            thread.join()
            receiver.close()

    def install(self) -> None:
        for one in self._old_handlers:
            signal.signal(one, self._on_signal)

    def _on_signal(self, number: int, _: Any) -> None:
        """Called in the main thread, sooner or later; without it the signal would kill."""
        if not self._may_exit and self._is_second(number):
            raise KeyboardInterrupt

    def _listen(self, receiver: socket.socket) -> None:
        while received := receiver.recv(1):
            number = received[0]
            if number not in _SIGNALS:
                continue
            if self.first is None:
                self._first_time = time.monotonic()
                self.first = signal.Signals(number)
                logging.warning(
                    "%s: this run stops at its next step, and saves. A second one ends it at once.",
                    self.first.name,
                )
            elif self._may_exit and self._is_second(number):
                os.write(sys.stderr.fileno(), b"Ended at once, by a second signal.\n")
                os._exit(128 + number)

    def _is_second(self, number: int) -> bool:
        if self.first is None:
            return False
        return time.monotonic() - self._first_time > _SECONDS_OF_ONE_WISH


_watch: _Watch | None = None


def _is_interactive() -> bool:
    return hasattr(sys, "ps1") or hasattr(builtins, "get_ipython")


# A loop that reads a flag in every step is 7 to 17 % slower where steps are short; one that is cut
# is as fast as one that is not.
_SECONDS_PER_SLICE = 0.5

_MOST_GROWTH = 10


class StopCheck:
    """Cuts the stretches of a training into slices, and looks for a signal between them.

    All workers of a training look at the same steps, and agree on whether to stop: then they stop
    at the same one, whichever of them was asked. Where signals are not caught, nothing is cut.

    Args:
      strategy: Whose workers have to agree.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        # The steps from one look to the next, and the one at which it comes.
        self._length = 1
        self._due = 0
        self._seconds = 0.0
        self._agreed: signal.Signals | None = None
        self._sum: Callable[[tf.Tensor], Any] | None = None

    def slices(self, start: int, stop: int, is_splittable: bool) -> Iterator[tuple[int, int]]:
        """The beginning and the end of each slice; each is to be run before the next is asked for.

        Raises:
          errors.PreemptedError: It is time to stop, between two slices.
        """
        if not is_caught():
            yield start, stop
            return
        while start < stop:
            end = min(stop, self._next_look(start)) if is_splittable else stop
            started = time.monotonic()
            yield start, end
            self._seconds += time.monotonic() - started
            if end == self._due or not is_splittable:
                self._look(end)
            if end < stop:
                self.check()
            start = end

    def check(self) -> None:
        """For between two stretches.

        Raises:
          errors.PreemptedError: It is time to stop.
        """
        asked = self._agreed if self._has_other_workers() else requested()
        if asked is not None:
            raise error_of(asked)

    def _next_look(self, step: int) -> int:
        # Neither in a new training nor after going back to a checkpoint it is where it should be.
        if not step < self._due <= step + self._length:
            self._due = step + self._length
        return self._due

    def _look(self, step: int) -> None:
        if self._has_other_workers():
            self._agree()
        # The first step is traced and compiled, so the first slices say little.
        growth = min(_MOST_GROWTH, _SECONDS_PER_SLICE / max(self._seconds, 1e-9))
        self._length = max(1, int(self._length * growth))
        self._due, self._seconds = step + self._length, 0.0

    def _has_other_workers(self) -> bool:
        is_several = isinstance(self._strategy, tf.distribute.MultiWorkerMirroredStrategy)
        return is_several and is_caught() and is_one_of_several()

    def _agree(self) -> None:
        """On what any of the workers was asked, and on the time that steps take."""
        self._sum = self._sum or _create_sum(self._strategy)
        votes = [float(requested() == one) for one in _SIGNALS]
        *votes, seconds, replicas = self._sum(tf.constant([*votes, self._seconds, 1.0]))
        self._agreed = next((one for one, vote in zip(_SIGNALS, votes, strict=True) if vote), None)
        self._seconds = float(seconds / replicas)


def _create_sum(strategy: tf.distribute.Strategy) -> Callable[[tf.Tensor], Any]:
    """The sum over the replicas of all workers."""

    @tf.function(input_signature=[tf.TensorSpec([4], tf.float32)])
    def add_all(values: tf.Tensor) -> tf.Tensor:
        # A copy of its own on each device.
        of_replicas = strategy.run(tf.identity, args=(values,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, of_replicas, axis=None)

    def run(values: tf.Tensor) -> Any:
        return add_all(values).numpy()

    return run
