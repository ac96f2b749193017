"""Average the weights of several checkpoints of one model, which often improves the model.

    python -m official_lite.tools average runs/digits --last=3
    python -m official_lite.tools average runs/digits/ckpt-500 runs/digits/ckpt-1500

The average is written to RUN/averaged/ckpt-<step>. Apart from its weights, this checkpoint equals
the last of the averaged ones. Set `task.init_checkpoint` to it, or evaluate it:

    train.py --experiment=… --mode=eval --model_dir=RUN/averaged --config_file=RUN/params.yaml

All floating-point weights are averaged, including the moving statistics of batch normalization.
With --recalibration_steps, these statistics are computed from training data instead, which is
better. If the optimizer keeps a moving average of the weights, it is not used.
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
            "first source."
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
        raise errors.ConfigValueError(
            f"--last is {args.last} and --recalibration_steps is {args.recalibration_steps}; "
            "expected 0 or more."
        )
    source = sources.read_params(args.sources[0], args)
    if not source.run_dir:
        raise errors.ConfigValueError(
            f"{args.sources[0]} is an experiment, which has no checkpoints. Pass checkpoints of a "
            "run, or its model directory."
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
