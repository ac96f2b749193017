"""Mistakes in a task's step that TensorFlow carries out without a word.

Each check is made while a step is traced, once, and costs nothing afterwards.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite import telemetry
from official_lite.common import errors

__all__ = ["check_class_labels", "check_pairing", "watched_for_training_mode"]

# Two sizes of a batch that no other axis is likely to have.
_SIZES = (10007, 10009)

_WANT_ONE_HOT = (keras.metrics.CategoricalAccuracy, keras.metrics.TopKCategoricalAccuracy)

_DIFFER_IN_TRAINING = (
    keras.layers.BatchNormalization,
    keras.layers.Dropout,
    keras.layers.GaussianDropout,
    keras.layers.GaussianNoise,
)


# The models and metrics that were warned of.
_told: weakref.WeakSet[Any] = weakref.WeakSet()


def check_pairing(
    build_losses: Callable[..., Any], labels: Any, outputs: Any, task_name: str
) -> None:
    """Refuses a loss that pairs each label with the outputs of all examples.

    Of labels of shape (batch,) and outputs of shape (batch, 1), `labels - outputs` is
    (batch, batch). Whether a loss does that is tried with more labels than outputs, in a graph that
    is never run: only such a loss can be built, and has a tensor with both sizes in it.

    Args:
        build_losses: The loss of labels and outputs.
        labels: The labels of a batch.
        outputs: What the model returned.
        task_name: The name of the task, for the message.

    Raises:
        errors.ConfigValueError: It does.
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
        except Exception:  # Sizes that differ are an error where examples are paired one by one.
            return
    for operation in graph.get_operations():
        for tensor in operation.outputs:
            shape = tensor.shape
            if shape.rank is not None and set(_SIZES) <= set(shape.as_list()):
                raise errors.ConfigValueError(
                    f"The loss of {task_name} has the labels with the shape {labels.shape} and the "
                    f"model's outputs with the shape {outputs.shape}; computed together they "
                    "become a matrix of every label with every output. Give both one shape: "
                    "`labels[:, tf.newaxis]`, or `tf.squeeze(model_outputs, -1)`."
                )


def check_class_labels(metrics: Sequence[Any], labels: Any, outputs: Any, task_name: str) -> None:
    """Warns of metrics for one-hot labels that are given the numbers of classes."""
    if not (_has_rank(labels, 1) and _has_rank(outputs, 2)) or outputs.shape[-1] in (None, 1):
        return
    for metric in metrics:
        if isinstance(metric, _WANT_ONE_HOT) and metric not in _told:
            _told.add(metric)
            kind = type(metric).__name__
            logging.warning(
                "The metric `%s` of %s is a %s, which takes one-hot labels of the shape %s; it is "
                "given labels of the shape %s, so its value means nothing. Take keras.metrics."
                "Sparse%s.",
                metric.name,
                task_name,
                kind,
                outputs.shape,
                labels.shape,
                kind,
            )


@contextlib.contextmanager
def watched_for_training_mode(model: Any, task_name: str) -> Iterator[None]:
    """Warns if the step within calls the model, and never in training mode, where that matters."""
    # The step of another replica, on a thread of its own, may be watched already.
    is_watched = "call" in getattr(model, "__dict__", ())
    if is_watched or not isinstance(model, keras.Model) or not _has_layers_that_differ(model):
        yield
        return
    modes: list[bool] = []
    call = model.call

    def noting_call(*args: Any, **kwargs: Any) -> Any:
        modes.append(bool(model._get_call_context().training))
        return call(*args, **kwargs)

    # Past Keras' `__setattr__`, which looks for things to track.
    model.__dict__["call"] = noting_call
    try:
        yield
    finally:
        model.__dict__.pop("call", None)
    if modes and not any(modes) and model not in _told:
        _told.add(model)
        logging.warning(
            "`train_step` of %s never calls the model with `training=True`: its dropout does "
            "nothing, and its batch normalization learns no statistics.",
            task_name,
        )


def _may_be_broadcast(labels: Any, outputs: Any) -> bool:
    for one, other in ((labels, outputs), (outputs, labels)):
        if _has_rank(one, 1) and _has_rank(other, 2) and other.shape[-1] == 1:
            return True
    return False


def _has_rank(value: Any, rank: int) -> bool:
    return isinstance(value, tf.Tensor) and value.shape.rank == rank


def _has_layers_that_differ(model: keras.Model) -> bool:
    layers = model._flatten_layers(include_self=False)
    return any(
        isinstance(layer, _DIFFER_IN_TRAINING) and layer.trainable and getattr(layer, "rate", 1)
        for layer in layers
    )
