"""List the checkpoints of a run, inspect one, or compare two.

    python -m official_lite.tools checkpoints list /tmp/digits
    python -m official_lite.tools checkpoints inspect /tmp/digits/ckpt-600
    python -m official_lite.tools checkpoints diff /tmp/digits/ckpt-500 /tmp/digits/ckpt-600

A checkpoint is named by the path of its files without their suffixes; a directory stands for the
newest checkpoint in it. `inspect` reads every tensor, so that it finds any damage. The exit code is
5 if a checkpoint is damaged.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any

from official_lite.checkpoint import commit
from official_lite.common import errors, files, suggestions
from official_lite.run import run_reading
from official_lite.tools import listing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `list`, `inspect` and `diff`."""
    acts = parser.add_subparsers(dest="act", required=True, metavar="list|inspect|diff")
    every = acts.add_parser(
        "list", help="List the checkpoints in a directory and its subdirectories."
    )
    every.add_argument("model_dir", help="The model directory of a run.")
    one = acts.add_parser(
        "inspect", help="Show the variables of a checkpoint, and check its files."
    )
    one.add_argument("path", help="A checkpoint, or a folder.")
    two = acts.add_parser("diff", help="Show the variables in which two checkpoints differ.")
    two.add_argument("a", help="A checkpoint, or a folder.")
    two.add_argument("b", help="The checkpoint to compare with, or a folder.")
    two.add_argument("--all", action="store_true", help="Show equal variables, too.")
    for parser_of_act in (every, one, two):
        listing.add_json_argument(parser_of_act)


def run(args: argparse.Namespace) -> int:
    """Print the requested information and return 5 if a checkpoint is damaged."""
    acts = {"list": _list, "inspect": _inspect, "diff": _diff}
    return int(acts[args.act](args))


def _list(args: argparse.Namespace) -> errors.ExitCode:
    files.require_directory(args.model_dir)
    directories = [args.model_dir, *_subdirectories(args.model_dir)]
    found = [each for path in directories for each in run_reading.list_checkpoints(path)]
    if not found:
        raise errors.CheckpointError(
            f"Found no checkpoint in {args.model_dir}. Pass a directory with checkpoints."
        )
    rows = [_row(each, args.model_dir) for each in found]
    if args.json:
        listing.print_json(rows)
    else:
        formats = {"bytes": listing.bytes_text, "saved": listing.time_text}
        listing.print_table(rows, ["name", "step", "bytes", "saved", "state"], formats=formats)
    is_damaged = any(row["state"] not in ("sound", "not committed") for row in rows)
    return errors.ExitCode.CHECKPOINT if is_damaged else errors.ExitCode.DONE


def _subdirectories(model_dir: str) -> list[str]:
    """Return subdirectories that may contain checkpoints, such as `best_ckpt`; skip other runs."""
    paths = [os.path.join(model_dir, name) for name in files.list_names(model_dir)]
    return [path for path in paths if os.path.isdir(path) and not run_reading.is_run(path)]


def _row(checkpoint: run_reading.SavedCheckpoint, model_dir: str) -> dict[str, Any]:
    index = f"{checkpoint.path}.index"
    is_local = not files.is_remote(index) and os.path.exists(index)
    return {
        "name": os.path.relpath(checkpoint.path, model_dir),
        "path": checkpoint.path,
        "step": checkpoint.step,
        "bytes": checkpoint.size,
        "saved": os.stat(index).st_mtime if is_local else None,
        "state": _state(checkpoint),
    }


def _state(checkpoint: run_reading.SavedCheckpoint) -> str:
    """Return a checkpoint's state according to its file sizes and the checksum of its index."""
    if not checkpoint.is_committed:
        return "not committed"
    return commit.find_damage(checkpoint.path) or "sound"


def _inspect(args: argparse.Namespace) -> errors.ExitCode:
    from official_lite.checkpoint import inspection

    prefix = _find(args.path)
    found = inspection.read(prefix)
    damage = commit.find_damage(prefix)
    problems = ([damage] if damage else []) + list(found.problems)
    saved = commit.read(prefix) if damage is None else None
    rows = [_variable(variable) for variable in found.variables]
    document = {
        "path": prefix,
        "step": commit.step_of(prefix),
        "is_committed": files.exists(commit.path_of(prefix)),
        "num_variables": len(rows),
        "num_parameters": sum(variable.size for variable in found.variables),
        "bytes": sum(variable.num_bytes for variable in found.variables),
        "problems": problems,
        "state": saved.state if saved else {},
        "variables": rows,
    }
    if args.json:
        listing.print_json(document)
    else:
        _print_contents(document)
    return errors.ExitCode.CHECKPOINT if problems else errors.ExitCode.DONE


