"""Accuracy and latency of exported models, measured by running them as a server would.

The task's own validation step evaluates an exported model: while it runs, calls of the task's model
are answered by the exported one. The metrics are therefore those of the task, whatever it does with
a batch.
"""

import contextlib
import dataclasses
import inspect
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from official_lite.core import step_checks
from official_lite.pipeline.context import ExperimentContext
from official_lite.tools.exporting import exported_model, model_inputs, run_model

__all__ = ["measure_latency", "measure_metrics"]

# How many calls of the model are timed: many, but not for long.
_MOST_CALLS = 200
_MOST_SECONDS = 2.0
_WARM_UP_CALLS = 5


def measure_metrics(
    ctx: ExperimentContext,
    inputs: model_inputs.ModelInputs,
    call: exported_model.ExportedCall | None = None,
) -> dict[str, float]:
    """Evaluate an exported model on the validation data; without `call`, the model itself.

    Args:
        ctx: The context with task and model, whose weights are those of the exported model.
        inputs: Example inputs, for the names and dtypes that the exported model expects.
        call: The exported model.

    Returns:
        The task's metrics, with the mean of the loss over the batches as `validation_loss`.
    """
    task, model = ctx.require("task"), ctx.require("model")
    metrics = step_checks.build_metrics(task, training=False, model=model)
    steps = ctx.params.trainer.validation_steps
    losses: list[float] = []
    state = None
    with _answered_by(model, inputs, call) if call else contextlib.nullcontext():
        dataset = run_model.evaluation_data(ctx)
        for batch in itertools.islice(dataset, steps if steps > 0 else None):
            logs = task.validation_step(batch, model, metrics)
            if task.loss in logs:
                losses.append(float(logs[task.loss]))
            state = task.aggregate_logs(
                state, keras.tree.map_structure(lambda value: (value,), dict(logs))
            )
    found: dict[str, Any] = {}
    if losses:
        found["validation_loss"] = statistics.fmean(losses)
    for metric in metrics:
        result = metric.result()
        found |= result if isinstance(result, dict) else {metric.name: result}
    if state is not None:
        found |= task.reduce_aggregated_logs(state)
    return {name: float(value) for name, value in found.items() if np.ndim(value) == 0}


def measure_latency(call: exported_model.ExportedCall, inputs: model_inputs.ModelInputs) -> float:
    """Return the median time of a call with one example, in milliseconds."""
    single = dataclasses.replace(
        inputs,
        args=keras.tree.map_structure(lambda x: x[:1] if np.ndim(x) else x, list(inputs.args)),
    )
    for _ in range(_WARM_UP_CALLS):
        call(single)
    times: list[float] = []
    while len(times) < _MOST_CALLS and sum(times) < _MOST_SECONDS:
        start = time.perf_counter()
        call(single)
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


@contextlib.contextmanager
def _answered_by(
    model: keras.Model, inputs: model_inputs.ModelInputs, call: exported_model.ExportedCall
) -> Iterator[None]:
    """Let an exported model answer the calls of a model."""
    own_call: Callable[..., Any] = model.call
    signature = inspect.signature(own_call)
    dtypes = [np.asarray(x).dtype for x in keras.tree.flatten(list(inputs.args))]

    def answer(*args: Any, **kwargs: Any) -> Any:
        given = model_inputs.tensors_of_call(signature, args, kwargs)
        leaves = [
            np.asarray(leaf).astype(dtype)
            for leaf, dtype in zip(keras.tree.flatten(given), dtypes, strict=True)
        ]
        packed = keras.tree.pack_sequence_as(given, leaves)
        outputs = call(dataclasses.replace(inputs, args=packed))
        if not structure:
            # The exported model returns a list.
            structure.append(own_call(*args, **kwargs))
        return keras.tree.pack_sequence_as(structure[0], [tf.constant(x) for x in outputs])

    structure: list[Any] = []
    # Bypasses Keras' `__setattr__`, which would try to track the function.
    model.__dict__["call"] = answer
    try:
        yield
    finally:
        del model.__dict__["call"]
