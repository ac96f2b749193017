"""Looks for the largest batch that fits into the memory: each size in a process of its own.

Doubled from the size of the config until one does not fit, then halved between the last two. What
a process has is looked at while it runs: one that goes beyond the limit is killed, before it takes
the machine with it.
"""

import argparse
import dataclasses
import multiprocessing
import os
import pathlib
import signal
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from official_lite.common import errors

if TYPE_CHECKING:
    from official_lite.tools.tuning import size_probe

__all__ = ["SizeSearch", "SizeTrial", "find_largest", "free_memory", "search"]

# The last steps of the search are no smaller than this part of the size.
_RESOLUTION = 8
_SECONDS_BETWEEN_LOOKS = 0.01
_PART_OF_FREE = 0.9
_FITS = "fits"
_ABOVE = "above the limit"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SizeTrial:
    """A size that was tried.

    Attributes:
        batch_size: Examples in an update.
        result: `fits`, or why not.
        examples_per_second: How fast it was; None if it does not fit.
        memory: The most that the process had, in bytes, as far as anybody saw.
    """

    batch_size: int
    result: str
    examples_per_second: float | None = None
    memory: int | None = None

    @property
    def fits(self) -> bool:
        """Whether it does."""
        return self.result == _FITS

    def as_dict(self) -> dict[str, Any]:
        """All of it, for a table and JSON."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SizeSearch:
    """What was tried, in the order of the sizes.

    Attributes:
        trials: One for each size.
        memory_limit: In bytes.
        largest: The largest size that fits.
    """

    trials: Sequence[SizeTrial]
    memory_limit: int
    largest: int

    @property
    def fastest(self) -> int:
        """The size with the most examples a second."""
        return max(
            (trial for trial in self.trials if trial.fits),
            key=lambda trial: trial.examples_per_second or 0.0,
        ).batch_size

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "largest": self.largest,
            "fastest": self.fastest,
            "memory_limit": self.memory_limit,
            "trials": [trial.as_dict() for trial in self.trials],
        }

    def describe(self) -> str:
        """What came of it, in a sentence."""
        limit = self.memory_limit / 10**9
        is_limit = any(trial.batch_size > self.largest for trial in self.trials)
        word = "that fits" if is_limit else "that was tried"
        return (
            f"The largest batch {word} into {limit:.3g} GB: {self.largest}. "
            f"The fastest: {self.fastest}."
        )


def search(
    args: argparse.Namespace,
    *,
    start: int,
    most: int,
    memory_limit: int | None = None,
    timeout_secs: float = 300.0,
) -> SizeSearch:
    """Tries sizes, from that of the config on.

    Args:
        args: The command line, for the processes that try.
        start: The size to begin with.
        most: The largest one to try.
        memory_limit: Bytes that a process may have; None is nine tenths of what is free.
        timeout_secs: What a size may take.

    Raises:
        errors.OfficialLiteError: Nothing fits, or the config can't be trained at all.
    """
    if start < 1:
        raise errors.ConfigValueError(
            f"`task.train_data.global_batch_size` is {start}; wanted the size to begin with."
        )
    limit = memory_limit or int(_PART_OF_FREE * free_memory())
    trials = _Trials(args, limit, timeout_secs)
    largest = find_largest(trials.fits, start=start, most=most, unit=lambda: trials.unit)
    done = [trials.by_size[size] for size in sorted(trials.by_size)]
    if not largest:
        raise errors.OfficialLiteError(
            f"No batch fits into {limit / 10**9:.3g} GB, not even of {done[0].batch_size}: "
            f"{done[0].result}."
        )
    return SizeSearch(trials=done, memory_limit=limit, largest=largest)


def find_largest(
    fits: Callable[[int], bool], *, start: int, most: int, unit: Callable[[], int] = lambda: 1
) -> int:
    """The largest size that fits, to within an eighth of it; 0 if none does.

    Args:
        fits: Tries a size.
        start: The size to begin with.
        most: The largest one to try.
        unit: What sizes are multiples of; asked after the first try.
    """
    low, high = 0, start
    if fits(start):
        low, high = start, 2 * start
        while high <= most and fits(high):
            low, high = high, 2 * high
        if high > most:
            return low
    else:
        while low == 0 and (size := _multiple(high // 2, unit())):
            low, high = (size, high) if fits(size) else (0, size)
    while low and high - low > max(unit(), low // _RESOLUTION):
        size = _multiple((low + high) // 2, unit())
        if size == low:
            break
        low, high = (size, high) if fits(size) else (low, size)
    return low


def free_memory() -> int:
    """Bytes that a process can have here and now: of the machine, or of its container."""
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    meminfo = pathlib.Path("/proc/meminfo")
    if meminfo.exists():
        lines = (line.split() for line in meminfo.read_text().splitlines())
        free = next((1024 * int(line[1]) for line in lines if line[0] == "MemAvailable:"), free)
    limit, used = (pathlib.Path("/sys/fs/cgroup", f"memory.{n}") for n in ("max", "current"))
    if limit.exists() and used.exists() and limit.read_text().strip() != "max":
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    return free


def _multiple(size: int, unit: int) -> int:
    return size // unit * unit


class _Trials:
    """Tries sizes, and remembers what came of each.

    Attributes:
        by_size: What came of them.
        unit: What a size has to be a multiple of, once one of them fits.
    """

    def __init__(self, args: argparse.Namespace, limit: int, timeout_secs: float) -> None:
        self._args = args
        self._limit = limit
        self._timeout_secs = timeout_secs
        self.by_size: dict[int, SizeTrial] = {}
        self.unit = 1

    def fits(self, size: int) -> bool:
        trial = self.by_size[size] = self._try(size)
        return trial.fits

    def _try(self, size: int) -> SizeTrial:
        receiver, sender = _context().Pipe(duplex=False)
        process = _context().Process(target=_run, args=(sender, self._args, size))
        process.start()
        sender.close()
        with receiver:
            try:
                memory, result = _watch(process, self._limit, self._timeout_secs)
            finally:
                process.kill()
                process.join()
            if result:
                return SizeTrial(batch_size=size, result=result, memory=memory)
            if not process.exitcode:
                return self._judge(size, receiver.recv())
        if process.exitcode > 0:
            raise errors.OfficialLiteError(
                f"Batches of {size} can't be trained; the error is above this line."
            )
        # As the system does where there is no memory left.
        result = f"killed by {signal.Signals(-process.exitcode).name}"
        return SizeTrial(batch_size=size, result=result, memory=memory)

    def _judge(self, size: int, probe: "size_probe.Probe") -> SizeTrial:
        if probe.problem and not self.by_size:
            raise errors.ConfigValueError(f"Batches of {size} can't be trained: {probe.problem}")
        if probe.problem or probe.is_exhausted:
            result = probe.problem or "out of memory"
            return SizeTrial(batch_size=size, result=result, memory=probe.memory)
        self.unit = probe.unit
        return SizeTrial(
            batch_size=size,
            result=_FITS if probe.memory <= self._limit else _ABOVE,
            examples_per_second=probe.examples_per_second,
            memory=probe.memory,
        )


def _context() -> Any:
    """Processes that need not import TensorFlow again, where that is possible."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["official_lite.tools.tuning.size_probe"])
    return context


def _run(sender: Any, args: argparse.Namespace, size: int) -> None:
    # Whoever only starts these processes needs no TensorFlow.
    from official_lite.tools.tuning import size_probe

    # Ctrl-C is for the process that has started this one, which kills it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sender.send(size_probe.probe(args, size))


def _watch(process: Any, limit: int, timeout_secs: float) -> tuple[int, str]:
    """Until it has ended, or must; the most memory that was seen, and why it must."""
    deadline = time.monotonic() + timeout_secs
    most = 0
    while process.is_alive():
        most = max(most, _memory_of(process.pid))
        if most > limit:
            return most, _ABOVE
        if time.monotonic() > deadline:
            return most, f"not done in {timeout_secs:g} s"
        process.join(_SECONDS_BETWEEN_LOOKS)
    return most, ""


def _memory_of(pid: int) -> int:
    """What a process has in memory; 0 where nobody says it."""
    try:
        pages = pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
