"""Graceful stops on SIGTERM and SIGINT, which loops notice at their next step.

A signal handler in Python has to wait until compiled code returns. This module therefore uses
`signal.set_wakeup_fd`, with which the interpreter writes each signal to a pipe immediately, and
reads the pipe in a thread. The stop request is recorded, and a second signal ends the process,
regardless of what the main thread is doing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from absl import logging

from official_lite.common import errors, terminal, tf_config

if TYPE_CHECKING:
    import tensorflow as tf

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

# A launcher may forward a signal that the terminal has already sent to the whole process group.
# Signals within this time are therefore treated as one request.
SECONDS_OF_ONE_REQUEST = 0.5


@contextlib.contextmanager
def catch_signals() -> Iterator[None]:
    """Treat the first SIGTERM or SIGINT as a stop request; the second one ends the process.

    The previous handlers are restored on exit. A signal that is ignored stays ignored. This context
    has no effect outside the main thread, or inside another `catch_signals`.

    In an interactive session, a second SIGINT raises `KeyboardInterrupt`, which keeps the session
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
    """Return whether signals are currently caught."""
    return _watch is not None


def requested() -> signal.Signals | None:
    """Return the signal that has requested a stop; None if there was none."""
    return _watch.first if _watch is not None else None


def check() -> None:
    """Raise an error if a signal has requested a stop; for loops of a single process.

    Call it in the strategy's scope. This function does nothing if there are several workers,
    because none may stop on its own.

    Raises:
        errors.PreemptedError: If a stop was requested; a `StoppedByUserError` if it was by SIGINT.
    """
    if requested() is not None and not is_one_of_several():
        raise error_of(requested())


def error_of(asked: signal.Signals | None) -> errors.PreemptedError:
    """Return the error that a loop raises when a stop was requested."""
    name = (asked or signal.SIGTERM).name
    kind = errors.StoppedByUserError if asked == signal.SIGINT else errors.PreemptedError
    return kind(f"{name} stopped this run. Start the same command again to resume it.")


def is_one_of_several(strategy: tf.distribute.Strategy | None = None) -> bool:
    """Return whether this process is one of several workers, none of which may stop on its own.

    Only the workers of a `MultiWorkerMirroredStrategy` take their steps together. The chief of
    parameter servers may stop on its own, because the other processes only execute its commands.
    The other strategies do not use the cluster that TF_CONFIG may describe.

    Args:
        strategy: The strategy of the run. Defaults to the current strategy.
    """
    # A process that only lists or starts trials does not import TensorFlow.
    import tensorflow as tf

    strategy = strategy or tf.distribute.get_strategy()
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return False
    found = tf_config.read_tf_config()
    return found is not None and found.is_one_of_several_trainers


def rearm() -> None:
    """Install the handlers again, after libraries that may have installed their own."""
    if _watch is not None and threading.current_thread() is threading.main_thread():
        _watch.install()


class _Watch:
    """The signal handlers, the listening thread, and the first signal received."""

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
        # `getsignal` returns None for a handler that was not installed from Python and therefore
        # can't be restored.
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
            # Forked children that still run have copies of `sender`, so closing it would not end
            # the thread. A child that leaves this context must not end the thread of its parent.
            if _watch is self:
                sender.shutdown(socket.SHUT_WR)
            sender.close()
            thread.join()
            receiver.close()

    def install(self) -> None:
        for one in self._old_handlers:
            signal.signal(one, self._on_signal)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        """Raise `KeyboardInterrupt` if this is the second signal in an interactive session.

        Otherwise, do nothing. Without a handler, the signal would kill the process.
        """
        if not self._may_exit and self._is_second(number):
            raise KeyboardInterrupt

    def leave_forked_child(self) -> None:
        """Make SIGTERM end this process, which was forked while the signals were caught.

        The child has no listening thread, and its signals would go to the pipe of its parent, which
        would then stop. SIGINT has no effect in the child, because a terminal sends it to child
        processes as well, and the parent may need them until it has stopped. SIGTERM must end the
        child, because a process pool terminates its workers with SIGTERM and waits for them.
        """
        signal.set_wakeup_fd(-1)
        if signal.SIGTERM in self._old_handlers:
            signal.signal(signal.SIGTERM, self._old_handlers[signal.SIGTERM])

    def _listen(self, receiver: socket.socket) -> None:
        while received := receiver.recv(1):
            number = received[0]
            if number not in _SIGNALS:
                continue
            if self.first is None:
                self._first_time = time.monotonic()
                self.first = signal.Signals(number)
                logging.warning(
                    "%s: Stopping after the current step and saving the state. A second "
                    "signal stops the process immediately.",
                    self.first.name,
                )
            elif self._may_exit and self._is_second(number):
                os.write(sys.stderr.fileno(), b"Stopped immediately by a second signal.\n")
                os._exit(128 + number)

    def _is_second(self, number: int) -> bool:
        if self.first is None:
            return False
        return time.monotonic() - self._first_time > SECONDS_OF_ONE_REQUEST


