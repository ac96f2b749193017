"""Shows a study of `--mode=search`: all trials in a table, and pictures if asked for.

python -m official_lite.tools search /tmp/study --plots
"""

import argparse
import os

from official_lite.common import errors, files

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("study_dir", help="The --model_dir of the search.")
    parser.add_argument(
        "--plots", action="store_true", help="Draw the study into STUDY_DIR/plots, and say what."
    )


def run(args: argparse.Namespace) -> int:
    """Prints the table, and the paths of the pictures."""
    from official_lite.search import plots, results, search_config, storage, study_runner
    from official_lite.search.space import Space

    path = os.path.join(args.study_dir, study_runner.CONFIG_FILE)
    if not files.exists(path):
        raise errors.ConfigValueError(f"{args.study_dir} holds no study: there is no {path}.")
    config = search_config.SearchConfig.from_yaml(path)
    study = storage.open_study(config, args.study_dir)
    print(results.table(study, Space(config.space), config), end="")
    if args.plots:
        print(*plots.write_plots(study, config, os.path.join(args.study_dir, "plots")), sep="\n")
    return int(errors.ExitCode.DONE)
