"""Trial functions without TensorFlow, which other processes can import."""

import errno
import os
import pathlib
import signal
import time
from typing import Any

from official_lite import search
from official_lite.common import errors

SPACE = {"x": {"type": "float", "low": -4.0, "high": 4.0}}


def config(**fields: Any) -> search.SearchConfig:
    """Return the config of a small study of x in [-4, 4]."""
    given = {"space": SPACE, "direction": "minimize", "strategy": "random", "num_trials": 5}
    return search.SearchConfig({**given, **fields})


def parabola(trial: search.TrialRun) -> float:
    return float((trial.params["x"] - 2.0) ** 2)


def curve(trial: search.TrialRun) -> float:
    """Report the same value at nine steps, and write each step to a file."""
    for step in range(1, 10):
        _note(trial, str(step))
        trial.report(abs(trial.params["x"]), step)
    return abs(trial.params["x"])


def crash_of_the_third(trial: search.TrialRun) -> float:
    if trial.number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return parabola(trial)


def error_in_the_third(trial: search.TrialRun) -> float:
    if trial.number == 2:
        raise errors.DataError("no such file")
    return parabola(trial)


def full_disk_in_the_third(trial: search.TrialRun) -> float:
    if trial.number == 2:
        raise OSError(errno.ENOSPC, "No space left on device", "weights")
    return parabola(trial)


def killed_once(trial: search.TrialRun) -> float:
    """Kill the process the first time that trial 2 runs; return a value the second time."""
    path = pathlib.Path(trial.model_dir, "state.txt")
    _note(trial, "started")
    if trial.number == 2 and not path.exists():
        path.write_text("half way")
        os.kill(os.getpid(), signal.SIGKILL)
    return parabola(trial)


def slow(trial: search.TrialRun) -> float:
    """Run ten short steps and write each of them to a file."""
    path = pathlib.Path(trial.model_dir, "steps.txt")
    path.parent.mkdir(parents=True, exist_ok=True)
    done = len(path.read_text().splitlines()) if path.exists() else 0
    _note(trial, "started")
    for step in range(done, 10):
        with path.open("a") as file:
            file.write(f"{step}\n")
        time.sleep(0.01)
    return parabola(trial)


def fit(model: float, report: Any, target: float = 0.0) -> float:
    """Report and return the distance from the model, which is a number, to `target`."""
    report(abs(model - target))
    return abs(model - target)


def _note(trial: search.TrialRun, line: str) -> None:
    directory = pathlib.Path(trial.model_dir)
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "notes.txt").open("a") as file:
        file.write(line + "\n")
