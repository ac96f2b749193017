"""The time that a run spends in each of `STATES`, from its first start to its last end.

::

    with Goodput("runs/digits/goodput.json") as clock:   # the driver of a run does this
        with goodput.measuring("saving"):                # anywhere below it
            ...

The states nest: the time of an inner state does not count for the outer one. Outside of all of
them, a run is `starting`, which includes building, restoring and, at the end, closing.

A thread writes the record every second, so the training loop does not wait for writes. A killed
process leaves a record that is at most a second old, and the next start counts the rest as
`stopped`.
"""

import contextlib
import contextvars
import dataclasses
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

from absl import logging

from official_lite.common import files, terminal

NAME = "goodput.json"

STATES = (
    "starting",
    "compiling",
    "waiting_for_input",
    "stepping",
    "evaluating",
    "saving",
    "lost",
    "stopped",
)

# The states whose work a run must repeat if it resumes from an earlier checkpoint.
_WORK = ("waiting_for_input", "stepping", "evaluating")

_SECONDS_BETWEEN_WRITES = 1.0

# A cloud bucket accepts about one write per second to the same object, and bills each write.
_SECONDS_BETWEEN_REMOTE_WRITES = 60.0

# The maximum number of checkpoints that a record lists. Before the list exceeds this number, every
# second entry in its older half is dropped; the checkpoints themselves stay.
_MAX_CHECKPOINTS = 16

_IMPORT_TIME = time.time()


