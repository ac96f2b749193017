"""Export of a run's model to a format, and verification of the result.

An exported model is called as a server would call it: without the code that built it. The task's
own validation step evaluates it, with all calls of the task's model redirected to the exported
model. The metrics are therefore those of the task, even if the task preprocesses the batch.
"""

import contextlib
import dataclasses
import importlib
import inspect
import itertools
import math
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from official_lite import telemetry
from official_lite.common import error_report, errors, keras_variables
from official_lite.core import step_checks, step_metrics
from official_lite.data import length
from official_lite.modeling import model_export
from official_lite.pipeline.stages import ExperimentContext
from official_lite.tools import loaded_run

Outputs = list[Any]
ExportedCall = Callable[[loaded_run.ModelInputs], Outputs]

# The latency measurement ends after this many calls or seconds, whichever comes first.
_MAX_CALLS = 200
_MAX_SECONDS = 2.0
_WARM_UP_CALLS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Export:
    """An exported model and its difference from the original.

    Attributes:
        format: One of `modeling.model_export.FORMATS`.
        path: The file, or the folder of a SavedModel.
        checkpoint: The checkpoint whose weights were exported.
        size: Size in bytes.
        max_difference: Largest absolute difference between the outputs of the exported and the
            original model.
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
        prefix: The checkpoint, or a directory, whose latest checkpoint is used.
        formats: Names from `modeling.model_export.FORMATS`.
        directory: Where to write the exports.
        is_random: Whether to compare on random inputs instead of the first examples of the data.
        measure: Whether to measure the metrics and the latency of each export. The first element of
            the result then describes the original model, with the format `model`.

    Raises:
        errors.OfficialLiteError: The model can't be written in a format, or can't be loaded back.
    """
    with loaded_run.built(params) as (ctx, _):
        # Choose the checkpoint only now, because a running training job may remove checkpoints
        # while the model is built.
        prefix = loaded_run.find_checkpoint(prefix)
        loaded_run.load_weights(ctx, prefix)
        model = ctx.require("model")
        inputs = loaded_run.random_inputs(model) if is_random else loaded_run.real_inputs(ctx)
        expected = outputs_of(model(*inputs.args, training=False))
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
                max_difference=largest_difference(expected, found),
                max_output=_largest(expected),
            )
            if measure:
                export = dataclasses.replace(
                    export,
                    latency_ms=measure_latency(call, inputs),
                    metrics=measure_metrics(ctx, inputs, call),
                )
            exports.append(export)
    return exports


def _measure_model(
    ctx: ExperimentContext, prefix: str, inputs: loaded_run.ModelInputs, max_output: float
) -> Export:
    """Measure the original model, for comparison with its exports."""
    model = ctx.require("model")
    call = tf.function(lambda *args: model(*args, training=False))
    return Export(
        format="model",
        path=prefix,
        checkpoint=prefix,
        size=sum(weight.value.dtype.size * math.prod(weight.shape) for weight in model.weights),
        max_difference=0.0,
        max_output=max_output,
        latency_ms=measure_latency(lambda given: outputs_of(call(*given.args)), inputs),
        metrics=measure_metrics(ctx, inputs),
    )


def _write_and_call(
    model: Any, path: str, format: str, inputs: loaded_run.ModelInputs
) -> tuple[ExportedCall, list[Any]]:
    """Write the model and load it back; return the function that calls it, and its outputs."""
    act = "written"
    try:
        with error_report.naming_the_resource(to_save_memory="End other programs"):
            # Mute the event storage. Otherwise, the export of a model that records values would
            # include the event storage.
            with telemetry.get_event_storage().muted():
                model_export.write_model(model, path, format, input_signature=inputs.signature)
            act = "loaded back"
            call = load_exported(path, format)
            return call, call(inputs)
    except errors.OfficialLiteError:
        raise
    except Exception as error:  # Converters and loaders may raise any exception.
        raise errors.OfficialLiteError(
            f"The model can't be {act} as {format}: {type(error).__name__}: "
            f"{str(error).strip()[:1000]}"
        ) from error


