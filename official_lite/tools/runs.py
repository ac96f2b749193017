"""Lists the runs below a folder, or puts some of them side by side.

    python -m official_lite.tools runs list /tmp/runs --sort=accuracy --descending
    python -m official_lite.tools runs list /tmp/runs --where=status=done --where='accuracy>0.9'
    python -m official_lite.tools runs list /tmp/runs --columns=name,step,accuracy,task.model.units
    python -m official_lite.tools runs compare /tmp/runs/a /tmp/runs/b

A column, a condition or an order names a field (name, status, experiment, step, seconds, …), a
metric (`accuracy` is the last one of validation; `train/accuracy` and `best/accuracy` are others),
or a field of the config by its path or the end of it (`task.model.units`, `units`). Metrics are
those in `metrics.json`, which the writer `jsonl` leaves.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_lite.common import errors
from official_lite.config import compatibility
from official_lite.run import run_reading
from official_lite.tools import listing, run_queries

__all__ = ["add_arguments", "run"]

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
# A table has room for only a few metrics.
_MOST_METRICS = 3
_ABOUT_SPEED = ("steps_per_second", "seconds_per_step", "examples_per_second", "eta_seconds")


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
    runs = [run_queries.facts_of(each) for each in _read(folders)]
    runs = run_queries.select(runs, args.where)
    if args.sort:
        runs = run_queries.sort(runs, args.sort, descending=args.descending)
    if args.act == "list":
        _list(runs, args)
    else:
        _compare(runs, args)
    return int(errors.ExitCode.DONE)


def _read(folders: Sequence[str]) -> list[run_reading.Run]:
    if len(folders) == 1:
        return run_reading.read_runs(folders[0])
    found = [path for folder in folders for path in run_reading.find_runs(folder)]
    # Paths as given distinguish runs that have the same name in two folders.
    return [run_reading.read_run(path, name=path) for path in dict.fromkeys(found)]


def _list(runs: Sequence[run_queries.Facts], args: argparse.Namespace) -> None:
    shown = runs[: args.limit] if args.limit else runs
    if args.json:
        listing.print_json([_as_json(facts) for facts in shown])
        return
    if not runs:
        print("There are no such runs.")
        return
    names = args.columns.split(",") if args.columns else _usual_columns(runs)
    full = [run_queries.resolve(name.strip(), runs) for name in names]
    rows = [{name: facts.get(name) for name in full} for facts in shown]
    if "step" in full and not args.columns:
        rows = [{**row, "step": _progress(facts)} for row, facts in zip(rows, shown, strict=True)]
    if "exit_reason" in full and not args.columns:
        # There is room for the kind only, such as `early_stopping`; the report has the whole text.
        rows = [
            {**row, "exit_reason": _kind(facts)} for row, facts in zip(rows, shown, strict=True)
        ]
    listing.print_table(rows, full, formats=_FORMATS)


def _usual_columns(runs: Sequence[run_queries.Facts]) -> list[str]:
    metrics = sorted(filter(_is_a_result, run_queries.metric_names(runs)), key=_rank_of(runs))
    more = [name for name in _MORE if any(facts.get(name) not in (None, "") for facts in runs)]
    if any(facts.get("exit_reason") not in (None, "", "completed") for facts in runs):
        more.insert(0, "exit_reason")
    return [*_ALWAYS, *metrics[:_MOST_METRICS], *more]


def _is_a_result(name: str) -> bool:
    split, _, metric = name.partition("/")
    return split != "best" and not metric.startswith("best_") and metric not in _ABOUT_SPEED


def _rank_of(runs: Sequence[run_queries.Facts]) -> Callable[[str], tuple[bool, int]]:
    """Return a sort key: first the metrics that select the best checkpoint, then common ones."""
    judged_by = {facts.get("trainer.best_checkpoint_eval_metric") for facts in runs}
    wanted = {f"validation/{name}" for name in judged_by}
    return lambda name: (name not in wanted, -sum(name in facts.metrics for facts in runs))


def _progress(facts: run_queries.Facts) -> str:
    total = facts.run.train_steps
    return f"{facts.run.step}/{total}" if total else str(facts.run.step)


def _kind(facts: run_queries.Facts) -> str:
    return str(facts.get("exit_reason") or "").partition(":")[0]


def _as_json(facts: run_queries.Facts) -> dict[str, Any]:
    return {**facts.fields, "metrics": facts.metrics, "problems": list(facts.run.problems)}


def _compare(runs: Sequence[run_queries.Facts], args: argparse.Namespace) -> None:
    config = _differing([facts.config for facts in runs])
    if args.json:
        documents = [
            {**_as_json(facts), "config": {path: facts.config.get(path) for path in config}}
            for facts in runs
        ]
        listing.print_json({"differing": config, "runs": documents})
        return
    if not runs:
        print("There are no such runs.")
        return
    fields = [name for name in run_queries.FIELDS if name not in ("name", "model_dir")]
    environment = _differing([facts.run.environment for facts in runs])
    rows = [
        *_rows(config, [facts.config for facts in runs]),
        *_rows(fields, [facts.fields for facts in runs]),
        *_rows(run_queries.metric_names(runs), [facts.metrics for facts in runs]),
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
    """Return a row of strings for each name that has a value, as a column has mixed types."""
    rows = []
    for name in names:
        texts = [_FORMATS.get(name, listing.value_text)(source.get(name)) for source in sources]
        if any(text != "-" for text in texts):
            rows.append([name, *texts])
    return rows
