"""Averages the weights of checkpoints of one model, often better than each of them by itself.

    python -m official_lite.tools average runs/digits --last=3
    python -m official_lite.tools average runs/digits/ckpt-500 runs/digits/ckpt-1500

The average goes to RUN/averaged/ckpt-<step>. It holds what the last of the checkpoints holds, with
the averaged weights in the place of its own: `task.init_checkpoint` takes it, and so does

    train.py --experiment=… --mode=eval --model_dir=RUN/averaged --config_file=RUN/params.yaml

All weights that are numbers with a fraction are averaged, the moving statistics of batch
normalization too; --recalibration_steps takes these from training data instead, which is better.
What is averaged is the weights that were trained, not those that an optimizer has averaged.
"""

import argparse
import os

from official_lite.common import errors
from official_lite.tools import listing, sources


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="RUN|CHECKPOINT",
        help=(
            "Checkpoints, or directories of checkpoints. The config is taken from the run of the "
            "first one."
        ),
    )
    parser.add_argument(
        "--last",
        type=int,
        default=0,
        metavar="N",
        help="The number of latest checkpoints to use from a directory. Default: all.",
    )
    parser.add_argument(
        "--recalibration_steps",
        type=int,
        default=0,
        metavar="N",
        help=(
            "The number of training batches with which to recompute the batch normalization "
            "statistics. Default: 0, which averages the statistics."
        ),
    )
    parser.add_argument(
        "--output",
        metavar="DIR|FILE",
        help=(
            "The output directory for a checkpoint, or a file that ends in .weights.h5 or .keras. "
            "Default: RUN/averaged."
        ),
    )
    sources.add_arguments(parser)
    listing.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Write the average and print the checkpoints that were averaged."""
    if args.last < 0 or args.recalibration_steps < 0:
        raise errors.ConfigValueError("--last and --recalibration_steps must not be negative.")
    source = sources.read_params(args.sources[0], args)
    if not source.run_dir:
        raise errors.ConfigValueError(
            f"{args.sources[0]} is an experiment, which has no checkpoints. Expected checkpoints "
            "of a run."
        )
    from official_lite.tools import checkpoint_average

    paths = checkpoint_average.find_checkpoints(args.sources, args.last)
    output = args.output or os.path.join(source.run_dir, "averaged")
    written = checkpoint_average.write_average(
        source.params, paths, output, recalibration_steps=args.recalibration_steps
    )
    if args.json:
        listing.print_json({"path": written, "checkpoints": paths})
    else:
        print(f"Averaged {len(paths)} checkpoints into {written}:", *paths, sep="\n")
    return int(errors.ExitCode.DONE)
