"""Export the model of a run as a SavedModel, or to a `.keras`, LiteRT or ONNX file.

    python -m official_lite.tools export runs/digits
    python -m official_lite.tools export runs/digits/best_ckpt --format=litert --format=onnx
    python -m official_lite.tools export runs/digits --check

Each exported model is loaded back, called with the first examples of the validation data, and
compared with the original. If an output differs by more than --tolerance, the exit code is 1. The
exported weights are those that an evaluation of the checkpoint uses: the averaged weights, if the
optimizer keeps a moving average. With --check, each exported model is also evaluated on the
validation data, and timed.
LiteRT and ONNX require: pip install 'official-lite[export]'
"""

import argparse
import dataclasses
import os

from official_lite.common import errors
from official_lite.tools import listing, sources

_OF_SEVERAL_TASKS = (
    "To export the model of one task, call "
    "`modeling.model_export.write_model(model.sub_tasks[name], path, format)` in Python."
)
_FORMATS = ("tf_saved_model", "keras", "litert", "onnx")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "source",
        help=(
            "A model directory, whose latest checkpoint is used, or a checkpoint or a directory "
            "of checkpoints in it, such as RUN/ckpt-500 or RUN/best_ckpt."
        ),
    )
    parser.add_argument(
        "--format",
        action="append",
        choices=_FORMATS,
        help="Repeatable. Default: tf_saved_model, or all formats with --check.",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help=(
            "Compare the task's metrics on the validation data, the size, and the time of a call "
            "with one example."
        ),
    )
    parser.add_argument(
        "--output", metavar="DIR", help="The output directory. Default: RUN/export."
    )
    parser.add_argument(
        "--random_inputs",
        action="store_true",
        help=(
            "Compare outputs on random inputs, for functional models on a machine without the data."
        ),
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1e-4,
        metavar="X",
        help=(
            "The largest allowed difference of an output, relative to the largest output if that "
            "exceeds 1. Default: %(default)g."
        ),
    )
    sources.add_arguments(parser)
    listing.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Export the model in each format and compare it with the original."""
    source = sources.read_params(args.source, args, instead=_OF_SEVERAL_TASKS)
    if not source.run_dir:
        raise errors.ConfigValueError(
            f"{args.source} is an experiment, which has no weights. Pass a model directory."
        )
    from official_lite.tools import checked_export

    exports = checked_export.export_checkpoint(
        source.params,
        source.run_dir,
        args.source,
        args.format or (_FORMATS if args.check else _FORMATS[:1]),
        directory=args.output or os.path.join(source.run_dir, "export"),
        is_random=args.random_inputs,
        measure=args.check,
    )
    if args.json:
        listing.print_json([dataclasses.asdict(export) for export in exports])
    else:
        metrics = list(dict.fromkeys(name for export in exports for name in export.metrics))
        measured = ["latency_ms", *metrics] if args.check else []
        listing.print_table(
            [dataclasses.asdict(export) | dict(export.metrics) for export in exports],
            ["format", "path", "size", "max_difference", *measured],
            formats={"size": listing.bytes_text},
        )
    if different := [export.path for export in exports if not export.is_within(args.tolerance)]:
        raise errors.OfficialLiteError(
            f"The outputs differ from the model's by more than --tolerance={args.tolerance:g}: "
            f"{', '.join(different)}. Raise --tolerance if such differences are acceptable."
        )
    return int(errors.ExitCode.DONE)
