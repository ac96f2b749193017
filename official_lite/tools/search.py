"""Show a study of `--mode=search`: all trials in a table, and plots if requested.

python -m official_lite.tools search /tmp/study --plots
"""

import argparse
import os

from official_lite.common import errors
from official_lite.tools import listing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("study_dir", help="The --model_dir of the search.")
    parser.add_argument(
        "--plots", action="store_true", help="Write plots to STUDY_DIR/plots and list them."
    )
    add_storage_argument(parser)
    listing.add_json_argument(parser)


def add_storage_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--storage`."""
    parser.add_argument(
        "--storage",
        action="append",
        default=[],
        metavar="URL",
        help="A database that the study may use; repeatable.",
    )


def run(args: argparse.Namespace) -> int:
    """Print the table and the paths of the plots, or one JSON document with both."""
    from official_lite.search import results, storage
    from official_lite.search.search_config import Space

    config = storage.read_config(args.study_dir, args.storage)
    study = storage.open_study(config, args.study_dir)
    space = Space(config.space)
    folder = os.path.join(args.study_dir, "plots")
    pictures = results.write_plots(study, config, folder) if args.plots else []
    if args.json:
        trials = results.records(study, space, config)
        listing.print_json({"trials": trials, "plots": pictures})
        return int(errors.ExitCode.DONE)
    print(results.table(study, space, config), end="")
    print(results.describe_best(study, config, args.study_dir), end="")
    if pictures:
        print(*pictures, sep="\n")
    return int(errors.ExitCode.DONE)
