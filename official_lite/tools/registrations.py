"""Import of the modules that register experiments, as in `train.py`."""

import argparse
import importlib
import os
import sys

from official_lite.config import parsing

__all__ = ["add_import_argument", "load"]

_MODULE = "registry_imports"


def add_import_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--import`."""
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="A module or .py file to import for its registrations; repeatable.",
    )


def load(imports: list[str]) -> None:
    """Import `registry_imports` of the current directory, if it exists, and the given modules.

    Args:
        imports: Module names and file paths.

    Raises:
        errors.UnknownNameError: A module does not exist. Errors inside a module propagate.
    """
    # `python -m` adds the current directory to `sys.path`; the installed command does not.
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    if os.path.exists(f"{_MODULE}.py"):
        importlib.import_module(_MODULE)
    parsing.import_modules(imports)
