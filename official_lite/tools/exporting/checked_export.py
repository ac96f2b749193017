"""Export of a run's model to a format, and verification of its outputs."""

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
    """An exported model and its difference from the original.

    Attributes:
        format: One of `modeling.model_export.FORMATS`.
        path: The file, or the folder of a SavedModel.
        checkpoint: The checkpoint whose weights were exported.
        size: Size in bytes.
        max_difference: Largest absolute difference between an output and that of the original
            model.
        max_output: Largest absolute output of the original model.
    """

    format: str
    path: str
    checkpoint: str
    size: int
    max_difference: float
    max_output: float

    def is_within(self, tolerance: float) -> bool:
        """Return whether the difference is at most `tolerance * max(1, max_output)`."""
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
    """Export the weights that an evaluation of a checkpoint would use.

    Args:
        params: The config of the run.
        run_dir: The model directory of the run.
        prefix: The checkpoint.
        formats: Names from `modeling.model_export.FORMATS`.
        directory: Where to write the exports.
        is_random: Whether to compare on random inputs instead of the first examples of the data.

    Raises:
        errors.OfficialLiteError: The model can't be written in a format, or can't be loaded back.
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
    """Write the model and return the outputs of the exported model."""
    act = "written"
    try:
        # Otherwise a model that records values would be saved together with the event storage.
        with telemetry.get_event_storage().muted():
            model_export.write_model(model, path, format, input_signature=inputs.signature)
        act = "loaded back"
        return exported_model.call_exported(path, format, inputs)
    except errors.OfficialLiteError:
        raise
    except Exception as error:  # Converters and loaders may raise anything.
        raise errors.OfficialLiteError(
            f"The model can't be {act} as {format}: {type(error).__name__}: "
            f"{str(error).strip()[:1000]}"
        ) from error


def _name(prefix: str, run_dir: str) -> str:
    """Return `500` for a checkpoint of the run itself, `best_ckpt-500` for one in a subfolder."""
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