_watch: _Watch | None = None


def _after_fork_in_child() -> None:
    global _watch
    if _watch is not None:
        _watch.leave_forked_child()
        _watch = None


os.register_at_fork(after_in_child=_after_fork_in_child)


def _is_interactive() -> bool:
    return hasattr(sys, "ps1") or terminal.ipython_shell() is not None


# Reading a flag in every step of a compiled loop makes short steps 7% to 17% slower. A loop that is
# split into slices is as fast as an unsplit loop.
_SECONDS_PER_SLICE = 0.5

_MAX_GROWTH = 10


class StopCheck:
    """A check for stop requests between the slices into which it splits training loops.

    All workers check at the same steps and agree on whether to stop. They therefore stop at the
    same step, whichever of them received the signal. If signals are not caught, loops are not
    split.

    Args:
        strategy: The strategy whose workers have to agree.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        # The number of steps between two checks, and the step of the next check.
        self._length = 1
        self._due = 0
        self._seconds = 0.0
        self._agreed: signal.Signals | None = None
        self._sum: Callable[[Sequence[float]], Any] | None = None

    def slices(self, start: int, stop: int, is_splittable: bool) -> Iterator[tuple[int, int]]:
        """Yield the start and end of each slice; run each slice before requesting the next one.

        Raises:
            errors.PreemptedError: If a stop was requested, between two slices.
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
        """Raise an error if a stop was requested; call this method between two loops.

        Raises:
            errors.PreemptedError: If a stop was requested.
        """
        asked = self._agreed if self._has_other_workers() else requested()
        if asked is not None:
            raise error_of(asked)

    def _next_look(self, step: int) -> int:
        # `_due` is out of date when a new training run starts or a checkpoint is restored.
        if not step < self._due <= step + self._length:
            self._due = step + self._length
        return self._due

    def _look(self, step: int) -> None:
        if self._has_other_workers():
            self._agree()
        # Choose a length with which the next slice takes about `_SECONDS_PER_SLICE`. The limit
        # keeps a slice that happens to be fast from making the next one far too long.
        growth = min(_MAX_GROWTH, _SECONDS_PER_SLICE / max(self._seconds, 1e-9))
        self._length = max(1, int(self._length * growth))
        self._due, self._seconds = step + self._length, 0.0

    def _has_other_workers(self) -> bool:
        return is_caught() and is_one_of_several(self._strategy)

    def _agree(self) -> None:
        """Agree with all workers on the requested stop, and on the average duration of a slice."""
        self._sum = self._sum or _create_sum(self._strategy)
        votes = [float(requested() == one) for one in _SIGNALS]
        *votes, seconds, replicas = self._sum([*votes, self._seconds, 1.0])
        self._agreed = next((one for one, vote in zip(_SIGNALS, votes, strict=True) if vote), None)
        self._seconds = float(seconds / replicas)


def _create_sum(strategy: tf.distribute.Strategy) -> Callable[[Sequence[float]], Any]:
    """Create a function that sums values over the replicas of all workers."""
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec([4], tf.float32)])
    def add_all(values: tf.Tensor) -> tf.Tensor:
        # `tf.identity` copies the values to each device.
        of_replicas = strategy.run(tf.identity, args=(values,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, of_replicas, axis=None)

    def run(values: Sequence[float]) -> Any:
        return add_all(tf.constant(values)).numpy()

    return run
