"""Functions that read the files of a run, finished or not, from its model directory.

::

    run = read_run("runs/digits")
    run.status, run.step, run.best
    run.series["validation"]["accuracy"].values

Missing or unreadable information is None or empty, and `problems` lists what could not be read, so
that one damaged file does not hide the others. TensorFlow is needed only for remote directories.
"""

import dataclasses
import datetime
import math
import os
import shlex
import statistics
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from official_lite.checkpoint import commit
from official_lite.common import errors, files, goodput, nested_dict
from official_lite.execution import execution_record
from official_lite.modeling.hyperparams import yaml_io
from official_lite.run import model_dir_lock

# The metrics files of the training job and of evaluation-only jobs in the same directory.
_METRICS = (
    "metrics.json",
    "metrics.continuous_eval.json",
    "metrics.eval.json",
    "metrics.test.json",
)
# Files that identify a model directory.
_RECORDS = ("run.json", "params.yaml", *_METRICS)
# The expected types of the fields in `run.json`; a field of another type is reported as a problem.
_TYPES: dict[str, type | types.UnionType] = {
    "argv": list,
    "end_time": str,
    "exit_reason": str,
    "global_step": int,
    "host": str,
    "mode": str,
    "num_parameters": int,
    "params": dict,
    "platform": str,
    "seconds": int | float,
    "seed": int,
    "start_time": str,
    "status": str,
    "train_steps": int,
    "versions": dict,
}
# Subdirectories of a model directory that are not runs.
_NOT_RUNS = ("train", "validation", "best_ckpt", "damaged", "export", "profile", "plots")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Series:
    """A metric of one split over the steps of a run.

    If a run was restarted from an earlier checkpoint, only the values reported last are kept for
    the repeated steps.

    Attributes:
        split: `train`, `validation`, `test`, …
        name: Name of the metric; nested names are joined by `/`.
        steps: Steps, increasing.
        values: One value per step; NaN for values that were not finite.
        wall_times: When each value was written, in seconds since 1970; None if the file does not
            contain it.
    """

    split: str
    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    wall_times: tuple[float | None, ...]

    @property
    def last(self) -> float:
        """The value at the last step."""
        return self.values[-1]

    def finite(self) -> list[float]:
        """Return the finite values."""
        return [value for value in self.values if math.isfinite(value)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavedCheckpoint:
    """A checkpoint in a model directory.

    Attributes:
        path: The path as TensorFlow expects it: without the suffixes of the files.
        step: The training step.
        size: Total size of its files in bytes.
        is_committed: Whether it has a commit file. Without one, it may be incomplete.
    """

    path: str
    step: int
    size: int
    is_committed: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class BestCheckpoint:
    """The best evaluation of a run and its checkpoint.

    Attributes:
        step: The step of the evaluation.
        metrics: All metrics; NaN for values that were not finite.
        path: Path of the checkpoint; None if it does not exist.
    """

    step: int
    metrics: Mapping[str, float]
    path: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A run, as described by the files in its model directory.

    Attributes:
        name: The path relative to the folder that was searched; the name of the model directory if
            no folder was searched.
        model_dir: The model directory.
        status: `done`, `failed`, `preempted` or `running`; `killed` if the run did not end but its
            process is gone; `unknown` if no file contains the status.
        exit_reason: Why the run ended; empty while it runs.
        mode: The mode of the run, such as `train_and_eval`; empty if unknown.
        experiment: The experiment on the command line; empty if there was none.
        command: The command line.
        config: The resolved config, nested.
        given: The fields as given, by path, before `auto` and epochs were resolved.
        step: The last known step.
        train_steps: The step at which training ends; None if unknown.
        num_parameters: Number of model parameters; None if unknown.
        seed: The seed.
        start_time: Seconds since 1970.
        end_time: Seconds since 1970; None while it runs.
        seconds: Duration since the last start in seconds; None while it runs.
        time_record: Where the time went, over all starts; None if it was not recorded.
        environment: Host, platform, and versions by package name.
        execution: How `runtime.execution: auto` was resolved; None if it was not used.
        series: The metrics by split and name.
        checkpoints: The checkpoints, oldest first.
        best: The best checkpoint; None if none was kept.
        problems: What could not be read, one line each.
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
    time_record: goodput.TimeRecord | None = None
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    execution: execution_record.ExecutionRecord | None = None
    series: Mapping[str, Mapping[str, Series]] = dataclasses.field(default_factory=dict)
    checkpoints: Sequence[SavedCheckpoint] = ()
    best: BestCheckpoint | None = None
    problems: Sequence[str] = ()

    @property
    def steps_per_epoch(self) -> float | None:
        """The number of steps in an epoch; None unless `trainer.train_epochs` is at least 1."""
        # Do not report epochs for a run that is shorter than one epoch, such as a dry run.
        epochs = self.given.get("trainer.train_epochs")
        if not self.train_steps or not isinstance(epochs, int | float) or epochs < 1:
            return None
        return self.train_steps / epochs

    @property
    def steps_per_second(self) -> float | None:
        """The median of the reported training speeds; None if none was reported."""
        rates = self.series.get("train", {}).get("steps_per_second")
        finite = rates.finite() if rates else []
        return statistics.median(finite) if finite else None

    @property
    def examples_per_second(self) -> float | None:
        """The median training speed in examples; None if the config has no batch size."""
        task = self.config.get("task") or {}
        data = task.get("train_data")
        size = data.get("global_batch_size") if isinstance(data, Mapping) else None
        rate = self.steps_per_second
        return rate * size if rate is not None and isinstance(size, int) else None

    @property
    def goodput(self) -> float | None:
        """The fraction of the running time that was spent on steps whose results were kept."""
        return self.time_record.share if self.time_record else None

    def last_metrics(self) -> dict[str, float]:
        """Return the last value of each metric, named `split/name`."""
        return {
            f"{split}/{name}": one.last
            for split, named in self.series.items()
            for name, one in named.items()
        }


def is_run(directory: str) -> bool:
    """Return whether a directory contains files of a run."""
    return any(files.exists(os.path.join(directory, name)) for name in _RECORDS)


def find_runs(folder: str) -> list[str]:
    """Return the sorted model directories in and below a folder; they may be nested.

    Raises:
        errors.ConfigValueError: If the folder does not exist.
    """
    files.require_directory(folder)
    return list(_walk(folder))


def read_runs(folder: str) -> list[Run]:
    """Read all runs in and below a folder, each named by its relative path.

    Raises:
        errors.ConfigValueError: If the folder does not exist.
    """
    found = find_runs(folder)
    return [_read_or_explain(path, _relative(path, folder)) for path in found]


def _read_or_explain(path: str, name: str) -> Run:
    """Read a run; if that fails, return a `Run` with only the error in `problems`."""
    try:
        return read_run(path, name=name)
    except (OSError, errors.OfficialLiteError) as error:
        return Run(name=name, model_dir=path, problems=(str(error),))


def read_run(model_dir: str, *, name: str | None = None) -> Run:
    """Read the files of a run.

    Args:
        model_dir: The model directory.
        name: Name of the run. Defaults to the name of the model directory.

    Raises:
        errors.ConfigValueError: If the directory contains no files of a run.
    """
    files.require_directory(model_dir)
    checkpoints = list_checkpoints(model_dir)
    if not is_run(model_dir) and not checkpoints:
        raise errors.ConfigValueError(
            f"{model_dir} is not a model directory: it contains none of {', '.join(_RECORDS)} and "
            "no checkpoint. Pass the model directory of a run."
        )
    reader = _Reader(model_dir)
    record, series, config = reader.record(), reader.series(), reader.yaml("params.yaml")
    given, versions = record.get("params") or {}, record.get("versions") or {}
    machine = {key: record[key] for key in ("host", "platform") if key in record}
    return Run(
        name=name or os.path.basename(os.path.abspath(model_dir)),
        model_dir=model_dir,
        status=_status(record, model_dir),
        exit_reason=str(record.get("exit_reason", "")),
        mode=str(record.get("mode", "")),
        experiment=_experiment(record.get("argv") or []),
        command=shlex.join(map(str, record.get("argv") or [])),
        config=config,
        given=given,
        step=_last_step(record, series, checkpoints),
        train_steps=record.get("train_steps"),
        num_parameters=record.get("num_parameters"),
        seed=record.get("seed"),
        start_time=_seconds(record.get("start_time")),
        end_time=_seconds(record.get("end_time")),
        seconds=record.get("seconds"),
        time_record=reader.time_record(),
        environment={key: str(value) for key, value in {**machine, **versions}.items()},
        # The file stays if a run that began with `auto` resumes in a mode that its user set.
        execution=reader.execution() if given.get("runtime.execution", "auto") == "auto" else None,
        series=series,
        checkpoints=checkpoints,
        best=reader.best(config),
        problems=tuple(reader.problems),
    )


def list_checkpoints(directory: str) -> list[SavedCheckpoint]:
    """Return the checkpoints in a directory, oldest first.

    These are the checkpoints with a commit file or, if no checkpoint has one, all checkpoints with
    an index file.
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
    """Reader of the files in a model directory, which lists unreadable files in `problems`."""

    def __init__(self, model_dir: str) -> None:
        self._model_dir = model_dir
        self.problems: list[str] = []

    def json(self, *path: str) -> dict[str, Any]:
        try:
            return files.parse_json(self._text(*path) or "{}")
        except ValueError as error:
            self._tell(os.path.join(*path), error)
            return {}

    def record(self) -> dict[str, Any]:
        """Return `run.json` without the fields whose values have a wrong type."""
        record = self.json("run.json")
        for name, kind in _TYPES.items():
            value = record.get(name)
            if value is None:
                record.pop(name, None)
            elif not isinstance(value, kind) or isinstance(value, bool):
                self.problems.append(f"run.json: `{name}` has the unexpected value {value!r:.60}")
                del record[name]
        if not 0 <= record.get("seconds", 0) < 2**31:
            self.problems.append(
                f"run.json: `seconds` is {record.pop('seconds')!r:.60}, which is out of range"
            )
        return record

    def yaml(self, name: str) -> dict[str, Any]:
        try:
            config = dict(yaml_io.parse_yaml(self._text(name), name))
        except errors.ConfigError as error:
            self._tell(name, error)
            return {}
        for block in ("task", "trainer", "runtime", "search"):
            if not isinstance(config.get(block) or {}, dict):
                self.problems.append(
                    f"{name}: `{block}` is not a mapping: {config.pop(block)!r:.60}"
                )
        return config

    def execution(self) -> execution_record.ExecutionRecord | None:
        try:
            return execution_record.load(self._model_dir)
        except errors.ConfigError as error:
            self.problems.append(str(error))
            return None

    def time_record(self) -> goodput.TimeRecord | None:
        try:
            return goodput.read(self._model_dir)
        except (OSError, ValueError) as error:
            self._tell(goodput.NAME, error)
            return None

    def series(self) -> dict[str, dict[str, Series]]:
        series: dict[str, dict[str, Series]] = {}
        for name in _METRICS:
            found, problems = self._parse_metrics(name)
            self.problems += [f"{name}: {problem}" for problem in problems]
            for split, curves in found.items():
                known = series.setdefault(split, {})
                for metric, curve in curves.items():
                    # At an equal step, the training job takes precedence over other jobs.
                    known[metric] = _union(known[metric], curve) if metric in known else curve
        return series

    def _parse_metrics(self, name: str) -> tuple[dict[str, dict[str, Series]], list[str]]:
        path = os.path.join(self._model_dir, name)
        if not files.exists(path):
            return {}, []
        try:
            # Parse line by line, because the file of a long run may not fit in memory.
            with files.open_file(path, "r") as file:
                return parse_metrics(file)
        except UnicodeDecodeError as error:
            return {}, [f"the file is not UTF-8 text: {error}."]
        except OSError as error:
            return {}, [f"the file can't be read: {error}"]

    def best(self, config: Mapping[str, Any]) -> BestCheckpoint | None:
        """Return the best checkpoint, kept by the trainer or else by a hook; None if there is none.

        The trainer and each such hook have a separate directory with an `info.json`. Other
        directories follow, because the config may have changed since they were written.
        """
        names = [*_best_directories(config), *sorted(files.list_names(self._model_dir))]
        for name in dict.fromkeys(names):
            info = self.json(name, "info.json")
            step = info.pop("best_ckpt_global_step", None)
            if step is None:
                continue
            # The Model Garden writes the step as a float.
            if not isinstance(step, int | float) or not math.isfinite(step):
                self.problems.append(f"{name}/info.json: the step is not a number: {step!r:.60}")
                continue
            directory = os.path.join(self._model_dir, name)
            fitting = [each.path for each in list_checkpoints(directory) if each.step == int(step)]
            flat = nested_dict.flatten_nested_dict(info, "/")
            numbers = {k: v for k, v in flat.items() if v is None or isinstance(v, int | float)}
            metrics = {key: math.nan if v is None else v for key, v in numbers.items()}
            return BestCheckpoint(
                step=int(step), metrics=metrics, path=fitting[0] if fitting else None
            )
        return None

    def _text(self, *path: str) -> str:
        full = os.path.join(self._model_dir, *path)
        try:
            return files.read_text(full) if files.exists(full) else ""
        except (OSError, errors.ConfigValueError) as error:
            self._tell(os.path.join(*path), error)
            return ""

    def _tell(self, name: str, error: Exception) -> None:
        self.problems.append(f"{name} can't be read: {error}")


def _best_directories(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the directories of best checkpoints in the order of `preflight.find_best_checkpoint`.

    They may be nested, or outside of the model directory.
    """
    trainer = config.get("trainer") or {}
    if kept := trainer.get("best_checkpoint_export_subdir"):
        yield str(kept)
    hooks = trainer.get("hooks")
    for hook in hooks if isinstance(hooks, list) else []:
        entry = hook if isinstance(hook, dict) else {"name": hook}
        if entry.get("name") == "best_checkpoint":
            yield str(entry.get("directory", "best_ckpt"))


def _walk(folder: str) -> Iterator[str]:
    inside_a_run = is_run(folder)
    if inside_a_run:
        yield folder
    for name in files.list_names(folder):
        path = os.path.join(folder, name)
        is_part_of_run = inside_a_run and name in _NOT_RUNS
        # Skip links, because they may form a cycle.
        if name.startswith(".") or is_part_of_run or os.path.islink(path):
            continue
        if os.path.isdir(path):
            yield from _walk(path)


def _relative(path: str, folder: str) -> str:
    relative = os.path.relpath(path, folder)
    return os.path.basename(os.path.abspath(folder)) if relative == os.curdir else relative


def _size(path: str) -> int:
    try:
        return files.size(path)
    except OSError:  # A running job may just have removed the file.
        return 0


def _status(record: Mapping[str, Any], model_dir: str) -> str:
    status = str(record.get("status", "unknown"))
    is_locked = "train" in str(record.get("mode", ""))
    # A killed process can't update the status `running`, which it wrote at its start.
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


def _union(first: Series, second: Series) -> Series:
    """Return the points of two series of one metric; at an equal step, the point of `first`."""
    points = {
        step: (value, wall_time)
        for one in (second, first)
        for step, value, wall_time in zip(one.steps, one.values, one.wall_times, strict=True)
    }
    steps = tuple(sorted(points))
    values, wall_times = zip(*(points[step] for step in steps), strict=True)
    return dataclasses.replace(first, steps=steps, values=values, wall_times=wall_times)


def parse_metrics(lines: Iterable[str]) -> tuple[dict[str, dict[str, Series]], list[str]]:
    """Parse the lines of a metrics file.

    Args:
        lines: The lines with their line breaks, such as an open file. The last one may be
            incomplete while the file is being written.

    Returns:
        The series by split and name, and one description for each line that could not be read.
    """
    curves: dict[tuple[str, str], _SeriesBuilder] = {}
    problems: list[str] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = files.parse_json(line)
            step, split = int(record.pop("step")), str(record.pop("split"))
            wall_time = record.pop("wall_time", None)
            if wall_time is not None and not math.isfinite(wall_time):
                raise ValueError(f"`wall_time` is {wall_time}; expected a finite number")
            # Non-finite values are recorded as null.
            values = {n: math.nan if v is None else float(v) for n, v in record.items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if line.endswith("\n"):
                problems.append(f"line {number} can't be read: {error}")
            continue
        for name, value in values.items():
            curves.setdefault((split, name), _SeriesBuilder()).add(step, value, wall_time)
    series: dict[str, dict[str, Series]] = {}
    for (split, name), curve in curves.items():
        series.setdefault(split, {})[name] = curve.series(split, name)
    return series, problems


class _SeriesBuilder:
    """Builder of a `Series` from values in the order in which they were written."""

    def __init__(self) -> None:
        # Use three lists, because a list of tuples would take twice the memory.
        self._steps: list[int] = []
        self._values: list[float] = []
        self._wall_times: list[float | None] = []

    def add(self, step: int, value: float, wall_time: float | None) -> None:
        """Add a value; drop values that an earlier start wrote for this or later steps."""
        while self._steps and self._steps[-1] >= step:
            for column in (self._steps, self._values, self._wall_times):
                column.pop()
        self._steps.append(step)
        self._values.append(value)
        self._wall_times.append(wall_time)

    def series(self, split: str, name: str) -> Series:
        return Series(
            split=split,
            name=name,
            steps=tuple(self._steps),
            values=tuple(self._values),
            wall_times=tuple(self._wall_times),
        )
