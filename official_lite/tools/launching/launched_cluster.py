"""One start of a cluster: watches its processes, and ends all of them when one has failed."""

import contextlib
import signal
import time
from collections.abc import Iterator, Sequence
from types import FrameType

from official_lite.common import errors
from official_lite.tools.launching.launched_process import (
    LaunchedProcess,
    ProcessEnd,
    ProcessSpec,
    Role,
    say,
)

__all__ = ["LaunchedCluster", "Restarts"]

# What a process can be asked by, and what is passed on of it: a closed terminal is no reason to end
# without a save.
_SIGNALS = {
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGINT: signal.SIGINT,
    signal.SIGHUP: signal.SIGTERM,
}
_SECONDS_BETWEEN_LOOKS = 0.05

# A scheduler may send its signal to all processes, and a launcher pass it on.
_SECONDS_OF_ONE_WISH = 0.5


class Restarts:
    """How often something may be started again, all in all."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0

    def take(self) -> bool:
        """Whether one more is allowed; counts it then."""
        if self.taken >= self.most:
            return False
        self.taken += 1
        return True


class LaunchedCluster:
    """Runs the processes of a cluster until all trainers have ended, or one process has failed.

    ::

        cluster = LaunchedCluster(specs, restarts=Restarts(1), grace_secs=30)
        failure = cluster.run()      # None if all trainers have ended with 0

    Args:
        specs: The processes.
        restarts: How often a process that can be replaced may be; shared with other starts.
        grace_secs: What the others have to end by themselves, after one has failed.
    """

    def __init__(
        self, specs: Sequence[ProcessSpec], *, restarts: Restarts, grace_secs: float
    ) -> None:
        self._specs = specs
        self._restarts = restarts
        self._grace_secs = grace_secs
        self._width = max(spec.width for spec in specs)
        self._processes: list[LaunchedProcess] = []
        self._asked_time: float | None = None

    @property
    def was_asked_to_stop(self) -> bool:
        """Whether a signal has reached the launcher."""
        return self._asked_time is not None

    def run(self) -> ProcessEnd | None:
        """Starts the processes; returns when none is left.

        SIGTERM and SIGINT are passed on to all, and a second one kills them. No process may outlive
        the call, whatever ends it.

        Returns:
            The end of the process that failed first; None if all trainers have ended with 0.
        """
        with self._signals_passed_on():
            try:
                for spec in self._specs:
                    self._processes.append(LaunchedProcess(spec))
                failure = self._watch()
                if failure is not None:
                    self._wait_for_the_others(failure)
                return failure
            finally:
                for process in self._processes:
                    process.kill()
                for process in self._processes:
                    process.close()

    def _watch(self) -> ProcessEnd | None:
        while True:
            ends = [(process, process.end()) for process in self._processes]
            trainers = [end for process, end in ends if process.spec.role is Role.TRAINER]
            failures = [(process, end) for process, end in ends if end is not None and end.code]
            if all(end is not None and end.code == 0 for end in trainers):
                return None
            # Of two at once, the cause: a signal's victim before one that has noticed.
            for process, end in sorted(failures, key=lambda pair: _as_consequence(pair[1])):
                if not self._is_replaced(process, end):
                    return end
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _is_replaced(self, process: LaunchedProcess, end: ProcessEnd) -> bool:
        """Starts another process in the place of one that ended, if nobody minds."""
        if process.spec.role is not Role.REPLACEABLE or self.was_asked_to_stop:
            return False
        if not end.may_restart or not self._restarts.take():
            return False
        say(
            f"{end}. The others go on; restart {self._restarts.taken} of {self._restarts.most}.",
            self._width,
        )
        process.close()
        self._processes[self._processes.index(process)] = LaunchedProcess(process.spec)
        return True

    def _wait_for_the_others(self, failure: ProcessEnd) -> None:
        """Trainers notice that one is gone, and say how they end; servers are stopped after."""
        if self.was_asked_to_stop:
            say(f"{failure}, as asked by a signal.", self._width)
        else:
            say(f"{failure}, the first to fail. The others are stopped.", self._width)
        deadline = time.monotonic() + self._grace_secs
        trainers = [each for each in self._processes if each.spec.role is Role.TRAINER]
        while any(each.end() is None for each in trainers) and time.monotonic() < deadline:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        for process in trainers:
            if (end := process.end()) is None:
                say(f"{process.spec.name} has not ended by itself, and is killed.", self._width)
            elif end.name != failure.name:
                say(f"{end}.", self._width)

    @contextlib.contextmanager
    def _signals_passed_on(self) -> Iterator[None]:
        old = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if self._asked_time is None:
            self._asked_time = now
            for process in self._processes:
                if process.spec.role is Role.TRAINER:
                    process.send(_SIGNALS[signal.Signals(number)])
        elif now - self._asked_time > _SECONDS_OF_ONE_WISH:
            for process in self._processes:
                process.kill()


def _as_consequence(end: ProcessEnd) -> int:
    """How likely it is that another process' end has led to this one; for sorting."""
    if end.code < 0:
        return 0
    return 2 if end.code == errors.ExitCode.CLUSTER else 1
