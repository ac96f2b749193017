"""Search for the largest batch size that fits into memory, with one process per size.

Starting at the size in the config, the size is doubled until it does not fit; then the interval
between the last two sizes is bisected. The memory of each process is monitored while it runs: a
process that exceeds the limit is killed before it exhausts the memory of the machine.
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

# The search stops when the interval is smaller than the size divided by this number.
_RESOLUTION = 8
_SECONDS_BETWEEN_LOOKS = 0.01
_PART_OF_FREE = 0.9
_FITS = "fits"
_ABOVE = "above the limit"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SizeTrial:
    """A batch size that was tried.

    Attributes:
        batch_size: Examples per update.
        result: `fits`, or why it does not fit.
        examples_per_second: Training speed; None if the size does not fit.
        memory: Observed peak memory of the process in bytes.
    """

    batch_size: int
    result: str
    examples_per_second: float | None = None
    memory: int | None = None

    @property
    def fits(self) -> bool:
        """Whether the size fits."""
        return self.result == _FITS

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, for a table or JSON."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SizeSearch:
    """The result of a search.

    Attributes:
        trials: The sizes that were tried, in increasing order.
        memory_limit: Memory limit in bytes.
        largest: The largest size that fits.
    """

    trials: Sequence[SizeTrial]
    memory_limit: int
    largest: int

    @property
    def fastest(self) -> int:
        """The size with the most examples per second."""
        return max(
            (trial for trial in self.trials if trial.fits),
            key=lambda trial: trial.examples_per_second or 0.0,
        ).batch_size

    def as_dict(self) -> dict[str, Any]:
        """Return the result for JSON."""
        return {
            "largest": self.largest,
            "fastest": self.fastest,
            "memory_limit": self.memory_limit,
            "trials": [trial.as_dict() for trial in self.trials],
        }

    def describe(self) -> str:
        """Describe the result in one or two sentences."""
        limit = self.memory_limit / 10**9
        is_limit = any(trial.batch_size > self.largest for trial in self.trials)
        word = "that fits" if is_limit else "that was tried fits"
        return (
            f"The largest batch {word} into {limit:.3g} GB: {self.largest}. The fastest size: "
            f"{self.fastest}."
        )


def search(
    args: argparse.Namespace,
    *,
    start: int,
    most: int,
    memory_limit: int | None = None,
    timeout_secs: float = 300.0,
) -> SizeSearch:
    """Search for the largest batch size, starting from the batch size of the config.

    Args:
        args: The command line, for the processes that try a size.
        start: The first size to try.
        most: The largest size to try.
        memory_limit: Memory limit of a process in bytes. Defaults to 90% of the free memory.
        timeout_secs: Time limit for each size in seconds.

    Raises:
        errors.OfficialLiteError: No size fits, or the config can't be trained at all.
    """
    if start < 1:
        raise errors.ConfigValueError(
            f"`task.train_data.global_batch_size` is {start}; expected the size to start with."
        )
    limit = memory_limit or int(_PART_OF_FREE * free_memory())
    trials = _Trials(args, limit, timeout_secs)
    largest = find_largest(trials.fits, start=start, most=most, unit=lambda: trials.unit)
    done = [trials.by_size[size] for size in sorted(trials.by_size)]
    if not largest:
        raise errors.OfficialLiteError(
            f"No batch fits into {limit / 10**9:.3g} GB, not even {done[0].batch_size}: "
            f"{done[0].result}."
        )
    return SizeSearch(trials=done, memory_limit=limit, largest=largest)


def find_largest(
    fits: Callable[[int], bool], *, start: int, most: int, unit: Callable[[], int] = lambda: 1
) -> int:
    """Return the largest size that fits, to within an eighth; 0 if none does.

    Args:
        fits: Tries a size and returns whether it fits.
        start: The first size to try.
        most: The largest size to try.
        unit: Returns the number of which sizes must be multiples; called after the first try.
    """
    low, high = 0, start
    if fits(start):
        low, top = start, _multiple(most, unit())
        while low < (high := min(2 * low, top)) and fits(high):
            low = high
        if low >= high:
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
    """Return the bytes that a process can allocate in this machine or container."""
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
    """Tries sizes and stores the results.

    Attributes:
        by_size: Results by size.
        unit: Sizes must be multiples of this; known once a size has fit.
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
                f"Can't train with batches of {size}; see the error above."
            )
        # This is how the operating system reacts when it is out of memory.
        result = f"killed by {signal.Signals(-process.exitcode).name}"
        return SizeTrial(batch_size=size, result=result, memory=memory)

    def _judge(self, size: int, probe: "size_probe.Probe") -> SizeTrial:
        # If no size has fit yet, the smaller sizes need not be multiples of the unit.
        is_mistake = probe.is_of_config and any(trial.fits for trial in self.by_size.values())
        if probe.problem and (is_mistake or not self.by_size):
            raise errors.ConfigValueError(f"Can't train with batches of {size}: {probe.problem}")
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
    """Return a context whose processes, if possible, need not import TensorFlow again."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["official_lite.tools.tuning.size_probe"])
    return context


def _run(sender: Any, args: argparse.Namespace, size: int) -> None:
    # Imported here because the process that starts these processes does not need TensorFlow.
    from official_lite.tools.tuning import size_probe

    # Ctrl-C is handled by the parent process, which kills this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sender.send(size_probe.probe(args, size))


def _watch(process: Any, limit: int, timeout_secs: float) -> tuple[int, str]:
    """Wait until the process ends or violates a limit.

    Returns:
        The observed peak memory in bytes, and which limit was violated, or "".
    """
    deadline = time.monotonic() + timeout_secs
    most = 0
    while process.is_alive():
        most = max(most, _memory_of(process.pid))
        if most > limit:
            return most, _ABOVE
        if time.monotonic() > deadline:
            return most, f"not finished in {timeout_secs:g} s"
        process.join(_SECONDS_BETWEEN_LOOKS)
    return most, ""


def _memory_of(pid: int) -> int:
    """Return the resident memory of a process in bytes; 0 if it is unknown."""
    try:
        pages = pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
