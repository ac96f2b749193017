"""Finds a learning rate, or the largest batch size, for an experiment, by trying.

    python -m official_lite.tools tune lr vision/digits_cnn --plot=rates.png
    python -m official_lite.tools tune batch_size vision/digits_cnn --memory_limit=4GB

`lr` trains for some steps with a learning rate that grows from step to step, until the loss blows
up, and suggests the rate at which it fell the fastest: one to begin with. `batch_size` trains some
steps with larger and larger batches, each size in a process of its own, until the memory is
exhausted. The experiment is the name of one, or the folder of a run, which stays as it is; both
start from the beginning, or from `task.init_checkpoint`.
"""

import argparse
import re

from official_lite.common import errors
from official_lite.modeling import hyperparams
from official_lite.tools import listing, run_source

__all__ = ["add_arguments", "run"]

_OF_SEVERAL_TASKS = "Train a few short runs and compare them with `tools runs compare`."
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands `lr` and `batch_size`."""
    acts = parser.add_subparsers(dest="act", required=True, metavar="lr|batch_size")
    rates = acts.add_parser("lr", help="Find a learning rate.")
    sizes = acts.add_parser("batch_size", help="Find the largest batch that fits into memory.")
    for parser_of_act in (rates, sizes):
        parser_of_act.add_argument("source", help="An experiment or a model directory.")
    _add_rate_arguments(rates)
    _add_size_arguments(sizes)
    for parser_of_act in (rates, sizes):
        run_source.add_arguments(parser_of_act)
        listing.add_json_argument(parser_of_act)


def run(args: argparse.Namespace) -> int:
    """Run the search and print its result."""
    if args.act == "lr":
        _tune_rate(args)
    else:
        _tune_size(args)
    return int(errors.ExitCode.DONE)


def _add_rate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--min_rate", type=float, default=1e-7, help="Default: %(default)g.")
    parser.add_argument("--max_rate", type=float, default=10.0, help="Default: %(default)g.")
    parser.add_argument(
        "--steps",
        type=int,
        default=200,
        metavar="N",
        help="The number of rates. Default: %(default)d.",
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="Plot the loss to a .png or .svg file; requires matplotlib."
    )


def _add_size_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--memory_limit",
        type=_bytes,
        metavar="SIZE",
        help="The memory that training may use, such as 4GB. Default: 90 %% of the free memory.",
    )
    parser.add_argument(
        "--max_batch_size", type=int, default=2**14, metavar="N", help="Default: %(default)d."
    )
    parser.add_argument(
        "--timeout_secs",
        type=float,
        default=300.0,
        metavar="S",
        help=(
            "The time limit in seconds per size; slower sizes count as too large. Default: "
            "%(default)g."
        ),
    )


def _tune_rate(args: argparse.Namespace) -> None:
    source = run_source.read(args.source, args, instead=_OF_SEVERAL_TASKS)
    from official_lite.tools.tuning import rate_sweep

    sweep = rate_sweep.run_sweep(
        source.params, min_rate=args.min_rate, max_rate=args.max_rate, num_steps=args.steps
    )
    if args.plot:
        rate_sweep.draw(sweep, args.plot, title=args.source)
    if args.json:
        listing.print_json(sweep.as_dict())
        return
    rows = [{"learning_rate": r, "loss": loss} for r, loss in sweep.some_points()]
    listing.print_table(rows, ["learning_rate", "loss"])
    print(sweep.describe())
    if args.plot:
        print(args.plot)


def _tune_size(args: argparse.Namespace) -> None:
    # Read here to report mistakes before any process is started.
    source = run_source.read(args.source, args, instead=_OF_SEVERAL_TASKS)
    from official_lite.tools.tuning import size_search

    found = size_search.search(
        args,
        start=hyperparams.get_by_path(source.params, "task.train_data.global_batch_size", 0),
        most=args.max_batch_size,
        memory_limit=args.memory_limit,
        timeout_secs=args.timeout_secs,
    )
    if args.json:
        listing.print_json(found.as_dict())
        return
    listing.print_table(
        [trial.as_dict() for trial in found.trials],
        ["batch_size", "examples_per_second", "memory", "result"],
        formats={"memory": listing.bytes_text},
    )
    print(found.describe())


def _bytes(text: str) -> int:
    matched = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMG]?B?)", text.upper())
    unit = matched.group(2) if matched else ""
    if matched is None or (unit and unit not in _UNITS and f"{unit}B" not in _UNITS):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; expected a size such as 4GB")
    return int(float(matched.group(1)) * _UNITS.get(unit, _UNITS.get(f"{unit}B", 1)))
