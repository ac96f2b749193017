"""List the registered experiments, or show one of them.

    python -m official_lite.tools experiments list
    python -m official_lite.tools experiments list 'vision/*'
    python -m official_lite.tools experiments show vision/digits_cnn

The experiments are those that train.py would find in the same directory: those registered by the
imports of `registry_imports.py` and by the modules that --import names.
"""

import argparse
import fnmatch
import inspect
import os
from collections.abc import Callable
from typing import Any

from official_lite.common import errors, plugins, suggestions
from official_lite.config import compatibility
from official_lite.core import exp_factory
from official_lite.tools import listing, sources


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `list` and `show`."""
    acts = parser.add_subparsers(dest="act", required=True, metavar="list|show")
    one = acts.add_parser("list", help="List all experiments, one per line.")
    one.add_argument(
        "pattern", nargs="?", default="*", help="A pattern with `*` and `?`, or a part of a name."
    )
    one.add_argument("--names", action="store_true", help="Print only the names, for scripts.")
    other = acts.add_parser("show", help="Show what an experiment trains, and for how long.")
    other.add_argument("name", help="The name of the experiment.")
    for parser_of_act in (one, other):
        sources.add_import_argument(parser_of_act)
        listing.add_json_argument(parser_of_act)


def run(args: argparse.Namespace) -> int:
    """Print the list or the experiment."""
    sources.load_registrations(args.imports)
    if args.act == "list":
        _list(args)
    else:
        _show(args)
    return int(errors.ExitCode.DONE)


def _list(args: argparse.Namespace) -> None:
    known = exp_factory.list_experiments()
    found = [name for name in known if _fits(name, args.pattern)]
    if not found and args.pattern != "*":
        raise errors.UnknownNameError(
            (
                f"No experiment matches {args.pattern!r}. "
                f"{suggestions.did_you_mean(args.pattern, known)}"
            ).rstrip()
        )
    if args.names and not args.json:
        print(*found, sep="\n")
        return
    rows = [_row(name) for name in found]
    if args.json:
        listing.print_json(rows)
    else:
        listing.print_table(rows, ["name", "summary"])


def _fits(name: str, pattern: str) -> bool:
    is_pattern = any(sign in pattern for sign in "*?[")
    return fnmatch.fnmatchcase(name, pattern) if is_pattern else pattern in name


def _row(name: str) -> dict[str, Any]:
    factory = exp_factory.get_config_factory(name)
    summary, _, _ = _doc(factory).partition("\n")
    return {"name": name, "summary": summary, "module": exp_factory.get_origin(name)}


def _show(args: argparse.Namespace) -> None:
    factory = exp_factory.get_config_factory(args.name)
    params = exp_factory.get_exp_config(args.name)
    file = inspect.getsourcefile(inspect.unwrap(factory))
    experiment = {
        **_row(args.name),
        "description": _doc(factory),
        "file": file and os.path.relpath(file),
        "readme": _readme(file),
        **_essentials(params),
    }
    if args.json:
        listing.print_json({**experiment, "config": params.as_dict()})
        return
    rows = [
        {"field": key, "value": value}
        for key, value in experiment.items()
        if key != "summary" and value not in (None, "", [])
    ]
    listing.print_table(rows, ["field", "value"])
    print(f"\nTo show the full config: python -m official_lite.tools config show {args.name}")


def _essentials(params: Any) -> dict[str, Any]:
    """Return the most important fields; None for fields that an experiment lacks."""
    fields = compatibility.flatten(params.as_dict())
    task = type(params.task)
    return {
        "task_config": f"{plugins.module_of(task)}:{task.__qualname__}",
        "global_batch_size": fields.get("task.train_data.global_batch_size"),
        "train_steps": fields.get("trainer.train_steps") or None,
        "train_epochs": fields.get("trainer.train_epochs"),
        "optimizer": fields.get("trainer.optimizer_config.optimizer.type"),
        "learning_rate": fields.get("trainer.optimizer_config.learning_rate.type"),
        "metric": fields.get("trainer.best_checkpoint_eval_metric") or None,
        "phases": [phase["name"] for phase in fields.get("phases") or []],
        "distribution_strategy": fields.get("runtime.distribution_strategy"),
    }


def _doc(factory: Callable[..., Any]) -> str:
    return inspect.getdoc(factory) or ""


def _readme(file: str | None) -> str | None:
    path = os.path.join(os.path.dirname(file or ""), "README.md")
    return os.path.relpath(path) if file and os.path.exists(path) else None
