"""List the runs below a directory, or compare some of them side by side.

    python -m official_lite.tools runs list /tmp/runs --sort=accuracy --descending
    python -m official_lite.tools runs list /tmp/runs --where=status=done --where='accuracy>0.9'
    python -m official_lite.tools runs list /tmp/runs --columns=name,step,accuracy,task.model.units
    python -m official_lite.tools runs compare /tmp/runs/a /tmp/runs/b

--columns, --where and --sort accept a field (name, status, experiment, step, seconds, …), a metric,
and a config field by its path or the end of its path (`task.model.units`, `units`). The metric
`accuracy` is the last value of validation; `train/accuracy` and `best/accuracy` are others. Metrics
are read from `metrics.json`, which the writer `jsonl` writes.
"""

import argparse
import dataclasses
import fnmatch
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_lite.common import errors, suggestions
from official_lite.config import compatibility
from official_lite.run import run_reading
from official_lite.tools import listing

# The fields that every run has in addition to its metrics and config.
FIELDS = (
    "name",
    "model_dir",
    "status",
    "experiment",
    "mode",
    "step",
    "train_steps",
    "num_parameters",
    "seed",
    "start_time",
    "end_time",
    "seconds",
    "goodput",
    "steps_per_second",
    "examples_per_second",
    "best_step",
    "exit_reason",
)

