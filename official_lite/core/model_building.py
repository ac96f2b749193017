"""The creation of a model's variables before anything is compiled, restored or counted."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from official_lite.common import error_report, errors, types, user_code
from official_lite.core import base_task, step_checks
from official_lite.modeling.optimization import gradient_accumulator

__all__ = ["build_by_task", "build_for_prediction", "build_variables", "has_variables"]


def build_by_task(
    model: keras.Model,
    task: base_task.Task,
    element_spec: types.Nest,
    metrics: Sequence[keras.metrics.Metric],
    *,
    training: bool,
) -> None:
    """Build a model by tracing the training or validation step of its task.

    Args:
        model: The model.
        task: The task.
        element_spec: The `element_spec` of the distributed dataset that the step reads.
        metrics: What the task built for the step. They are not built again here, because a task may
            keep some of them as attributes.
        training: Whether to trace the training step or the validation step, whose inputs may
            differ.

    Raises:
        errors.ConfigError: As in `build_variables`.
    """
    if training:
        sink = gradient_accumulator.GradientSink(keras.optimizers.SGD())
        step_fn = functools.partial(task.train_step, model=model, optimizer=sink, metrics=metrics)
    else:
        step_fn = functools.partial(task.validation_step, model=model, metrics=metrics)

    @user_code.not_converted
    def explained(inputs: types.Nest) -> Any:
        with step_checks.naming_the_inputs(task, step_fn.func, model, inputs):
            return user_code.converted(step_fn.func)(inputs, **step_fn.keywords)

    build_variables(model, explained, element_spec)


def build_for_prediction(
    model: keras.Model, task: base_task.Task, element_spec: types.Nest
) -> None:
    """Build a model by tracing the prediction step of its task.

    Args:
        model: The model.
        task: The task.
        element_spec: The `element_spec` of the distributed dataset that the step reads.

    Raises:
        errors.ConfigError: As in `build_variables`.
    """

    @user_code.not_converted
    def explained(inputs: types.Nest) -> Any:
        with step_checks.naming_the_inputs(task, task.predict_step, model, inputs):
            return user_code.converted(task.predict_step)(inputs, model=model)

    build_variables(model, explained, element_spec)


def build_variables(
    model: keras.Model, step_fn: Callable[[Any], Any], element_spec: types.Nest
) -> None:
    """Build a model that creates its variables on its first call.

    The task's own step is traced on the element spec of the dataset, but never executed. The model
    is therefore called with exactly the inputs that the task passes to it, and no batch is read.
    Models that already have their variables are left unchanged.

    Args:
        model: The model; any object other than a Keras model is left unchanged.
        step_fn: A function that takes a replica's inputs and runs its step, without updating the
            weights.
        element_spec: The `element_spec` of the distributed dataset that the step reads.

    Raises:
        errors.ConfigError: If the step fails or does not call the model, with the step's own error
            as the cause.
    """
    if has_variables(model):
        return
    try:
        # Each iteration builds one more part outside the replicas. The last iteration finds
        # nothing left to build.
        while _stops_at_unbuilt_part(model, step_fn, element_spec):
            pass
    except errors.ConfigError:
        raise
    except Exception as error:
        raise errors.ConfigError(
            f"The model {model.name!r} could not be built from the inputs of its task. "
            f"{error_report.summary(error)}\nThe inputs that `build_inputs` returned are "
            f"{element_spec}."
        ) from error
    # A model without weights is built when it is called.
    if not model.variables and not model.built:
        raise errors.ConfigError(
            f"The task's step does not call the model {model.name!r}, so the model has no "
            "variables."
        )


def has_variables(model: keras.Model | tf.Module) -> bool:
    """Return whether a model has its variables; true for objects other than Keras models."""
    if not isinstance(model, keras.Model):
        return True
    layers = model._flatten_layers(include_self=True)
    return not _unbuilt_metrics(model) and all(layer.built for layer in layers)


def _unbuilt_metrics(model: keras.Model) -> list[Any]:
    """Return the unbuilt metrics and losses of `compile`; a compiled loss keeps mean metrics."""
    parts = (getattr(model, name, None) for name in ("_compile_metrics", "_compile_loss"))
    return [part for part in parts if part is not None and not part.built]


def _stops_at_unbuilt_part(
    model: keras.Model, step_fn: Callable[[Any], Any], element_spec: types.Nest
) -> bool:
    """Trace the step; if it stops at an unbuilt part, build that part and return True.

    A `Sequential` builds an internal functional model on its first call, and mirrored variables
    can't be created in that model's graph. The variables of metrics can't be created inside the
    step either. The trace is therefore stopped at such a part, which is then built outside it.
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
        except Exception:  # Keras may wrap the error that stops the trace in any other error.
            # If the error comes from the step itself, it is raised again in the next iteration, in
            # which this part no longer stops the trace.
            if not requests:
                raise
    for build in requests[:1]:
        build()
    return bool(requests)


@contextlib.contextmanager
def _build_on_request(
    part: keras.layers.Layer | keras.metrics.Metric, requests: list[Callable[[], None]]
) -> Iterator[None]:
    """While active, stop the trace when `part` is built, and record a request to build it."""
    build = part.build

    def note_and_stop(*args: Any, **kwargs: Any) -> None:
        specs = tf.nest.map_structure(_without_graph, args)
        requests.append(lambda: build(*specs, **kwargs))
        raise RuntimeError(f"Building {part.name} outside the replica context.")

    # `wraps` keeps the names of the parameters, by which Keras decides which shapes to pass.
    part.build = functools.wraps(build)(note_and_stop)
    try:
        yield
    finally:
        part.build = build


def _without_graph(value: types.Nest) -> types.Nest:
    """Replace a tensor of the trace by its shape and dtype; return any other value unchanged."""
    return keras.KerasTensor(value.shape, value.dtype.name) if tf.is_tensor(value) else value
