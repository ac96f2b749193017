"""What a run has left in its directory, finished or not, as one object.

::

    run = read_run("runs/digits")
    run.status, run.step, run.best
    run.series["validation"]["accuracy"].values

Whatever is missing or can't be read is None or empty, and `problems` says so: one torn file must
not hide the others. Needs no TensorFlow, but for a remote directory.
"""

import dataclasses
import datetime
import json
import math
import os
import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_lite.checkpoint import commit
from official_lite.common import errors, files
from official_lite.core import execution_record, model_dir_lock
from official_lite.modeling.hyperparams import yaml_io
from official_lite.reports import metric_series
from official_lite.reports.metric_series import Series

__all__ = [
    "BestCheckpoint",
    "Run",
    "SavedCheckpoint",
    "Series",
    "find_runs",
    "is_run",
    "list_checkpoints",
    "read_run",
    "read_runs",
]

# Those of the training, and of jobs that only evaluate, which may look at its directory.
_METRICS = ("metrics.json", "metrics.continuous_eval.json", "metrics.eval.json")
# Any of them makes a directory that of a run.
_RECORDS = ("run.json", "params.yaml", *_METRICS)
# What a run keeps in directories of its own, which are no runs.
_NOT_RUNS = ("train", "validation", "best_ckpt", "damaged", "export", "profile", "plots")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavedCheckpoint:
    """A checkpoint in the directory of a run.

    Attributes:
        path: What TensorFlow takes: without the endings of its files.
        step: Its number.
        size: Bytes in all its files.
        is_committed: Whether it has a commit file, without which nobody knows if it is whole.
    """

    path: str
    step: int
    size: int
    is_committed: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class BestCheckpoint:
    """The best evaluation of a run, and its checkpoint.

    Attributes:
        step: When it was.
        metrics: All that was measured; NaN for what was not finite.
        path: The checkpoint; None if it is not there.
    """

    step: int
    metrics: Mapping[str, float]
    path: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A run, as far as its directory tells.

    Attributes:
        name: Its path below the folder it was looked for in; else the name of its directory.
        model_dir: Its directory.
        status: `done`, `failed`, `preempted`, `running`; `killed` if it was running and its process
            is gone; `unknown` if nothing tells.
        exit_reason: How it ended, in words; empty while it runs.
        mode: What was run, such as `train_and_eval`; empty if nothing tells.
        experiment: The experiment on its command line; empty if there was none.
        command: The command line.
        config: The resolved config, nested.
        given: The fields by their paths as they were given, before `auto` and epochs were decided.
        step: The last step that is known of.
        train_steps: Where training ends; None if nothing tells.
        num_parameters: Of the model; None if nothing tells.
        seed: The seed.
        start_time: Seconds since 1970.
        end_time: The same; None while it runs.
        seconds: What it took since its last start; None while it runs.
        environment: Host, platform, and versions by the names of the packages.
        execution: How `runtime.execution: auto` was decided; None if it was not.
        series: The metrics by split and name.
        checkpoints: From the oldest to the newest.
        best: The best checkpoint; None if none was kept.
        problems: What could not be read, a line each.
    """

    name: str
    model_dir: str
    status: str = "unknown"
    exit_reason: str = ""
    mode: str = ""
    experiment: str = ""
    command: str = ""
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    step: int = 0
    train_steps: int | None = None
    num_parameters: int | None = None
    seed: int | None = None
    start_time: float | None = None
    end_time: float | None = None
    seconds: float | None = None
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    execution: execution_record.ExecutionRecord | None = None
    series: Mapping[str, Mapping[str, Series]] = dataclasses.field(default_factory=dict)
    checkpoints: Sequence[SavedCheckpoint] = ()
    best: BestCheckpoint | None = None
    problems: Sequence[str] = ()

    @property
    def steps_per_second(self) -> float | None:
        """The median of what training has reported; None if it has not."""
        rates = self.series.get("train", {}).get("steps_per_second")
        finite = rates.finite() if rates else []
        return statistics.median(finite) if finite else None

    @property
    def examples_per_second(self) -> float | None:
        """The same in examples; None if the config does not say how many a step has."""
        task = self.config.get("task") or {}
        size = (task.get("train_data") or {}).get("global_batch_size")
        rate = self.steps_per_second
        return rate * size if rate is not None and isinstance(size, int) else None

    def last_metrics(self) -> dict[str, float]:
        """The last value of each metric, as `split/name`."""
        return {
            f"{split}/{name}": one.last
            for split, named in self.series.items()
            for name, one in named.items()
        }


def is_run(directory: str) -> bool:
    """Whether a run has left something in a directory."""
    return any(files.exists(os.path.join(directory, name)) for name in _RECORDS)


def find_runs(folder: str) -> list[str]:
    """The directories of all runs in a folder and below, sorted; that of a run may hold others.

    Raises:
        errors.ConfigValueError: There is no such folder.
    """
    if not files.exists(folder):
        raise errors.ConfigValueError(f"There is no folder {folder}.")
    return list(_walk(folder))


def read_runs(folder: str) -> list[Run]:
    """All runs in a folder and below, each named by its path in it.

    Raises:
        errors.ConfigValueError: There is no such folder.
    """
    found = find_runs(folder)
    return [read_run(path, name=_relative(path, folder)) for path in found]


def read_run(model_dir: str, *, name: str | None = None) -> Run:
    """Reads what a run has left.

    Args:
        model_dir: Its directory.
        name: How to call it; by default like its directory.

    Raises:
        errors.ConfigValueError: No run has left anything there.
    """
    checkpoints = list_checkpoints(model_dir)
    if not is_run(model_dir) and not checkpoints:
        raise errors.ConfigValueError(
            f"{model_dir} is no directory of a run: it holds none of {', '.join(_RECORDS)}, and no "
            "checkpoint."
        )
    reader = _Reader(model_dir)
    record, series = reader.json("run.json"), reader.series()
    versions = record.get("versions") or {}
    machine = {key: record[key] for key in ("host", "platform") if key in record}
    return Run(
        name=name or os.path.basename(os.path.abspath(model_dir)),
        model_dir=model_dir,
        status=_status(record, model_dir),
        exit_reason=str(record.get("exit_reason", "")),
        mode=str(record.get("mode", "")),
        experiment=_experiment(record.get("argv") or []),
        command=shlex.join(map(str, record.get("argv") or [])),
        config=reader.yaml("params.yaml"),
        given=record.get("params") or {},
        step=_last_step(record, series, checkpoints),
        train_steps=record.get("train_steps"),
        num_parameters=record.get("num_parameters"),
        seed=record.get("seed"),
        start_time=_seconds(record.get("start_time")),
        end_time=_seconds(record.get("end_time")),
        seconds=record.get("seconds"),
        environment={key: str(value) for key, value in {**machine, **versions}.items()},
        execution=reader.execution(),
        series=series,
        checkpoints=checkpoints,
        best=reader.best(),
        problems=tuple(reader.problems),
    )


def list_checkpoints(directory: str) -> list[SavedCheckpoint]:
    """The checkpoints of a directory, from the oldest to the newest.

    Those with a commit file; where there is none, all that have an index.
    """
    committed = commit.list_committed(directory)
    names = files.list_names(directory)
    loose = [name.removesuffix(".index") for name in names if name.endswith(".index")]
    paths = committed or [os.path.join(directory, name) for name in loose]
    return [
        SavedCheckpoint(
            path=path,
            step=commit.step_of(path),
            size=sum(map(_size, commit.list_files(path))),
            is_committed=bool(committed),
        )
        for path in sorted(paths, key=commit.step_of)
        if commit.step_of(path) >= 0
    ]


class _Reader:
    """Reads the files of a directory; what it can't read is none, and one of the problems."""

    def __init__(self, model_dir: str) -> None:
        self._model_dir = model_dir
        self.problems: list[str] = []

    def json(self, *path: str) -> dict[str, Any]:
        try:
            return dict(json.loads(self._text(*path) or "{}"))
        except (TypeError, ValueError) as error:
            self._tell(os.path.join(*path), error)
            return {}

    def yaml(self, name: str) -> dict[str, Any]:
        try:
            return dict(yaml_io.parse_yaml(self._text(name), name))
        except errors.ConfigError as error:
            self._tell(name, error)
            return {}

    def execution(self) -> execution_record.ExecutionRecord | None:
        try:
            return execution_record.load(self._model_dir)
        except errors.ConfigError as error:
            self.problems.append(str(error))
            return None

    def series(self) -> dict[str, dict[str, Series]]:
        series: dict[str, dict[str, Series]] = {}
        for name in _METRICS:
            found, problems = metric_series.parse(self._text(name))
            self.problems += [f"{name}: {problem}" for problem in problems]
            for split, curves in found.items():
                # What the training has evaluated itself comes before what others did beside it.
                series[split] = {**curves, **series.get(split, {})}
        return series

    def best(self) -> BestCheckpoint | None:
        """That of the config, or of a hook: whichever directory has an `info.json`."""
        for name in files.list_names(self._model_dir):
            info = self.json(name, "info.json")
            step = info.pop("best_ckpt_global_step", None)
            if step is None:
                continue
            directory = os.path.join(self._model_dir, name)
            fitting = [each.path for each in list_checkpoints(directory) if each.step == int(step)]
            metrics = {key: math.nan if v is None else v for key, v in _flat(info)}
            return BestCheckpoint(
                step=int(step), metrics=metrics, path=fitting[0] if fitting else None
            )
        return None

    def _text(self, *path: str) -> str:
        full = os.path.join(self._model_dir, *path)
        try:
            return files.read_text(full) if files.exists(full) else ""
        except (OSError, UnicodeDecodeError) as error:
            self._tell(os.path.join(*path), error)
            return ""

    def _tell(self, name: str, error: Exception) -> None:
        self.problems.append(f"{name} can't be read: {error}")