_CONDITION = re.compile(r"\s*([^=!<>~\s]+)\s*(!=|<=|>=|=|<|>|~)\s*(.*?)\s*")
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_ALWAYS = ("name", "status", "step")
_MORE = (
    "best_step",
    "num_parameters",
    "steps_per_second",
    "seconds",
    "goodput",
    "start_time",
    "experiment",
)
_FORMATS: Mapping[str, listing.Format] = {
    "start_time": listing.time_text,
    "end_time": listing.time_text,
    "seconds": listing.duration_text,
    "goodput": listing.share_text,
}
# The maximum number of metrics in a table, which has room for only a few.
_MAX_METRICS = 3
_ABOUT_SPEED = ("steps_per_second", "seconds_per_step", "examples_per_second", "eta_seconds")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """The searchable information about a run, by name.

    Attributes:
        run: The run.
        fields: Values of `FIELDS`.
        metrics: Last value of each metric as `split/name`, and values of the best evaluation as
            `best/name`.
        config: Config fields by path.
    """

    run: run_reading.Run
    fields: Mapping[str, Any]
    metrics: Mapping[str, float]
    config: Mapping[str, Any]

    def get(self, name: str) -> Any:
        """Return the value for a full name; None if the run has none."""
        for values in (self.fields, self.metrics, self.config):
            if name in values:
                return values[name]
        return None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `list` and `compare`."""
    acts = parser.add_subparsers(dest="act", required=True, metavar="list|compare")
    every = acts.add_parser("list", help="List the runs in a directory, one per line.")
    every.add_argument("folder", help="A directory, which is searched recursively.")
    every.add_argument("--columns", default="", metavar="A,B", help="The columns to show.")
    every.add_argument("--limit", type=int, default=0, metavar="N", help="Show only the first N.")
    some = acts.add_parser("compare", help="Compare configs and results of runs side by side.")
    some.add_argument(
        "folders",
        nargs="+",
        metavar="folder",
        help="Model directories, or directories that contain them.",
    )
    for parser_of_act in (every, some):
        parser_of_act.add_argument(
            "--sort", default="", metavar="NAME", help="A field, metric or config value to sort by."
        )
        parser_of_act.add_argument(
            "--descending", action="store_true", help="Sort in descending order."
        )
        parser_of_act.add_argument(
            "--where",
            action="append",
            default=[],
            metavar="CONDITION",
            help=(
                "A condition such as `status=done`, `accuracy>0.9` or `name~digits`; repeatable, "
                "all must hold."
            ),
        )
        listing.add_json_argument(parser_of_act)


def run(args: argparse.Namespace) -> int:
    """Print the runs."""
    folders = [args.folder] if args.act == "list" else args.folders
    runs = [facts_of(each) for each in _read(folders)]
    runs = select(runs, args.where)
    if args.sort:
        runs = sort(runs, args.sort, descending=args.descending)
    if args.act == "list":
        _list(runs, args)
    else:
        _compare(runs, args)
    return int(errors.ExitCode.DONE)


def _read(folders: Sequence[str]) -> list[run_reading.Run]:
    if len(folders) == 1:
        return run_reading.read_runs(folders[0])
    found = [path for folder in folders for path in run_reading.find_runs(folder)]
    # Name the runs by their paths, because runs in two folders may have the same name.
    return [run_reading.read_run(path, name=path) for path in dict.fromkeys(found)]


def _list(runs: Sequence[Facts], args: argparse.Namespace) -> None:
    shown = runs[: args.limit] if args.limit else runs
    if args.json:
        listing.print_json([_as_json(facts) for facts in shown])
        return
    if not runs:
        print("Found no matching runs.")
        return
    names = args.columns.split(",") if args.columns else _usual_columns(runs)
    full = [resolve(name.strip(), runs) for name in names]
    rows = [{name: facts.get(name) for name in full} for facts in shown]
    if not args.columns:
        rows = [{**row, **_in_short(facts)} for row, facts in zip(rows, shown, strict=True)]
    listing.print_table(rows, full, formats=_FORMATS)


def _usual_columns(runs: Sequence[Facts]) -> list[str]:
    metrics = sorted(filter(_is_a_result, metric_names(runs)), key=_rank_of(runs))
    more = [name for name in _MORE if any(facts.get(name) not in (None, "") for facts in runs)]
    if any(facts.get("exit_reason") not in (None, "", "completed") for facts in runs):
        more.insert(0, "exit_reason")
    return [*_ALWAYS, *metrics[:_MAX_METRICS], *more]


def _is_a_result(name: str) -> bool:
    split, _, metric = name.partition("/")
    return split != "best" and not metric.startswith("best_") and metric not in _ABOUT_SPEED


def _rank_of(runs: Sequence[Facts]) -> Callable[[str], tuple[bool, int]]:
    """Return a sort key for metrics.

    The metrics that select best checkpoints come first, followed by the most common metrics.
    """
    judged_by = {facts.get("trainer.best_checkpoint_eval_metric") for facts in runs}
    wanted = {f"validation/{name}" for name in judged_by}
    return lambda name: (name not in wanted, -sum(name in facts.metrics for facts in runs))


def _in_short(facts: Facts) -> dict[str, str]:
    """Return the shortened texts that the default table shows in place of some values."""
    step, total = facts.run.step, facts.run.train_steps
    return {
        "step": f"{step}/{total}" if total else str(step),
        # Show only the kind of reason, such as `early_stopping`; the report shows the full reason.
        "exit_reason": str(facts.get("exit_reason") or "").partition(":")[0],
    }


def _as_json(facts: Facts) -> dict[str, Any]:
    return {**facts.fields, "metrics": facts.metrics, "problems": list(facts.run.problems)}


def _compare(runs: Sequence[Facts], args: argparse.Namespace) -> None:
    config = _differing([facts.config for facts in runs])
    if args.json:
        documents = [
            {**_as_json(facts), "config": {path: facts.config.get(path) for path in config}}
            for facts in runs
        ]
        listing.print_json({"differing": config, "runs": documents})
        return
    if not runs:
        print("Found no matching runs.")
        return
    fields = [name for name in FIELDS if name not in ("name", "model_dir")]
    environment = _differing([facts.run.environment for facts in runs])
    rows = [
        *_rows(config, [facts.config for facts in runs]),
        *_rows(fields, [facts.fields for facts in runs]),
        *_rows(metric_names(runs), [facts.metrics for facts in runs]),
        *_rows(environment, [facts.run.environment for facts in runs]),
    ]
    names = [facts.run.name for facts in runs]
    columns = ["", *(f"{name}" for name in names)]
    listing.print_table([dict(zip(columns, row, strict=True)) for row in rows], columns)


def _differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names whose values are not the same in all mappings."""
    names = dict.fromkeys(name for config in configs for name in config)
    missing = compatibility.MISSING
    return [
        name
        for name in names
        if any(config.get(name, missing) != configs[0].get(name, missing) for config in configs)
    ]


