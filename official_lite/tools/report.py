"""Write a page about runs and studies: curves, configs, checkpoints and trials in one HTML file.

    python -m official_lite.tools report /tmp/digits --output page.html
    python -m official_lite.tools report runs/a runs/b /tmp/study --output page.html

Several runs are shown side by side. The page needs no network and no server: open the file, send
it, or print it. docs/tools.md describes its content.
"""

import argparse
import os
import pathlib

from official_lite.common import errors, files
from official_lite.tools import search


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "directories",
        nargs="+",
        metavar="RUN_OR_STUDY",
        help="The --model_dir of a run or a search.",
    )
    parser.add_argument(
        "--output",
        default="report.html",
        metavar="FILE",
        help="The output file, which is overwritten. Default: %(default)s.",
    )
    search.add_storage_argument(parser)
    parser.add_argument(
        "--title",
        default="",
        help="The title of the page. Default: the names of the runs and studies.",
    )


def run(args: argparse.Namespace) -> int:
    """Write the page and print its path."""
    from official_lite.reports import page

    text = page.build_page(args.directories, title=args.title, storages=args.storage)
    try:
        files.makedirs(os.path.dirname(args.output) or os.curdir)
        files.write_text(args.output, text)
    except OSError as error:
        raise errors.ConfigValueError(
            f"--output={args.output} can't be written: {error.strerror or error}. Pass another "
            "path."
        ) from error
    print(args.output if files.is_remote(args.output) else pathlib.Path(args.output).resolve())
    return int(errors.ExitCode.DONE)
