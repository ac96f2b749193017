"""Show a config, or the fields in which two configs differ.

    python -m official_lite.tools config show vision/digits_cnn
    python -m official_lite.tools config show /tmp/digits trainer.optimizer_config
    python -m official_lite.tools config diff vision/digits_cnn /tmp/digits

A config is given by the name of an experiment, a YAML or JSON file, or the directory of a run.
--config_file and --set change the config of an experiment, as in train.py. A file may contain only
some of the fields; `diff` treats the others as equal.
"""

import argparse
from collections.abc import Mapping
from typing import Any

from official_lite.common import errors, suggestions
from official_lite.config import compatibility
from official_lite.modeling.hyperparams import yaml_io
from official_lite.tools import listing, sources

_RESTART = "\nA restarted run may continue with these differences:"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `show` and `diff`."""
    acts = parser.add_subparsers(dest="act", required=True, metavar="show|diff")
    show = acts.add_parser("show", help="Show a config as YAML.")
    show.add_argument("source", help="An experiment, a file, or the folder of a run.")
    show.add_argument(
        "path", nargs="?", default="", help="A part of the config, such as `trainer`."
    )
    show.add_argument("--config_file", action="append", default=[], metavar="FILE")
    show.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    diff = acts.add_parser("diff", help="Show the fields in which two configs differ.")
    diff.add_argument("a", help="An experiment, a file, or the folder of a run.")
    diff.add_argument(
        "b", help="The config to compare with: an experiment, a file, or the folder of a run."
    )
    for parser_of_act in (show, diff):
        sources.add_import_argument(parser_of_act)
        listing.add_json_argument(parser_of_act)


def run(args: argparse.Namespace) -> int:
    """Print the config or the difference."""
    sources.load_registrations(args.imports)
    if args.act == "show":
        _show(args)
    else:
        _diff(args)
    return int(errors.ExitCode.DONE)


def _show(args: argparse.Namespace) -> None:
    source = sources.read_config(args.source, config_files=args.config_file, sets=args.set)
    part = _part(source.config, args.path)
    if args.json:
        listing.print_json({"source": source.name, "kind": source.kind, "config": part})
    elif isinstance(part, Mapping):
        print(yaml_io.to_yaml(part), end="")
    else:
        print(listing.value_text(part))


def _part(config: Mapping[str, Any], path: str) -> Any:
    part: Any = config
    for name in filter(None, path.split(".")):
        if not isinstance(part, Mapping) or name not in part:
            known = part if isinstance(part, Mapping) else ()
            raise errors.UnknownKeyError(
                f"The config has no `{path}`, because there is no {name!r}. "
                f"{suggestions.did_you_mean(name, known)}"
            )
        part = part[name]
    return part


def _diff(args: argparse.Namespace) -> None:
    a, b = sources.read_config(args.a), sources.read_config(args.b)
    found = sources.changes(a, b)
    if args.json:
        differences = [_as_json(change) for change in found]
        listing.print_json({"a": a.name, "b": b.name, "changes": differences})
        return
    for change in found:
        if not change.is_harmless:
            print(change)
    harmless = [change for change in found if change.is_harmless]
    if harmless:
        print(_RESTART)
        print(*harmless, sep="\n")
    if not found:
        print("The configs are equal.")


def _as_json(change: compatibility.Change) -> dict[str, Any]:
    return {
        "path": change.path,
        "a": change.old,
        "b": change.new,
        "is_harmless": change.is_harmless,
    }
