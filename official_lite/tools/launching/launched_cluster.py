"""One start of a cluster, which stops all of its processes when one fails."""

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

# Signals handled by the launcher, and the signals it forwards. SIGHUP becomes SIGTERM, so that a
# closed terminal does not end the processes without a save.
_SIGNALS = {
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGINT: signal.SIGINT,
    signal.SIGHUP: signal.SIGTERM,
}
_SECONDS_BETWEEN_LOOKS = 0.05

# A scheduler may send its signal to all processes while a launcher forwards it as well. Signals
# within this time count as one.
_SECONDS_OF_ONE_WISH = 0.5


class Restarts:
    """The total number of restarts that are allowed and taken."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0

    def take(self) -> bool:
        """Return whether another restart is allowed, and count it if so."""
        if self.taken >= self.most:
            return False
        self.taken += 1
        return True


class LaunchedCluster:
    """Runs the processes of a cluster until all trainers have ended or one process has failed.

    ::

        cluster = LaunchedCluster(specs, restarts=Restarts(1), grace_secs=30)
        failure = cluster.run()      # None if all trainers have ended with 0

    Attributes:
        reached_limit: Whether the cluster was asked to stop because it has run for `most_secs`.

    Args:
        specs: The processes to start.
        restarts: How often replaceable processes may be replaced; shared with other starts.
        grace_secs: How long the other processes may take to end after one has failed, in seconds.
        most_secs: How long the cluster may run before it is asked to save and stop, in seconds;
            None sets no limit.
    """

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        *,
        restarts: Restarts,
        grace_secs: float,
        most_secs: float | None = None,
    ) -> None:
        self._specs = specs
        self._restarts = restarts
        self._grace_secs = grace_secs
        self._width = max(spec.width for spec in specs)
        self._processes: list[LaunchedProcess] = []
        self._asked_time: float | None = None
        self._deadline = None if most_secs is None else time.monotonic() + most_secs
        self.reached_limit = False

    @property
    def was_asked_to_stop(self) -> bool:
        """Whether the launcher has received a signal."""
        return self._asked_time is not None

    def run(self) -> ProcessEnd | None:
        """Start the processes and return when all have ended.

        Signals are forwarded to the trainers, and a second one kills all processes. No process
        outlives this call, even if it raises.

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
            # If several failed at once, report the cause: a process killed by a signal before one
            # that lost its peer.
            for process, end in sorted(failures, key=lambda pair: _as_consequence(pair[1])):
                if not self._is_replaced(process, end):
                    return end
            if self._deadline is not None and time.monotonic() > self._deadline:
                self._deadline, self.reached_limit = None, True
                self._send_to_trainers(signal.SIGTERM)
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _is_replaced(self, process: LaunchedProcess, end: ProcessEnd) -> bool:
        """Replace a process that has ended, if allowed, and return whether it was replaced."""
        if process.spec.role is not Role.REPLACEABLE or self.was_asked_to_stop:
            return False
        if not end.may_restart or not self._restarts.take():
            return False
        say(
            f"{end}. The other processes continue; restart {self._restarts.taken} of "
            f"{self._restarts.most}.",
            self._width,
        )
        process.close()
        self._processes[self._processes.index(process)] = LaunchedProcess(process.spec)
        return True

    def _wait_for_the_others(self, failure: ProcessEnd) -> None:
        """Wait for trainers to notice the failure and end; servers are stopped afterwards."""
        if self.was_asked_to_stop or self.reached_limit:
            say(f"{failure} after a signal.", self._width)
        else:
            say(f"{failure} first. Stopping the other processes.", self._width)
        deadline = time.monotonic() + self._grace_secs
        trainers = [each for each in self._processes if each.spec.role is Role.TRAINER]
        while any(each.end() is None for each in trainers) and time.monotonic() < deadline:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        for process in trainers:
            if (end := process.end()) is None:
                say(f"{process.spec.name} did not stop in time. Killing it.", self._width)
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
            self._send_to_trainers(_SIGNALS[signal.Signals(number)])
        elif now - self._asked_time > _SECONDS_OF_ONE_WISH:
            for process in self._processes:
                process.kill()

    def _send_to_trainers(self, number: signal.Signals) -> None:
        for process in self._processes:
            if process.spec.role is Role.TRAINER:
                process.send(number)


def _as_consequence(end: ProcessEnd) -> int:
    """Return a sort key: how likely the end of another process has caused this one."""
    if end.code < 0:
        return 0
    return 2 if end.code == errors.ExitCode.CLUSTER else 1
