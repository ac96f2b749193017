"""Ports a project of the Model Garden, on Keras 2, to official_lite and Keras 3.

python -m official_lite.tools port my_project             # shows what would change
python -m official_lite.tools port my_project --write

Imports, renamed symbols and idioms are rewritten; formatting and comments stay. What it takes a
human for is listed with file and line, as lines are after the port; another run lists what is left.
With `--alongside FOLDER` the modules of the Model Garden that the project imports, and that
official_lite does not have, are copied from the installed one to that folder in the project, and
ported too.
"""

import argparse
import json
import sys
from typing import TYPE_CHECKING

from official_lite.common import errors

if TYPE_CHECKING:
    from official_lite import porting

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("path", nargs="+", help="A Python file, or a directory of Python files.")
    parser.add_argument(
        "--write", action="store_true", help="Write the files. Without it, only show the changes."
    )
    parser.add_argument(
        "--alongside",
        default="",
        metavar="FOLDER",
        help=(
            "A package in the project, such as model_garden, for copies of the Model Garden "
            "modules that it needs."
        ),
    )
    parser.add_argument("--json", action="store_true", help="Print a JSON object instead of text.")


def run(args: argparse.Namespace) -> int:
    """Print the diff and the remaining manual work; write the files if requested."""
    try:
        from official_lite import porting
    except ModuleNotFoundError as error:
        raise errors.ConfigValueError(
            f"The port requires `{error.name}`: pip install 'official-lite[port]'"
        ) from error
    port = porting.port_project(args.path, alongside=args.alongside)
    report = _as_json(port, args.write) if args.json else _as_text(port, args.write)
    if args.write:
        port.write()
    print(report, end="")
    for path, why in port.skipped.items():
        print(f"{path}: skipped, because it is not valid Python: {why}", file=sys.stderr)
    return int(errors.ExitCode.FAILED if port.skipped else errors.ExitCode.DONE)


def _as_text(port: "porting.Port", written: bool) -> str:
    changed = [file for file in port.files if file.changed]
    # Only the paths of copied files are listed: a diff of them would be unreadable.
    lines = [file.diff() for file in changed if not file.is_new]
    lines += [f"new: {file.path}\n" for file in changed if file.is_new]
    if port.remaining:
        lines.append("\nTo do by hand:\n")
        lines += [f"{one.path}:{one.line}: {one.what}\n" for one in port.remaining]
    verb = "changed" if written else "would change; use --write to change them"
    lines.append(f"\n{len(changed)} of {len(port.files)} files {verb}.")
    lines.append(f" Places to change by hand: {len(port.remaining)}.\n")
    return "".join(lines)


def _as_json(port: "porting.Port", written: bool) -> str:
    files = [
        {"path": str(file.path), "changed": file.changed, "new": file.is_new, "diff": file.diff()}
        for file in port.files
    ]
    by_hand = [{"path": r.path, "line": r.line, "what": r.what} for r in port.remaining]
    report = {"files": files, "by_hand": by_hand, "skipped": port.skipped, "written": written}
    return json.dumps(report) + "\n"