def _variable(variable: Any) -> dict[str, Any]:
    return {
        "name": variable.name,
        "key": variable.key,
        "shape": list(variable.shape),
        "dtype": variable.dtype,
        "bytes": variable.num_bytes,
        "not_finite": variable.num_not_finite,
    }


def _print_contents(document: Mapping[str, Any]) -> None:
    formats: dict[str, listing.Format] = {"bytes": listing.bytes_text, "shape": _shape_text}
    rows = document["variables"]
    columns = ["name", "shape", "dtype", "bytes"]
    if any(row["not_finite"] for row in rows):
        columns.append("not_finite")
    listing.print_table(rows, columns, formats=formats)
    state = document["state"]
    optimizer = (state.get("optimizer") or {}).get("class")
    print(
        (
            f"\n{document['path']}: step {document['step']}, {document['num_variables']} "
            f"variables, {document['num_parameters']:,} values, "
            f"{listing.bytes_text(document['bytes'])}"
        )
        + (f", optimizer {optimizer}" if optimizer else "")
    )
    for problem in document["problems"]:
        print(f"DAMAGED: {problem}")
    if not document["problems"]:
        committed = "" if document["is_committed"] else "; there is no commit file to compare with"
        print(f"Intact: every tensor is readable{committed}.")


def _diff(args: argparse.Namespace) -> errors.ExitCode:
    from official_lite.checkpoint import inspection

    a, b = _find(args.a), _find(args.b)
    rows = [_difference(each) for each in inspection.compare(a, b)]
    shown = rows if args.all else [row for row in rows if row["state"] != "equal"]
    counts = {state: sum(row["state"] == state for row in rows) for state in inspection.STATES}
    if args.json:
        listing.print_json({"a": a, "b": b, **_as_fields(counts), "variables": shown})
        return errors.ExitCode.DONE
    if shown:
        columns = ["name", "state", "shape_a", "shape_b", "dtype_a", "dtype_b"]
        if all(row["shape_a"] == row["shape_b"] for row in shown):
            columns = ["name", "state", "shape_a", "dtype_a"]
        formats = {"shape_a": _shape_text, "shape_b": _shape_text}
        listing.print_table(shown, [*columns, "max_abs", "relative"], formats=formats)
    print(f"\na: {a}\nb: {b}\n" + ", ".join(f"{count} {state}" for state, count in counts.items()))
    return errors.ExitCode.DONE


def _difference(difference: Any) -> dict[str, Any]:
    a, b = difference.a, difference.b
    return {
        "name": difference.name,
        "state": difference.state,
        "shape_a": list(a.shape) if a else None,
        "shape_b": list(b.shape) if b else None,
        "dtype_a": a.dtype if a else None,
        "dtype_b": b.dtype if b else None,
        "max_abs": difference.max_abs,
        "relative": difference.relative,
    }


def _as_fields(counts: Mapping[str, int]) -> dict[str, int]:
    return {f"num_{state.replace(' ', '_')}": count for state, count in counts.items()}


def _shape_text(shape: Sequence[int] | None) -> str:
    return "-" if shape is None else str(list(shape))


def _find(path: str) -> str:
    """Return the newest checkpoint in a directory, or the one at a path with or without suffix."""
    if os.path.isdir(path):
        found = run_reading.list_checkpoints(path)
        if not found:
            raise errors.CheckpointError(
                f"Found no checkpoint in {path}. Pass a directory with checkpoints."
            )
        return found[-1].path
    prefix = path.removesuffix(".commit.json").removesuffix(".index")
    if files.exists(f"{prefix}.index") or files.exists(commit.path_of(prefix)):
        return prefix
    beside = run_reading.list_checkpoints(os.path.dirname(prefix) or os.curdir)
    raise errors.CheckpointError(
        (
            f"The checkpoint {prefix} does not exist. "
            f"{suggestions.did_you_mean(prefix, [each.path for each in beside])}"
        ).rstrip()
    )
