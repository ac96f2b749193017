"""Export of a run's model to a format, and verification of its outputs."""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from official_lite import telemetry
from official_lite.common import error_report, errors
from official_lite.modeling import model_export
from official_lite.pipeline.context import ExperimentContext
from official_lite.tools.exporting import (
    deployment_check,
    exported_model,
    model_inputs,
    run_model,
)

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
        latency_ms: Median time of a call with one example in milliseconds; None if not measured.
        metrics: The task's metrics of the exported model; empty if not measured.
    """

    format: str
    path: str
    checkpoint: str
    size: int
    max_difference: float
    max_output: float
    latency_ms: float | None = None
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)

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
    measure: bool = False,
) -> list[Export]:
    """Export the weights that an evaluation of a checkpoint would use.

    Args:
        params: The config of the run.
        run_dir: The model directory of the run.
        prefix: The checkpoint.
        formats: Names from `modeling.model_export.FORMATS`.
        directory: Where to write the exports.
        is_random: Whether to compare on random inputs instead of the first examples of the data.
        measure: Whether to measure the metrics and the latency of each export. The first element of
            the result is then the model itself, with the format `model`.

    Raises:
        errors.OfficialLiteError: The model can't be written in a format, or can't be loaded back.
    """
    with run_model.built(params) as (ctx, _):
        run_model.load_weights(ctx, prefix)
        model = ctx.require("model")
        inputs = model_inputs.random_inputs(model) if is_random else model_inputs.real_inputs(ctx)
        expected = exported_model.outputs_of(model(*inputs.args, training=False))
        exports = []
        if measure:
            exports.append(_measure_model(ctx, prefix, inputs, _largest(expected)))
        for format in formats:
            name = _name(prefix, run_dir) + model_export.FORMATS[format]
            path = os.path.join(directory, name)
            call, found = _write_and_call(model, path, format, inputs)
            export = Export(
                format=format,
                path=path,
                checkpoint=prefix,
                size=_size(path),
                max_difference=exported_model.largest_difference(expected, found),
                max_output=_largest(expected),
            )
            if measure:
                export = dataclasses.replace(
                    export,
                    latency_ms=deployment_check.measure_latency(call, inputs),
                    metrics=deployment_check.measure_metrics(ctx, inputs, call),
                )
            exports.append(export)
    return exports


def _measure_model(
    ctx: ExperimentContext, prefix: str, inputs: model_inputs.ModelInputs, max_output: float
) -> Export:
    """Measure the model of the run itself, for comparison."""
    model = ctx.require("model")
    call = tf.function(lambda *args: model(*args, training=False))
    return Export(
        format="model",
        path=prefix,
        checkpoint=prefix,
        size=sum(weight.value.dtype.size * math.prod(weight.shape) for weight in model.weights),
        max_difference=0.0,
        max_output=max_output,
        latency_ms=deployment_check.measure_latency(
            lambda given: exported_model.outputs_of(call(*given.args)), inputs
        ),
        metrics=deployment_check.measure_metrics(ctx, inputs),
    )


def _write_and_call(
    model: Any, path: str, format: str, inputs: model_inputs.ModelInputs
) -> tuple[exported_model.ExportedCall, list[Any]]:
    """Write the model, and return the exported model and its outputs."""
    act = "written"
    try:
        with error_report.naming_the_resource(to_save_memory="End other programs"):
            # Otherwise a model that records values would be saved together with the event storage.
            with telemetry.get_event_storage().muted():
                model_export.write_model(model, path, format, input_signature=inputs.signature)
            act = "loaded back"
            call = exported_model.load_exported(path, format)
            return call, call(inputs)
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
