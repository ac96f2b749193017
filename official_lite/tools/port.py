"""Port a Model Garden project from Keras 2 to official_lite and Keras 3.

python -m official_lite.tools port my_project             # shows what would change
python -m official_lite.tools port my_project --check     # counts what would change
python -m official_lite.tools port my_project --write

Imports, renamed symbols and idioms are rewritten in Python files, notebooks, and gin and YAML
files; formatting and comments are preserved. Places that require manual work are listed with their
file and with their line after the port; another run lists the remaining ones.
With `--alongside FOLDER`, Model Garden modules that the project imports and official_lite lacks are
copied from the installed Model Garden to that folder in the project, and ported, too.
"""

import argparse
import json
import sys
from typing import TYPE_CHECKING

from official_lite.common import errors

if TYPE_CHECKING:
    from official_lite import porting


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("path", nargs="+", help="A file, or a directory.")
    effect = parser.add_mutually_exclusive_group()
    effect.add_argument(
        "--write", action="store_true", help="Write the files. Without it, only show the changes."
    )
    effect.add_argument(
        "--check",
        action="store_true",
        help=(
            "Write nothing and show no diff: only count the changes and list what must be changed "
            "by hand. The exit code is 1 if there is any."
        ),
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
            f"This command requires `{error.name}`, which is not installed: pip install "
            "'official-lite[port]'"
        ) from error
    port = porting.port_project(args.path, alongside=args.alongside)
    report = _as_json(port, args.write) if args.json else _as_text(port, args.write, args.check)
    if args.write:
        port.write()
    print(report, end="")
    for path, why in port.skipped.items():
        print(f"{path}: skipped, because it can't be read: {why}", file=sys.stderr)
    has_failed = port.skipped or (args.check and port.remaining)
    return int(errors.ExitCode.FAILED if has_failed else errors.ExitCode.DONE)


def _as_text(port: "porting.Port", written: bool, counts_only: bool) -> str:
    changed = [file for file in port.files if file.changed]
    lines = []
    if not counts_only:
        # List only the paths of copied files, because their diffs would be unreadable.
        lines += [file.diff() for file in changed if not file.is_new]
        lines += [f"new: {file.path}\n" for file in changed if file.is_new]
    places: dict[str, list[str]] = {}
    for one in port.remaining:
        places.setdefault(one.what, []).append(f"{one.path}:{one.line}")
    if places:
        lines.append("\nTo do by hand:\n")
    for what, found in sorted(places.items(), key=lambda pair: -len(pair[1])):
        lines += [f"{what}\n", *(f"    {place}\n" for place in found)]
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
