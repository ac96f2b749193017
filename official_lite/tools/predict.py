r"""Predict with a trained run, and write the predictions to files.

    python -m official_lite.tools predict runs/digits
    python -m official_lite.tools predict runs/digits --format=parquet --checkpoint=best \
        --output=predictions/digits --set=task.validation_data.input_path=new.tfrecord

The command reads the experiment and the config from the record of the run. It prints the training
command that predicts, and runs it; repeat either command to resume after an interruption. The input
is `task.predict_data`, or the validation data. Parquet requires:
pip install 'official-lite[parquet]'
"""

import argparse
import os
from typing import NoReturn

from official_lite.common import files
from official_lite.core import config_definitions
from official_lite.tools import sources


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("run", help="The model directory of the trained run.")
    parser.add_argument(
        "--output", help="The directory of the predictions; by default `predictions` in the run."
    )
    parser.add_argument(
        "--format", choices=config_definitions.PREDICTION_FORMATS, help="The format of the files."
    )
    parser.add_argument(
        "--checkpoint",
        choices=config_definitions.PREDICTION_CHECKPOINTS,
        help="The weights; by default the latest.",
    )
    sources.add_arguments(parser)
    sources.add_trust_argument(parser)


def run(args: argparse.Namespace) -> NoReturn:
    """Replace this process by the prediction command."""
    given = {"format": args.format, "checkpoint": args.checkpoint}
    if args.output:
        is_remote = files.is_remote(args.output)
        given["output_dir"] = args.output if is_remote else os.path.abspath(args.output)
    command = [
        *sources.train_command(args.run, args, mode="predict"),
        f"--model_dir={args.run}",
        *(f"--set=prediction.{name}={value}" for name, value in given.items() if value),
    ]
    sources.become(command)
