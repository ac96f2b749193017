"""Find a learning rate or the largest batch size for an experiment by short training runs.

    python -m official_lite.tools tune lr vision/digits_cnn --plot=rates.png
    python -m official_lite.tools tune batch_size vision/digits_cnn --memory_limit=4GB

`lr` trains with a learning rate that grows from step to step until the loss diverges. It suggests
the rate at which the loss fell fastest, as a first choice. `batch_size` trains some steps with
larger and larger batches, each size in its own process, until memory is exhausted. The source is
the name of an experiment or the model directory of a run, which is not changed. Training starts
from new weights or from `task.init_checkpoint`.
"""

import argparse
import dataclasses
import multiprocessing
import os
import pathlib
import re
import signal
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from official_lite.common import error_report, errors
from official_lite.modeling import hyperparams
from official_lite.tools import listing, sources

if TYPE_CHECKING:
    from official_lite.tools import trial_training


_OF_SEVERAL_TASKS = "Train a few short runs and compare them with `tools runs compare`."
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}

# The search stops when its bounds differ by at most the lower bound divided by this number.
_RESOLUTION = 8
_SECONDS_BETWEEN_LOOKS = 0.01
_PART_OF_FREE = 0.9
_FITS = "fits"
_ABOVE = "above the limit"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands `lr` and `batch_size`."""
    acts = parser.add_subparsers(dest="act", required=True, metavar="lr|batch_size")
    rates = acts.add_parser("lr", help="Find a learning rate.")
    sizes = acts.add_parser("batch_size", help="Find the largest batch that fits into memory.")
    for parser_of_act in (rates, sizes):
        parser_of_act.add_argument("source", help="An experiment or a model directory.")
    _add_rate_arguments(rates)
    _add_size_arguments(sizes)
    for parser_of_act in (rates, sizes):
        sources.add_arguments(parser_of_act)
        listing.add_json_argument(parser_of_act)


def run(args: argparse.Namespace) -> int:
    """Run the search and print its result."""
    if args.act == "lr":
        _tune_rate(args)
    else:
        _tune_size(args)
    return int(errors.ExitCode.DONE)


def _add_rate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--min_rate", type=float, default=1e-7, help="Default: %(default)g.")
    parser.add_argument("--max_rate", type=float, default=10.0, help="Default: %(default)g.")
    parser.add_argument(
        "--steps",
        type=int,
        default=200,
        metavar="N",
        help="The number of rates. Default: %(default)d.",
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="Plot the loss to a .png or .svg file; requires matplotlib."
    )


def _add_size_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--memory_limit",
        type=_bytes,
        metavar="SIZE",
        help="The memory that training may use, such as 4GB. Default: 90 %% of the free memory.",
    )
    parser.add_argument(
        "--max_batch_size", type=int, default=2**14, metavar="N", help="Default: %(default)d."
    )
    parser.add_argument(
        "--timeout_secs",
        type=float,
        default=300.0,
        metavar="S",
        help=(
            "The time limit in seconds per size; slower sizes are considered too large. Default: "
            "%(default)g."
        ),
    )


def _tune_rate(args: argparse.Namespace) -> None:
    source = sources.read_params(args.source, args, instead=_OF_SEVERAL_TASKS)
    from official_lite.tools import trial_training

    sweep = trial_training.run_sweep(
        source.params, min_rate=args.min_rate, max_rate=args.max_rate, num_steps=args.steps
    )
    if args.plot:
        trial_training.draw(sweep, args.plot, title=args.source)
    if args.json:
        listing.print_json(dataclasses.asdict(sweep))
        return
    rows = [{"learning_rate": r, "loss": loss} for r, loss in sweep.some_points()]
    listing.print_table(rows, ["learning_rate", "loss"])
    print(sweep.describe())
    if args.plot:
        print(args.plot)


def _tune_size(args: argparse.Namespace) -> None:
    # Read the config here, so that mistakes are reported before any process is started.
    source = sources.read_params(args.source, args, instead=_OF_SEVERAL_TASKS)
    found = search_sizes(
        args,
        start=hyperparams.get_by_path(source.params, "task.train_data.global_batch_size", 0),
        most=args.max_batch_size,
        memory_limit=args.memory_limit,
        timeout_secs=args.timeout_secs,
    )
    if args.json:
        listing.print_json(dataclasses.asdict(found) | {"fastest": found.fastest})
        return
    listing.print_table(
        [dataclasses.asdict(trial) for trial in found.trials],
        ["batch_size", "examples_per_second", "memory", "result"],
        formats={"memory": listing.bytes_text},
    )
    print(found.describe())


def _bytes(text: str) -> int:
    matched = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMG]?B?)", text.upper())
    unit = matched.group(2) if matched else ""
    if matched is None or (unit and unit not in _UNITS and f"{unit}B" not in _UNITS):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; expected a size such as 4GB")
    return int(float(matched.group(1)) * _UNITS.get(unit, _UNITS.get(f"{unit}B", 1)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SizeTrial:
    """The result of a trial of one batch size.

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class SizeSearch:
    """The result of a search.

    Attributes:
        trials: The trials, in increasing order of their batch sizes.
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

    def describe(self) -> str:
        """Describe the result in one or two sentences."""
        limit = self.memory_limit / 10**9
        is_limit = any(trial.batch_size > self.largest for trial in self.trials)
        word = "that fits" if is_limit else "that was tested fits"
        return (
            f"The largest batch {word} into {limit:.3g} GB: {self.largest}. The fastest size: "
            f"{self.fastest}."
        )


def search_sizes(
    args: argparse.Namespace,
    *,
    start: int,
    most: int,
    memory_limit: int | None = None,
    timeout_secs: float = 300.0,
) -> SizeSearch:
    """Search for the largest batch size, starting from the batch size of the config.

    Args:
        args: The command line, for the processes that test a size.
        start: The first size to try.
        most: The largest size to try.
        memory_limit: Memory limit of a process in bytes. Defaults to 90% of the free memory.
        timeout_secs: Time limit for each size in seconds.

    Raises:
        errors.OfficialLiteError: No size fits, or the config can't be trained at all.
    """
    if start < 1:
        raise errors.ConfigValueError(
            f"`task.train_data.global_batch_size` is {start}; set it to the size to start with."
        )
    limit = memory_limit or int(_PART_OF_FREE * _free_memory())
    trials = _Trials(args, limit, timeout_secs)
    largest = find_largest(trials.fits, start=start, most=most, unit=lambda: trials.unit)
    done = [trials.by_size[size] for size in sorted(trials.by_size)]
    if not largest:
        raise errors.OfficialLiteError(
            f"Even a batch size of {done[0].batch_size} does not fit into {limit / 10**9:.3g} GB: "
            f"{done[0].result}. Raise --memory_limit or use a smaller model."
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
        unit: Returns the number that sizes must be a multiple of; called after the first trial.
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


def _free_memory() -> int:
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return error_report.available_memory() or physical


def _multiple(size: int, unit: int) -> int:
    return size // unit * unit


class _Trials:
    """The batch size trials and their results.

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
        process = _context().Process(target=_run_probe, args=(sender, self._args, size))
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
        # Treat a killed process as a size that does not fit, because the operating system kills
        # processes when memory runs out.
        result = f"killed by {signal.Signals(-process.exitcode).name}"
        return SizeTrial(batch_size=size, result=result, memory=memory)

    def _judge(self, size: int, probe: "trial_training.Probe") -> SizeTrial:
        # The first size comes from the config, so report any problem with it as an error. For later
        # sizes, report only errors of the config, and only after at least one size has fit. Before
        # that, the number that batch sizes must be a multiple of is unknown, and a config error may
        # only mean that the size is not a multiple of this number.
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
    """Return a multiprocessing context whose processes share one TensorFlow import if possible."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["official_lite.tools.trial_training"])
    return context


def _run_probe(sender: Any, args: argparse.Namespace, size: int) -> None:
    # Import TensorFlow only in the child process, because the parent process does not need it.
    from official_lite.tools import trial_training

    # The parent process handles Ctrl-C and kills this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sender.send(trial_training.probe(args, size))


def _watch(process: Any, limit: int, timeout_secs: float) -> tuple[int, str]:
    """Wait until the process ends or exceeds the memory or time limit.

    Returns:
        The observed peak memory in bytes, and which limit was exceeded, or "".
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
