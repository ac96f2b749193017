"""Checks for mistakes in the methods of a task that TensorFlow does not report, or reports late.

Each check runs once, while a step is built or traced, and adds no per-step cost.
"""

import contextlib
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite import telemetry
from official_lite.common import error_report, errors, origins, types
from official_lite.data import input_errors

__all__ = [
    "build_metrics",
    "check_class_labels",
    "check_pairing",
    "naming_the_inputs",
    "returned",
    "training_loss",
    "watched_for_training_mode",
]

# Two batch sizes that no other axis is likely to have.
_SIZES = (10007, 10009)

_WANT_ONE_HOT = (keras.metrics.CategoricalAccuracy, keras.metrics.TopKCategoricalAccuracy)

# What Keras says if a layer or a model is called on other inputs than it accepts.
_REFUSES_INPUT = re.compile(
    r"incompatible with the layer|Missing data for input|expects \d+ input|Invalid input shape"
    r"|Unrecognized data|Layer .* expected \d+ (?:input|variable)"
)

_DIFFER_IN_TRAINING = (
    keras.layers.BatchNormalization,
    keras.layers.Dropout,
    keras.layers.GaussianDropout,
    keras.layers.GaussianNoise,
)


# The models and metrics for which a warning was logged.
_told: weakref.WeakSet[Any] = weakref.WeakSet()


def returned(method: Callable[..., Any], value: Any, expected: str) -> Any:
    """Return the value that a method of a task has returned, unless it is None.

    Args:
        method: The method, which the message names with its file and line.
        value: The value that it returned.
        expected: What it must return, for the message.

    Raises:
        errors.ConfigTypeError: If the value is None.
    """
    if value is None:
        raise errors.ConfigTypeError(
            f"{origins.described(method)} returned None; expected {expected}. Does it end with `return`?"
        )
    return value


def training_loss(task: Any, logs: Any) -> tf.Tensor:
    """Return the loss in the logs that `task.train_step` has returned.

    Raises:
        errors.ConfigError: If it returned None, or logs without the loss.
    """
    logs = returned(task.train_step, logs, f"a dictionary of logs with the key {task.loss!r}")
    if task.loss not in logs:
        raise errors.ConfigValueError(
            f"{origins.described(task.train_step)} returned logs with the keys {sorted(logs)}; "
            f"expected the key {task.loss!r}. Add `self.loss: loss` to them."
        )
    return logs[task.loss]


def build_metrics(task: Any, *, training: bool) -> list[keras.metrics.Metric]:
    """Return the metrics that `task.build_metrics` builds.

    Raises:
        errors.ConfigTypeError: If it does not return a list of metrics.
    """
    method, expected = task.build_metrics, "a list of Keras metrics, which may be empty"
    metrics = returned(method, method(training=training), expected)
    is_single = not isinstance(metrics, Sequence | set | dict) or isinstance(metrics, str)
    wrong = [one for one in (() if is_single else metrics) if not hasattr(one, "update_state")]
    if is_single or wrong:
        got = wrong[0] if wrong else metrics
        hint = " Build it by `keras.metrics.get(name)`." if isinstance(got, str) else ""
        raise errors.ConfigTypeError(
            f"{origins.described(method)} returned {'a list with ' if wrong else ''}{got!r}; expected "
            f"{expected}.{hint}"
        )
    return list(metrics)


@contextlib.contextmanager
def naming_the_inputs(
    task: Any, step: Callable[..., Any], model: keras.Model | tf.Module, inputs: types.Nest
) -> Iterator[None]:
    """Name the inputs, and where they come from, if a step requests others or the model does.

    Args:
        task: The task.
        step: The method of the task that is traced inside the context.
        model: The model.
        inputs: The inputs of the step, or their specs.

    Raises:
        KeyError: The step has requested a key that a dictionary of features does not have.
        errors.ConfigValueError: A layer does not accept the shape of its input.
    """
    try:
        with input_errors.naming_the_keys(step, inputs):
            yield
    except ValueError as error:
        said = error_report.headline(error)
        if isinstance(error, errors.OfficialLiteError) or not _REFUSES_INPUT.search(said):
            raise
        shape = getattr(model, "input_shape", None)
        wanted = f" The model expects {input_errors.shown(shape)}." if shape else ""
        raise errors.ConfigValueError(
            f"The model {getattr(model, 'name', '')!r} does not accept the batches of "
            f"{origins.described(task.build_inputs)}, which are {input_errors.shown(inputs)}.{wanted} "
            f"{said}."
        ) from error


