"""What registers experiments is imported here, as `train.py` would."""

import argparse
import importlib
import os
import sys

from official_lite.core import config_parsing

__all__ = ["add_import_argument", "load"]

_MODULE = "registry_imports"


def add_import_argument(parser: argparse.ArgumentParser) -> None:
    """Adds `--import`."""
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="A module or .py file to import for its registrations; repeatable.",
    )


def load(imports: list[str]) -> None:
    """Imports `registry_imports` of the current directory, if it has one, and what is named.

    Args:
        imports: Modules, and files by their paths.

    Raises:
        errors.UnknownNameError: There is no such module. An error inside one comes through.
    """
    # `python -m` has put it there; the command of that name, once installed, has not.
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    if os.path.exists(f"{_MODULE}.py"):
        importlib.import_module(_MODULE)
    config_parsing.import_modules(imports)