@dataclasses.dataclass(kw_only=True)
class TimeRecord:
    """The seconds that a run has spent in each state.

    Attributes:
        begin: The creation of the first process, in seconds since 1970.
        end: The time up to which seconds have been counted, in seconds since 1970.
        starts: The number of processes so far.
        measures_input: Whether `waiting_for_input` was measured. If not, this time is part of
            `stepping`.
        seconds: The seconds by state. Their sum is `end - begin`.
        checkpoints: The steps of checkpoints, and the seconds of work that they contain.
    """

    begin: float
    end: float
    starts: int = 0
    measures_input: bool = False
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    checkpoints: list[tuple[int, dict[str, float]]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.seconds = _as_seconds(self.seconds, STATES)
        self.checkpoints = [
            (_as_count(step), _as_seconds(work, _WORK)) for step, work in self.checkpoints
        ]
        self.starts = _as_count(self.starts)
        if not isinstance(self.measures_input, bool):
            raise ValueError(f"`measures_input` is {self.measures_input!r:.60}; expected a boolean")
        if not 0 <= self.begin <= self.end < 2**33:
            raise ValueError(
                f"`begin` is {self.begin!r:.60}, and `end` is {self.end!r:.60}; expected times in "
                "ascending order"
            )

    @property
    def wall_seconds(self) -> float:
        """The seconds from `begin` to `end`."""
        return self.end - self.begin

    @property
    def share(self) -> float | None:
        """The goodput: `stepping` as a fraction of the time in all states except `stopped`."""
        running = self.wall_seconds - self.seconds["stopped"]
        return self.seconds["stepping"] / running if running > 0 else None

    def summary(self) -> dict[str, Any]:
        """Return the entries for `run.json`."""
        return {
            "share": None if self.share is None else round(self.share, 4),
            "wall_seconds": round(self.wall_seconds, 3),
            "starts": self.starts,
            "measures_input": self.measures_input,
            "seconds": {state: round(seconds, 3) for state, seconds in self.seconds.items()},
        }

    def spend(self, state: str, until: float) -> None:
        """Count the time from `end` to `until` for a state, and set `end` to `until`."""
        self.seconds[state] += max(0.0, until - self.end)
        self.end = max(self.end, until)

    def keep(self, step: int) -> None:
        """Record that a checkpoint of `step` contains the work so far."""
        work = {state: self.seconds[state] for state in _WORK}
        earlier = [one for one in self.checkpoints if one[0] < step]
        if len(earlier) >= _MAX_CHECKPOINTS:
            half = len(earlier) // 2
            earlier = earlier[:half:2] + earlier[half:]
        self.checkpoints = [*earlier, (step, work)]

    def rewind(self, step: int) -> None:
        """Count the work that a checkpoint of `step` does not contain as lost."""
        self.checkpoints = [one for one in self.checkpoints if one[0] <= step]
        kept = self.checkpoints[-1][1] if self.checkpoints else dict.fromkeys(_WORK, 0.0)
        self.seconds["lost"] += sum(self.seconds[state] - kept[state] for state in _WORK)
        self.seconds.update(kept)


def _as_seconds(values: Mapping[str, Any], states: tuple[str, ...]) -> dict[str, float]:
    """Return the seconds by state. States missing from an older version's record count as 0."""
    if unknown := set(values) - set(states):
        raise ValueError(f"unknown state {min(unknown)!r:.60}")
    seconds = {state: float(values.get(state, 0.0)) for state in states}
    for state, value in seconds.items():
        if not abs(value) < 2**33:  # The condition is also true for NaN.
            raise ValueError(f"`{state}` is {value!r:.60}; expected a number of seconds")
    return seconds


def _as_count(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"expected a non-negative integer for a count; got {value!r:.60}")
    return value


def read(model_dir: str) -> TimeRecord | None:
    """Return the goodput record in a model directory; None if there is none.

    Raises:
        ValueError: The file is damaged; the message says how.
        OSError: The file cannot be read.
    """
    path = os.path.join(model_dir, NAME)
    return _parse(files.read_json(path)) if files.exists(path) else None


def _parse(entries: dict[str, Any]) -> TimeRecord:
    try:
        return TimeRecord(**entries)
    except (TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"a field is missing, unknown or of the wrong type: {error}") from error


class Goodput(contextlib.AbstractContextManager["Goodput"]):
    """The clock of a run, which continues the record of its earlier starts.

    Args:
        path: The file of the record. `None` writes nothing.
        clock: Returns the seconds since an arbitrary moment.
    """

    def __init__(
        self, path: str | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._path = path
        self._clock = clock
        self._states = ["starting"]
        now = time.time()
        self._offset = now - clock()
        self._record = TimeRecord(begin=now, end=now)
        # `_changing` guards the record; `_writing` prevents an older record from replacing a newer
        # one in the file.
        self._changing = threading.Lock()
        self._writing = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._token: contextvars.Token[Goodput | None] | None = None

    def __enter__(self) -> "Goodput":
        begin = _take_start_time()
        self._offset = time.time() - self._clock()
        self._record = self._earlier() or TimeRecord(begin=begin, end=begin)
        self._record.spend("stopped", begin)
        self._record.starts += 1
        self._write()
        if self._path is not None:
            self._thread = threading.Thread(target=self._write_on, name="goodput", daemon=True)
            self._thread.start()
        self._token = _current.set(self)
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._token is not None:
            _current.reset(self._token)
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self._write()

    @contextlib.contextmanager
    def measuring(self, state: str) -> Iterator[None]:
        """Count the time in this context for one of `STATES`, except for states inside it."""
        self._enter(state)
        try:
            yield
        finally:
            self._leave()

    def keep(self, step: int) -> None:
        """Record that a checkpoint of `step`, whose state is being read, contains the work so far.

        Call this method before the checkpoint is complete.
        """
        with self._changing:
            self._advance()
            self._record.keep(step)
        # Write immediately, because the run resumes from this checkpoint if the process is killed.
        self._write()

    def rewind(self, step: int) -> None:
        """Count the work that is not in the restored checkpoint of `step` as lost."""
        with self._changing:
            self._advance()
            self._record.rewind(step)

    def add_input_wait(self, seconds: float) -> None:
        """Move a part of the time spent `stepping` so far to `waiting_for_input`."""
        with self._changing:
            self._advance()
            spent = self._record.seconds
            moved = min(seconds, spent["stepping"])
            spent["stepping"] -= moved
            spent["waiting_for_input"] += moved
            self._record.measures_input = True

    def summary(self) -> dict[str, Any]:
        """Return the entries for `run.json`, counted up to now."""
        with self._changing:
            self._advance()
            return self._record.summary()

    def _enter(self, state: str) -> None:
        with self._changing:
            self._advance()
            self._states.append(state)

    def _leave(self) -> None:
        with self._changing:
            self._advance()
            self._states.pop()

    def _advance(self) -> None:
        # Do not use the wall clock, which may be adjusted during the run.
        self._record.spend(self._states[-1], self._clock() + self._offset)

    def _earlier(self) -> TimeRecord | None:
        if self._path is None or not files.exists(self._path):
            return None
        try:
            return _parse(files.read_json(self._path))
        except ValueError as error:
            files.set_aside(self._path, error)
            return None

    def _write_on(self) -> None:
        is_remote = self._path is not None and files.is_remote(self._path)
        pause = _SECONDS_BETWEEN_REMOTE_WRITES if is_remote else _SECONDS_BETWEEN_WRITES
        while not self._ended.wait(pause):
            self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        with self._writing:
            with self._changing:
                self._advance()
                text = json.dumps(vars(self._record))
            try:
                files.write_text(self._path, text + "\n", is_durable=False)
            except OSError as error:  # The disk may be full; the next write may succeed.
                logging.log_first_n(
                    logging.WARNING, "%s can't be written: %s", 1, self._path, error
                )


# The clock of the run to which the current thread belongs.
_current: contextvars.ContextVar[Goodput | None] = contextvars.ContextVar("goodput", default=None)

_outside_of_runs = Goodput()


def current() -> Goodput:
    """Return the clock of the current run; outside of runs, a clock that writes no record."""
    return _current.get() or _outside_of_runs


@contextlib.contextmanager
def measuring(state: str) -> Iterator[None]:
    """Count the time in this context, or in the decorated function, for a state of the run."""
    with current().measuring(state):
        yield


_has_started = False


def _take_start_time() -> float:
    """Return the start time of the current run, in seconds since 1970.

    The first run of a process starts when the process is created, so that import time is included.
    Later runs start when this function is called, as do all runs of an interactive session, which
    may have been idle.
    """
    global _has_started
    is_first, _has_started = not _has_started, True
    is_interactive = hasattr(sys, "ps1") or terminal.ipython_shell() is not None
    return _process_creation_time() if is_first and not is_interactive else time.time()


def _process_creation_time() -> float:
    """Return the creation time of this process; if it is unknown, this module's import time."""
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as stat:
            # The program's name, in parentheses, may itself contain spaces and parentheses.
            ticks = int(stat.read().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return _IMPORT_TIME
    if ticks == 0:  # Some sandboxes do not report the creation time.
        return _IMPORT_TIME
    since_boot = ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