def check_pairing(
    build_losses: Callable[..., Any], labels: types.Nest, outputs: types.Nest, task_name: str
) -> None:
    """Raise an error if a loss pairs each label with the outputs of all examples.

    With labels of shape `(batch,)` and outputs of shape `(batch, 1)`, `labels - outputs` has the
    shape `(batch, batch)`. To detect this, the loss is built with different numbers of labels and
    outputs, in a graph that is never run. A correct loss can't be built from them; a loss that
    broadcasts can, and its graph contains a tensor with both sizes.

    Args:
        build_losses: A function that computes the loss of labels and outputs.
        labels: The labels of a batch.
        outputs: The outputs of the model.
        task_name: The name of the task, for the message.

    Raises:
        errors.ConfigValueError: If the loss broadcasts labels and outputs to a matrix.
    """
    if not _may_be_broadcast(labels, outputs):
        return
    graph = tf.__internal__.FuncGraph("pairing")
    with graph.as_default(), telemetry.get_event_storage().muted():
        specs = zip((labels, outputs), _SIZES, strict=True)
        resized = [
            tf.compat.v1.placeholder(tensor.dtype, [size, *tensor.shape[1:]])
            for tensor, size in specs
        ]
        try:
            build_losses(*resized)
        except Exception:  # Expected: a correct loss pairs examples, so the sizes must be equal.
            return
    for operation in graph.get_operations():
        for tensor in operation.outputs:
            shape = tensor.shape
            if shape.rank is not None and set(_SIZES) <= set(shape.as_list()):
                raise errors.ConfigValueError(
                    f"The loss of {task_name} gets labels of shape {labels.shape} and model "
                    f"outputs of shape {outputs.shape}. Broadcasting would compare every label "
                    "with every output. Use the same shape for both: `labels[:, tf.newaxis]` or "
                    "`tf.squeeze(model_outputs, -1)`."
                )


def check_class_labels(
    metrics: Sequence[Any], labels: types.Nest, outputs: types.Nest, task_name: str
) -> None:
    """Warn about metrics that expect one-hot labels but are given integer class labels."""
    if not (_has_rank(labels, 1) and _has_rank(outputs, 2)) or outputs.shape[-1] in (None, 1):
        return
    for metric in metrics:
        if isinstance(metric, _WANT_ONE_HOT) and metric not in _told:
            _told.add(metric)
            kind = type(metric).__name__
            logging.warning(
                "The metric `%s` of %s is a %s, which expects one-hot labels of shape %s, but it "
                "gets labels of shape %s, so its value is meaningless. Use keras.metrics.Sparse%s.",
                metric.name,
                task_name,
                kind,
                outputs.shape,
                labels.shape,
                kind,
            )


@contextlib.contextmanager
def watched_for_training_mode(model: keras.Model | tf.Module, task_name: str) -> Iterator[None]:
    """Warn if the step calls the model, but never in training mode.

    Only models with layers that behave differently in training, such as dropout, are checked.
    """
    # The step of another replica, on another thread, may already be watching the model.
    is_watched = "call" in getattr(model, "__dict__", ())
    if is_watched or not isinstance(model, keras.Model) or not _has_layers_that_differ(model):
        yield
        return
    modes: list[bool] = []
    call = model.call

    def noting_call(*args: Any, **kwargs: Any) -> Any:
        modes.append(bool(model._get_call_context().training))
        return call(*args, **kwargs)

    # Write to `__dict__` to bypass Keras' `__setattr__`, which would track the value.
    model.__dict__["call"] = noting_call
    try:
        yield
    finally:
        model.__dict__.pop("call", None)
    if modes and not any(modes) and model not in _told:
        _told.add(model)
        logging.warning(
            "`train_step` of %s never calls the model with `training=True`, so dropout is "
            "inactive and batch normalization does not update its statistics.",
            task_name,
        )


def _may_be_broadcast(labels: types.Nest, outputs: types.Nest) -> bool:
    for one, other in ((labels, outputs), (outputs, labels)):
        if _has_rank(one, 1) and _has_rank(other, 2) and other.shape[-1] == 1:
            return True
    return False


def _has_rank(value: object, rank: int) -> bool:
    return isinstance(value, tf.Tensor) and value.shape.rank == rank


def _has_layers_that_differ(model: keras.Model) -> bool:
    layers = model._flatten_layers(include_self=False)
    return any(
        isinstance(layer, _DIFFER_IN_TRAINING) and layer.trainable and getattr(layer, "rate", 1)
        for layer in layers
    )
