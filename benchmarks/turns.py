"""Processes that measure in turn: all are alive at once, and only one of them works.

Rounds that are adjacent in time find the machine in the same state, whatever else it is doing. A
worker repeats a piece of work and reports how long it took::

    rounds = turns.Rounds.from_args(args)
    for measured in rounds:
        with measured:
            measured.note(loss=train())

Started directly, it runs all its rounds and prints a line of JSON for each. Under a driver, which
passes `--paced`, it waits for a line on its standard input before each round::

    with turns.Workers(commands) as workers:
        answers = workers.run(rounds=15)

A worker requires only the standard library, whatever environment it runs in.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["Answers", "Rounds", "Workers", "add_arguments", "medians", "ratio_to"]

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent

# Before they sleep, the thread pools of numeric libraries spin for a while, which would slow down
# the next worker.
_SECONDS_BETWEEN_TURNS = 0.3

# A hung worker is killed after this time, so that it does not block the others forever.
_MAX_SECONDS_FOR_A_ROUND = 900.0

Answers = dict[str, list[dict[str, Any]]]


class Rounds:
    """The rounds of a worker. Iterating waits for the start of each; `with` measures its time.

    Once this object is created, printed text goes to the standard error, so create it first.

    Args:
        count: The maximum number of rounds.
        paced: Whether each round waits for a line on the standard input.
    """

    def __init__(self, count: int, *, paced: bool) -> None:
        self.count = count
        self._paced = paced
        self._started = 0.0
        self._notes: dict[str, Any] = {}
        self._answers = _take_stdout()

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> "Rounds":
        """Create the rounds given by `--rounds` and `--paced`."""
        return cls(args.rounds, paced=args.paced)

    def __iter__(self) -> Iterator["Rounds"]:
        for _ in range(self.count):
            if not self.wait():
                return
            yield self

    def __enter__(self) -> "Rounds":
        self.start()
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is None:
            self.finish()

    def wait(self) -> bool:
        """Wait for the next turn.

        Returns:
            False if there is no further turn.
        """
        return not self._paced or bool(sys.stdin.readline().strip())

    def start(self) -> None:
        """Begin a round."""
        self._notes = {}
        self._started = time.perf_counter()

    def note(self, **notes: Any) -> None:
        """Add values to the answer of this round."""
        self._notes |= notes

    def finish(self) -> None:
        """End a round. Its results must be computed by now, not only requested."""
        answer = {"seconds": time.perf_counter() - self._started, **self._notes}
        answer["peak_memory_mb"] = _peak_memory_mb()
        if "steps" in answer:
            answer["seconds_per_step"] = answer["seconds"] / answer["steps"]
        print(json.dumps(answer), file=self._answers, flush=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--rounds` and `--paced`."""
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--paced", action="store_true", help="Wait for a line before each round.")


class Workers:
    """Worker processes, by name. A worker that fails is reported and omitted from the answers.

    Args:
        commands: The command line of each worker.
    """

    def __init__(self, commands: Mapping[str, Sequence[str]]) -> None:
        self._commands = commands
        # This directory is not removed, so that the logs can be inspected after a failure.
        self._log_dir = pathlib.Path(tempfile.mkdtemp(prefix="benchmark-"))
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._warmups: Answers = {}
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> "Workers":
        for name, command in self._commands.items():
            log = self._opened.enter_context((self._log_dir / f"{name}.log").open("w"))
            self._processes[name] = subprocess.Popen(
                [*command, "--paced"],
                cwd=REPOSITORY,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ},
            )
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            _end(process)
        self._opened.close()

    def run(self, rounds: int, warmup: int = 2) -> tuple[Answers, Answers]:
        """Let all workers run all rounds; each round starts with another worker.

        Args:
            rounds: The number of counted rounds.
            warmup: The number of rounds before them.

        Returns:
            The answers of the counted rounds and of the warm-up rounds, by name.
        """
        # The other workers are still importing modules while the first one warms up. The baseline
        # is the first in the list and warms up last, because it benchmarks execution modes in its
        # first round.
        for name in reversed(list(self._processes)):
            self._warm_up(name, warmup)
        counted: Answers = {name: [] for name in self._processes}
        for index in range(rounds):
            names = list(self._processes)
            shift = index % max(len(names), 1)
            for name in names[shift:] + names[:shift]:
                if (answer := self._ask(name)) is not None:
                    counted[name].append(answer)
                    time.sleep(_SECONDS_BETWEEN_TURNS)
        finished = {name: counted[name] for name in self._processes}
        return finished, {name: self._warmups[name] for name in finished}

    def _warm_up(self, name: str, rounds: int) -> None:
        self._warmups[name] = []
        for _ in range(rounds):
            answer = self._ask(name)
            if answer is None:
                return
            self._warmups[name].append(answer)

    def _ask(self, name: str) -> dict[str, Any] | None:
        process = self._processes[name]
        with _killed_after(process, _MAX_SECONDS_FOR_A_ROUND):
            line = _say_and_listen(process)
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        del self._processes[name]
        _end(process)
        log = self._log_dir / f"{name}.log"
        print(f"{name} failed and is omitted. The end of {log}:\n{_tail(log)}", file=sys.stderr)
        return None


def medians(answers: Answers, key: str) -> dict[str, float]:
    """Return the median of a number over the rounds, by name."""
    return {name: statistics.median(one[key] for one in found) for name, found in answers.items()}


def ratio_to(answers: Answers, name: str, baseline: str, key: str) -> float | None:
    """Return the median over rounds of `name` divided by `baseline`; None without a baseline."""
    if baseline not in answers:
        return None
    pairs = zip(answers[name], answers[baseline], strict=True)
    return statistics.median(one[key] / other[key] for one, other in pairs)


def _say_and_listen(process: subprocess.Popen[str]) -> str:
    """Start a round and return its answer, or an empty string if the worker has ended."""
    with contextlib.suppress(BrokenPipeError):
        print("go", file=process.stdin, flush=True)
        for line in process.stdout or ():
            # Skip text that a library printed when it was imported.
            if line.startswith("{"):
                return line
    return ""


@contextlib.contextmanager
def _killed_after(process: subprocess.Popen[str], seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end(process: subprocess.Popen[str]) -> None:
    """End a worker, including one that treats SIGTERM as a preemption notice."""
    process.kill()
    process.communicate()


def _take_stdout() -> Any:
    """Return a file for answers; from now on, all other output goes to the standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def _peak_memory_mb() -> float:
    """Return the peak memory of this process."""
    status = pathlib.Path("/proc/self/status")
    if status.exists():
        # `ru_maxrss` can't be used here, because a fork inherits it from its parent.
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        if found:
            return int(found[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024.0 if sys.platform != "darwin" else 1024.0**2)


def _tail(path: pathlib.Path, lines: int = 8) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
