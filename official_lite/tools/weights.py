"""Writes the weights of a run, or its adapter alone, as safetensors, the format of Hugging Face.

    python -m official_lite.tools weights runs/gpt --output=gpt.safetensors
    python -m official_lite.tools weights runs/austen --adapter_only --output=austen.safetensors

The weights are those that an evaluation of the checkpoint has: the averaged ones if there are any.
The adapter of a run with `task.adapters` is merged into the weights of its base, unless
--adapter_only is given. To start a training from the file, set `task.init_checkpoint` to it.
Needs: pip install 'official-lite[safetensors]'
"""

import argparse
import os

from official_lite.common import errors, files
from official_lite.tools import export, listing, run_source

__all__ = ["add_arguments", "run"]

_OF_SEVERAL_TASKS = "Use `checkpoint.safetensors_files.write` in Python."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "source",
        help="A model directory, whose latest checkpoint is used, or a checkpoint in it.",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="The output file. Default: RUN/export/<step>.safetensors.",
    )
    parser.add_argument(
        "--adapter_only",
        action="store_true",
        help="Write only the adapter of a run with task.adapters, with its config and the "
        "checksum of its base.",
    )
    export.add_adapter_argument(parser)
    run_source.add_arguments(parser)
    listing.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Write the weights and print the path of the file."""
    source = run_source.read(args.source, args, instead=_OF_SEVERAL_TASKS)
    if not source.run_dir:
        raise errors.ConfigValueError(
            f"{args.source} is an experiment, which has no weights. Expected a model directory."
        )
    from official_lite.adapters import adapter_files
    from official_lite.checkpoint import safetensors_files
    from official_lite.tools.exporting import run_model

    prefix = run_model.find_checkpoint(args.source)
    name = prefix.rpartition("-")[2] + safetensors_files.EXTENSION
    output = args.output or os.path.join(source.run_dir, "export", name)
    with run_model.built(source.params) as (ctx, _):
        own = run_model.load_weights(ctx, prefix)
        adapter = run_model.load_adapter(ctx, own, args.adapter)
        if not args.adapter_only:
            if adapter is not None:
                adapter.merge()
            weights = ctx.require("model").weights
            safetensors_files.write(output, [(weight.path, weight.numpy()) for weight in weights])
        elif adapter is not None:
            adapter_files.save(adapter, output)
        else:
            raise errors.ConfigValueError(
                f"--adapter_only is given, but {args.source} was trained without `task.adapters`."
            )
    row = {"path": output, "checkpoint": prefix, "size": files.size(output)}
    if args.json:
        listing.print_json(row)
    else:
        listing.print_table([row], list(row), formats={"size": listing.bytes_text})
    return int(errors.ExitCode.DONE)