def _rows(names: Sequence[str], sources: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return a row for each name that has a value in at least one source.

    All cells are strings, because the rows have values of different types.
    """
    rows = []
    for name in names:
        texts = [_FORMATS.get(name, listing.value_text)(source.get(name)) for source in sources]
        if any(text != "-" for text in texts):
            rows.append([name, *texts])
    return rows


def facts_of(run: run_reading.Run) -> Facts:
    """Collect the searchable information about a run."""
    fields = {name: getattr(run, name) for name in FIELDS if name != "best_step"}
    best = run.best.metrics if run.best else {}
    return Facts(
        run=run,
        fields={**fields, "best_step": run.best.step if run.best else None},
        metrics={**run.last_metrics(), **{f"best/{name}": value for name, value in best.items()}},
        config=compatibility.flatten(run.config),
    )


def metric_names(runs: Sequence[Facts]) -> list[str]:
    """Return the metrics of all runs: validation first, then best, test, training and others."""
    names = dict.fromkeys(name for facts in runs for name in facts.metrics)
    order = {"validation": 0, "best": 1, "test": 2, "train": 3}
    return sorted(names, key=lambda name: order.get(name.partition("/")[0], len(order)))


def resolve(name: str, runs: Sequence[Facts]) -> str:
    """Return the full name for a short one; `accuracy` prefers `validation/accuracy`.

    If the validation has the metric for several tasks, the short name is ambiguous.

    Raises:
        errors.UnknownNameError: No run has such a name, or it is ambiguous.
    """
    metrics = metric_names(runs)
    paths = list(dict.fromkeys(path for facts in runs for path in facts.config))
    known = [*FIELDS, *metrics, *paths]
    if name in known:
        return name
    ends = (f"/{name}", f".{name}")
    fitting = [other for other in known if other.endswith(ends)]
    if not fitting:
        short = [metric.rpartition("/")[2] for metric in metrics]
        raise errors.UnknownNameError(
            f"No run has a field, metric or config value {name!r}. "
            f"{suggestions.did_you_mean(name, [*known, *short])}".rstrip()
        )
    if fitting[0] in metrics:
        split = fitting[0].partition("/")[0]
        if (exact := f"{split}/{name}") in fitting:
            return exact
        fitting = [other for other in fitting if other.startswith(f"{split}/")]
    if len(fitting) > 1:
        raise errors.UnknownNameError(
            f"{name!r} is ambiguous. Use {' or '.join(f'`{each}`' for each in fitting[:5])}."
        )
    return fitting[0]


def select(runs: Sequence[Facts], conditions: Sequence[str]) -> list[Facts]:
    """Return the runs for which all conditions hold.

    Args:
        runs: The runs.
        conditions: `name=value`, `!=`, `<`, `<=`, `>`, `>=`, or `name~part`, where the part may
            contain `*` and `?`. For a run without such a value, only `!=` holds.

    Raises:
        errors.ConfigError: A condition can't be parsed, or no run has its name.
    """
    kept = list(runs)
    for condition in conditions:
        matched = _CONDITION.fullmatch(condition)
        if not matched:
            raise errors.ConfigValueError(
                f"Can't parse the condition {condition!r}. Expected a condition such as "
                "'status=done', 'accuracy>0.9' or 'name~digits'."
            )
        short, sign, wanted = matched.groups()
        name = resolve(short, runs) if runs else short
        kept = [facts for facts in kept if _holds(facts.get(name), sign, wanted, condition)]
    return kept


def sort(runs: Sequence[Facts], name: str, *, descending: bool = False) -> list[Facts]:
    """Sort the runs by a field, metric or config value; runs without it come last."""
    full = resolve(name, runs) if runs else name
    known = [facts for facts in runs if _is_known(facts.get(full))]
    others = [facts for facts in runs if not _is_known(facts.get(full))]
    return sorted(known, key=lambda facts: _key(facts.get(full)), reverse=descending) + others


def _holds(value: Any, sign: str, wanted: str, condition: str) -> bool:
    if not _is_known(value):
        return sign == "!="
    if sign == "~":
        pattern = wanted if any(each in wanted for each in "*?[") else f"*{wanted}*"
        return fnmatch.fnmatchcase(str(value), pattern)
    if sign in ("=", "!="):
        return _is_equal(value, wanted) == (sign == "=")
    try:
        return _COMPARE[sign](float(value), float(wanted))
    except (TypeError, ValueError) as error:
        raise errors.ConfigValueError(
            f"The condition {condition!r} compares {value!r} with {wanted!r}; expected numbers."
        ) from error


def _is_equal(value: Any, wanted: str) -> bool:
    if isinstance(value, bool):
        return str(value).lower() == wanted.lower()
    if isinstance(value, int | float):
        try:
            return float(value) == float(wanted)
        except ValueError:
            return False
    return str(value) == wanted


def _is_known(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def _key(value: Any) -> tuple[bool, Any]:
    """Return a sort key that puts numbers before strings, since a column may contain both."""
    is_number = isinstance(value, int | float)
    return not is_number, value if is_number else str(value)