def _name(prefix: str, run_dir: str) -> str:
    """Return the step of a checkpoint, preceded by its subfolder, if any: `best_ckpt-500`."""
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


def load_exported(path: str, format: str) -> ExportedCall:
    """Load an exported model and return a function that calls it.

    Args:
        path: The exported file or folder.
        format: One of `modeling.model_export.FORMATS`.

    Raises:
        errors.ConfigValueError: A package that is needed to load the model is not installed.
    """
    return _LOADERS[format](path)


def outputs_of(result: Any) -> Outputs:
    """Return the arrays in a model's result."""
    return [np.asarray(each) for each in keras.tree.flatten(result)]


def largest_difference(expected: Outputs, found: Outputs) -> float:
    """Return the largest absolute difference of corresponding outputs.

    It is infinite if the shapes differ or if non-numeric values differ.
    """
    if [each.shape for each in expected] != [each.shape for each in found]:
        return float("inf")
    return max(map(_difference, expected, found), default=0.0)


def _load_keras(path: str) -> ExportedCall:
    loaded = keras.models.load_model(path, compile=False)
    call = tf.function(lambda *args: loaded(*args, training=False))
    return lambda inputs: outputs_of(call(*_tensors(inputs)))


def _load_saved_model(path: str) -> ExportedCall:
    loaded = tf.saved_model.load(path)
    return lambda inputs: outputs_of(loaded.serve(*_tensors(inputs)))


def _load_litert(path: str) -> ExportedCall:
    interpreter = _loader("ai_edge_litert.interpreter", "LiteRT").Interpreter(model_path=path)
    runner = interpreter.get_signature_runner()
    (signature,) = interpreter.get_signature_list().values()

    def call(inputs: loaded_run.ModelInputs) -> Outputs:
        result = runner(**_by_name(signature["inputs"], inputs.arrays()))
        return [result[name] for name in sorted(result, key=_with_numbers)]

    return call


def _load_onnx(path: str) -> ExportedCall:
    runtime = _loader("onnxruntime", "ONNX")
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def call(inputs: loaded_run.ModelInputs) -> Outputs:
        found: Outputs = session.run(None, _by_name(names, inputs.arrays()))
        return found

    return call


