"""Writes the model of a run in a format, and makes sure that it computes what the model does."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from official_lite import telemetry
from official_lite.common import errors
from official_lite.modeling import model_export
from official_lite.tools.exporting import exported_model, model_inputs, run_model

__all__ = ["Export", "export_checkpoint"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Export:
    """What was written, and how far it is from the model.

    Attributes:
        format: One of `modeling.model_export.FORMATS`.
        path: The file, or the folder of a SavedModel.
        checkpoint: Whose weights it has.
        size: In bytes.
        max_difference: The largest difference between an output and that of the model.
        max_output: The largest output of the model.
    """

    format: str
    path: str
    checkpoint: str
    size: int
    max_difference: float
    max_output: float

    def is_within(self, tolerance: float) -> bool:
        """Whether the difference is at most that part of the largest output, or of 1."""
        return self.max_difference <= tolerance * max(1.0, self.max_output)


def export_checkpoint(
    params: Any,
    run_dir: str,
    prefix: str,
    formats: Sequence[str],
    *,
    directory: str,
    is_random: bool = False,
) -> list[Export]:
    """Exports the weights that an evaluation of a checkpoint has.

    Args:
        params: The config of the run.
        run_dir: The folder of the run.
        prefix: The checkpoint.
        formats: Which of `modeling.model_export.FORMATS`.
        directory: Where to.
        is_random: Whether to compare on random inputs, or on the first ones of the data.

    Raises:
        errors.OfficialLiteError: The model can't be written in a format, or not be loaded back.
    """
    with run_model.built(params) as (ctx, _):
        run_model.load_weights(ctx, prefix)
        model = ctx.require("model")
        inputs = model_inputs.random_inputs(model) if is_random else model_inputs.real_inputs(ctx)
        expected = exported_model.outputs_of(model(*inputs.args, training=False))
        exports = []
        for format in formats:
            name = _name(prefix, run_dir) + model_export.FORMATS[format]
            path = os.path.join(directory, name)
            found = _write_and_call(model, path, format, inputs)
            exports.append(
                Export(
                    format=format,
                    path=path,
                    checkpoint=prefix,
                    size=_size(path),
                    max_difference=exported_model.largest_difference(expected, found),
                    max_output=_largest(expected),
                )
            )
    return exports


def _write_and_call(
    model: Any, path: str, format: str, inputs: model_inputs.ModelInputs
) -> list[Any]:
    """The outputs of what was written."""
    act = "written"
    try:
        # A model that puts numbers into the event storage would be saved with the storage.
        with telemetry.get_event_storage().muted():
            model_export.write_model(model, path, format, input_signature=inputs.signature)
        act = "loaded back"
        return exported_model.call_exported(path, format, inputs)
    except errors.OfficialLiteError:
        raise
    except Exception as error:  # Whatever a converter, or who loads what it wrote, may raise.
        raise errors.OfficialLiteError(
            f"The model can't be {act} as {format}: {type(error).__name__}: "
            f"{str(error).strip()[:1000]}"
        ) from error


def _name(prefix: str, run_dir: str) -> str:
    """`500` of the run's own checkpoint, `best_ckpt-500` of one in a folder below."""
    folder, base = os.path.split(prefix)
    place = os.path.relpath(folder or os.curdir, run_dir)
    step = base.rpartition("-")[2]
    return step if place == os.curdir else f"{place.replace(os.sep, '_')}-{step}"


def _size(path: str) -> int:
    if not os.path.isdir(path):
        return os.path.getsize(path)
    files = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    return sum(map(os.path.getsize, files))


def _largest(outputs: Sequence[Any]) -> float:
    numbers = [each.astype(np.float64) for each in outputs if each.dtype.kind not in "OSU"]
    return max([float(np.abs(each).max()) for each in numbers if each.size], default=0.0)