def _walk(folder: str) -> Iterator[str]:
    if is_run(folder):
        yield folder
    for name in files.list_names(folder):
        path = os.path.join(folder, name)
        # No links: they may lead in a circle.
        if name.startswith(".") or name in _NOT_RUNS or os.path.islink(path):
            continue
        if os.path.isdir(path):
            yield from _walk(path)


def _relative(path: str, folder: str) -> str:
    relative = os.path.relpath(path, folder)
    return os.path.basename(os.path.abspath(folder)) if relative == os.curdir else relative


def _size(path: str) -> int:
    try:
        return files.size(path)
    except OSError:  # A run that is under way may just have removed it.
        return 0


def _status(record: Mapping[str, Any], model_dir: str) -> str:
    status = str(record.get("status", "unknown"))
    is_locked = "train" in str(record.get("mode", ""))
    # A killed process leaves the word that it wrote at its start.
    if status == "running" and is_locked and model_dir_lock.is_held(model_dir) is False:
        return "killed"
    return status


def _last_step(
    record: Mapping[str, Any],
    series: Mapping[str, Mapping[str, Series]],
    checkpoints: Sequence[SavedCheckpoint],
) -> int:
    if (step := record.get("global_step")) is not None:
        return int(step)
    reported = (one.steps[-1] for named in series.values() for one in named.values())
    return max([0, *reported, *(each.step for each in checkpoints)])


def _experiment(argv: Sequence[str]) -> str:
    for index, argument in enumerate(argv):
        name, separator, value = str(argument).lstrip("-").partition("=")
        if not str(argument).startswith("-") or name != "experiment":
            continue
        return value if separator else next(iter(argv[index + 1 : index + 2]), "")
    return ""


def _seconds(text: str | None) -> float | None:
    try:
        return datetime.datetime.strptime(text or "", "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except ValueError:
        return None


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value