def _loader(module: str, what: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise errors.ConfigValueError(
            f"The {what} file was written, but can't be loaded and compared, because {error.name} "
            "is not installed: pip install 'official-lite[export]'"
        ) from error


_LOADERS: Mapping[str, Callable[[str], ExportedCall]] = {
    "keras": _load_keras,
    "tf_saved_model": _load_saved_model,
    "litert": _load_litert,
    "onnx": _load_onnx,
}


def _tensors(inputs: loaded_run.ModelInputs) -> list[Any]:
    tensors: list[Any] = keras.tree.map_structure(tf.constant, list(inputs.args))
    return tensors


def _by_name(wanted: Sequence[str], arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays for an exported model, keyed by the input names that it expects.

    Converters remove inputs that have no effect. They also rename inputs whose names are taken; all
    inputs are then matched by position.
    """
    if set(wanted) <= set(arrays):
        return {name: arrays[name] for name in wanted}
    if len(wanted) == len(arrays):
        return dict(zip(wanted, arrays.values(), strict=True))
    raise errors.ConfigValueError(
        f"The exported model expects {', '.join(wanted)}, but the model was called with "
        f"{', '.join(arrays)}."
    )


def _with_numbers(name: str) -> list[Any]:
    """Return a sort key that sorts `output_10` after `output_9`."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def _difference(expected: Any, found: Any) -> float:
    if not expected.size:
        return 0.0
    if expected.dtype.kind not in "biuf":
        # The outputs are strings, or `bfloat16`, which NumPy does not treat as a number type.
        if expected.dtype.kind in "OSU":
            return 0.0 if np.array_equal(expected, found) else float("inf")
        expected, found = expected.astype(np.float32), np.asarray(found).astype(np.float32)
    one, two = (np.asarray(each).astype(np.float64) for each in (expected, found))
    # Define the difference between two equal infinities, or between two NaNs, as 0.
    same = (one == two) | (np.isnan(one) & np.isnan(two))
    gaps = np.abs(np.subtract(one, two, out=np.zeros_like(one), where=~same))
    return float(np.nan_to_num(gaps, nan=np.inf, posinf=np.inf).max())


def measure_metrics(
    ctx: ExperimentContext,
    inputs: loaded_run.ModelInputs,
    call: ExportedCall | None = None,
) -> dict[str, float]:
    """Evaluate an exported model on the validation data; without `call`, the original model.

    Args:
        ctx: The context with the task and the original model, whose weights were exported.
        inputs: Example inputs, for the names and dtypes that the exported model expects.
        call: The exported model.

    Returns:
        The metrics of the task and of its model, with the mean of the loss over the examples as
        `validation_loss`, as in an evaluation.

    Raises:
        errors.ConfigValueError: The task can't build its validation data, or all of them are
            requested and they repeat forever.
    """
    task, model = ctx.require("task"), ctx.require("model")
    metrics = step_checks.build_metrics(task, training=False, model=model)
    data, steps = ctx.params.task.validation_data, ctx.params.trainer.validation_steps
    # Always evaluate on the validation data, even if the example inputs come from the training
    # data.
    with step_checks.naming_the_block(task.build_inputs, "task.validation_data", data):
        dataset = task.build_inputs(data)
    if steps == -1:
        length.require_end(dataset)
    loss = step_metrics.BatchMean("validation_loss")
    # The model keeps its metrics, which the measurement of another export may have updated.
    compiled = step_metrics.compiled_metrics(model)
    of_model = [] if compiled is None else [compiled]
    group = step_metrics.MetricGroup([*metrics, *of_model], compiles=False)
    group.reset()
    state = None
    with _answered_by(model, inputs, call) if call else contextlib.nullcontext():
        for batch in itertools.islice(dataset, steps if steps > 0 else None):
            logs = task.validation_step(batch, model, metrics)
            if task.loss in logs:
                loss.update_state(logs[task.loss], batch=batch)
            state = task.aggregate_logs(
                state, keras.tree.map_structure(lambda value: (value,), dict(logs))
            )
    found: dict[str, Any] = {}
    if float(loss.count) > 0:
        found["validation_loss"] = loss.result()
    found |= group.results()
    if state is not None:
        found |= task.reduce_aggregated_logs(state)
    return {name: float(value) for name, value in found.items() if np.ndim(value) == 0}


def measure_latency(call: ExportedCall, inputs: loaded_run.ModelInputs) -> float:
    """Return the median time of a call with one example, in milliseconds."""
    single = dataclasses.replace(
        inputs,
        args=keras.tree.map_structure(lambda x: x[:1] if np.ndim(x) else x, list(inputs.args)),
    )
    for _ in range(_WARM_UP_CALLS):
        call(single)
    times: list[float] = []
    while len(times) < _MAX_CALLS and sum(times) < _MAX_SECONDS:
        start = time.perf_counter()
        call(single)
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


@contextlib.contextmanager
def _answered_by(
    model: keras.Model, inputs: loaded_run.ModelInputs, call: ExportedCall
) -> Iterator[None]:
    """Redirect the calls of a model to its exported version within the context."""
    own_call: Callable[..., Any] = model.call
    signature = inspect.signature(own_call)
    dtypes = [np.asarray(x).dtype for x in keras.tree.flatten(list(inputs.args))]

    def answer(*args: Any, **kwargs: Any) -> Any:
        given = loaded_run.in_own_structure(
            model, keras_variables.tensors_of_call(signature, args, kwargs)
        )
        leaves = [
            np.asarray(leaf).astype(dtype)
            for leaf, dtype in zip(keras.tree.flatten(given), dtypes, strict=True)
        ]
        packed = keras.tree.pack_sequence_as(given, leaves)
        outputs = call(dataclasses.replace(inputs, args=packed))
        if not structure:
            # The exported model returns a flat list, so take the structure from the original model.
            structure.append(own_call(*args, **kwargs))
        return keras.tree.pack_sequence_as(structure[0], [tf.constant(x) for x in outputs])

    structure: list[Any] = []
    with keras_variables.replacing_call(model, answer):
        yield
