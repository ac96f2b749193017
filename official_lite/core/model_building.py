"""Gives a model its variables before anything is compiled, restored or counted."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import base_task
from official_lite.modeling.optimization import gradient_accumulator

__all__ = ["build_by_task", "build_variables", "has_variables"]


def build_by_task(
    model: keras.Model, task: base_task.Task, element_spec: Any, *, training: bool
) -> None:
    """Builds a model by the step of its task: that of training, or that of evaluation.

    Args:
        model: The model.
        task: The task.
        element_spec: `element_spec` of the distributed dataset that the step reads.
        training: Which step, since the data of the two may differ.

    Raises:
        errors.ConfigError: As `build_variables`.
    """
    if training:
        sink = gradient_accumulator.GradientSink(keras.optimizers.SGD())
        step_fn = functools.partial(task.train_step, model=model, optimizer=sink, metrics=[])
    else:
        step_fn = functools.partial(task.validation_step, model=model, metrics=[])
    build_variables(model, step_fn, element_spec)


def build_variables(model: keras.Model, step_fn: Callable[[Any], Any], element_spec: Any) -> None:
    """Builds a model that creates its variables on its first call.

    The task's own step is traced on the dataset's element spec and never run: so the model sees
    exactly the inputs that the task gives it, whatever the task does with a batch, and no batch is
    read. Models that have their variables already are left alone.

    Args:
        model: The model; anything but a Keras model is left alone.
        step_fn: A replica's step as a function of its inputs, without an update of the weights.
        element_spec: `element_spec` of the distributed dataset that the step reads.

    Raises:
        errors.ConfigError: If the model still has no variables, with the step's own error as the
            cause.
    """
    if has_variables(model):
        return
    try:
        # Each round builds one more part outside the replicas; the last finds them built.
        while _stops_at_unbuilt_part(model, step_fn, element_spec):
            pass
    except Exception as error:
        raise errors.ConfigError(
            f"The model {model.name!r} could not be built from the inputs of its task, which are "
            f"{element_spec}: {error}"
        ) from error
    if not model.variables:
        raise errors.ConfigError(
            f"The task's step does not call the model {model.name!r}, which so has no variables."
        )


def has_variables(model: Any) -> bool:
    """Whether a model needs no first call; true for whatever is not a Keras model."""
    if not isinstance(model, keras.Model):
        return True
    layers = model._flatten_layers(include_self=True)
    return not _unbuilt_metrics(model) and all(layer.built for layer in layers)


def _unbuilt_metrics(model: keras.Model) -> list[Any]:
    """What is yet to be made of `compile`'s metrics, and of its losses, which have means."""
    parts = (getattr(model, name, None) for name in ("_compile_metrics", "_compile_loss"))
    return [part for part in parts if part is not None and not part.built]


def _stops_at_unbuilt_part(
    model: keras.Model, step_fn: Callable[[Any], Any], element_spec: Any
) -> bool:
    """Traces the step. True if it came to a part without variables, which now has them.

    A `Sequential` builds a functional model of its own on its first call, in whose graph a mirrored
    variable can't be created; nor can those of metrics in the step. So the trace is stopped there,
    and the part is built here.
    """
    strategy = tf.distribute.get_strategy()
    requests: list[Callable[[], None]] = []
    with contextlib.ExitStack() as stack:
        for part in _unbuilt_metrics(model):
            stack.enter_context(_build_on_request(part, requests))
        if strategy.num_replicas_in_sync > 1:
            for layer in model._flatten_layers(include_self=True):
                if isinstance(layer, keras.Sequential) and not layer.built:
                    stack.enter_context(_build_on_request(layer, requests))
        try:
            tf.function(lambda inputs: strategy.run(step_fn, args=(inputs,))).get_concrete_function(
                element_spec
            )
        except Exception:  # Whatever Keras makes of the stop that was asked for.
            # An error of the step's own comes back in the next round, in which this layer no longer
            # stops it.
            if not requests:
                raise
    for build in requests[:1]:
        build()
    return bool(requests)


@contextlib.contextmanager
def _build_on_request(part: Any, requests: list[Callable[[], None]]) -> Iterator[None]:
    """Within it, the part does not build itself but notes how it would, and stops."""
    build = part.build

    def note_and_stop(*args: Any, **kwargs: Any) -> None:
        specs = tf.nest.map_structure(_without_graph, args)
        requests.append(lambda: build(*specs, **kwargs))
        raise RuntimeError(f"{part.name} is built outside the replicas.")

    # With the parameters' names, by which Keras decides what shape to pass.
    part.build = functools.wraps(build)(note_and_stop)
    try:
        yield
    finally:
        part.build = build


def _without_graph(value: Any) -> Any:
    """A tensor of the trace by its shape and type; all else as it is."""
    return keras.KerasTensor(value.shape, value.dtype.name) if tf.is_tensor(value) else value
