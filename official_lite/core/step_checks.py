"""Checks for mistakes in the methods of a task that TensorFlow does not report, or reports late.

Each check runs once, while a step is built or traced, and adds no per-step cost.
"""

import contextlib
import inspect
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite import orbit
from official_lite.common import (
    error_report,
    errors,
    keras_variables,
    nests,
    plugins,
    user_code,
)
from official_lite.core import step_metrics
from official_lite.data import input_errors
from official_lite.modeling import distributed_gradients

__all__ = [
    "build_metrics",
    "call_train_step",
    "check_class_labels",
    "explaining_the_step",
    "name_metrics",
    "naming_the_block",
    "require_losses",
    "require_one_replica",
    "require_signature",
    "reported_names",
    "returned",
    "training_loss",
    "warn_of_compiled_optimizer",
    "warn_of_logits",
    "warn_of_pairing",
    "warn_of_unreported_logs",
    "watched_for_training_mode",
]

_WANT_ONE_HOT = (keras.metrics.CategoricalAccuracy, keras.metrics.TopKCategoricalAccuracy)

_DIFFER_IN_TRAINING = (
    keras.layers.BatchNormalization,
    keras.layers.Dropout,
    keras.layers.GaussianDropout,
    keras.layers.GaussianNoise,
)


_TWO_PRECISIONS = re.compile(r"type b?float\d+ that does not match type b?float\d+")

# The models and metrics for which a warning has been logged, and the task classes whose logs have
# been checked.
_warned: weakref.WeakSet[Any] = weakref.WeakSet()


def returned(method: Callable[..., Any], value: Any, expected: str) -> Any:
    """Return the value that a method of a task has returned, unless it is None or a class.

    Args:
        method: The method, which the message names with its file and line.
        value: The value that the method returned.
        expected: A description of the value that the method must return, for the message.

    Raises:
        errors.ConfigTypeError: If the value is None or a class.
    """
    if inspect.isclass(value):
        raise errors.ConfigTypeError(
            f"{plugins.described(method)} returned the class `{value.__name__}`; expected "
            f"{expected}. Return an object of the class: `{value.__name__}(…)`."
        )
    if value is None:
        raise errors.ConfigTypeError(
            f"{plugins.described(method)} returned None; expected {expected}. Check that the "
            "method ends with a `return` statement."
        )
    return value


def call_train_step(
    task: Any, inputs: nests.Nest, model: keras.Model, optimizer: Any, metrics: Any
) -> Mapping[str, Any]:
    """Call `task.train_step`, and return its logs."""
    with (
        watched_for_training_mode(model, type(task).__name__),
        explaining_the_step(task, task.train_step, inputs),
    ):
        logs: Mapping[str, Any] = user_code.converted(task.train_step)(
            inputs, model=model, optimizer=optimizer, metrics=metrics
        )
    return logs


def training_loss(task: Any, logs: Any) -> tf.Tensor:
    """Return the loss in the logs that `task.train_step` has returned.

    Raises:
        errors.ConfigError: If the step returned None, or logs without the loss.
    """
    logs = returned(task.train_step, logs, f"a dictionary of logs with the key {task.loss!r}")
    if task.loss not in logs:
        raise errors.ConfigValueError(
            f"{plugins.described(task.train_step)} returned logs with the keys {sorted(logs)}; "
            f"expected the key {task.loss!r}. Add `self.loss: loss` to the logs."
        )
    return logs[task.loss]


def warn_of_unreported_logs(
    task: Any,
    logs: Mapping[str, Any],
    metrics: Any,
    model: keras.Model | tf.Module,
    hooks: Sequence[orbit.GraphHook],
) -> None:
    """Warn about logs of `task.train_step` that neither a report nor a graph hook reads.

    The logs of a task class are checked once.
    """
    reads_logs = any(type(hook).call is not orbit.GraphHook.call for hook in hooks)
    if type(task) in _warned or reads_logs or not set(logs) - {task.loss}:
        return
    _warned.add(type(task))
    reported = reported_names((*(metrics or ()), *getattr(model, "metrics", ())))
    unread = sorted(str(key) for key in set(logs) - {task.loss} - reported)
    if unread:
        logging.warning(
            "%s returned %s, which a training run does not report. To report a value, return a "
            "metric from `build_metrics`, such as `keras.metrics.Mean`, and update it in the step.",
            plugins.described(task.train_step),
            ", ".join(f"`{key}`" for key in unread),
        )


def reported_names(metrics: Iterable[keras.metrics.Metric]) -> set[str]:
    """Return the names under which the values of metrics are reported."""
    names: set[str] = set()
    for metric in metrics:
        result = metric.result() if getattr(metric, "built", True) else None
        names |= set(result) if isinstance(result, Mapping) else {metric.name}
    return names


def build_metrics(
    task: Any, *, training: bool, model: keras.Model | None = None
) -> list[keras.metrics.Metric]:
    """Return the metrics that `task.build_metrics` builds, under the same names in every call.

    Args:
        task: The task.
        training: Whether to build the metrics of training or those of evaluation.
        model: The model, if it is built and its metrics are reported together with these.

    Raises:
        errors.ConfigTypeError: If `task.build_metrics` does not return a list of metrics.
        errors.ConfigValueError: If two metrics have the same name.
    """
    with keras_variables.fresh_names():
        metrics = _built_metrics(task.build_metrics, training=training)
        name_metrics(task, metrics)
    if model is not None:
        name_metrics(task, metrics, model)
    return metrics


def name_metrics(
    task: Any, metrics: Sequence[Any], model: keras.Model | tf.Module | None = None
) -> None:
    """Give the metrics of a task names that are unique, also among the metrics of a built model."""
    step_metrics.name_apart(metrics, plugins.described(task.build_metrics), model)


def _built_metrics(method: Callable[..., Any], *, training: bool) -> list[keras.metrics.Metric]:
    expected = "a list of Keras metrics, which may be empty"
    metrics = returned(method, method(training=training), expected)
    is_single = not isinstance(metrics, Sequence | set | dict) or isinstance(metrics, str)
    wrong = [one for one in (() if is_single else metrics) if not hasattr(one, "update_state")]
    if is_single or wrong:
        got = wrong[0] if wrong else metrics
        hint = " Build it with `keras.metrics.get(name)`." if isinstance(got, str) else ""
        what = f"a list with {got!r}" if wrong else repr(got)
        if isinstance(metrics, Mapping):
            what, hint = f"a dictionary, {metrics!r}", " Return a list of its values."
        raise errors.ConfigTypeError(
            f"{plugins.described(method)} returned {what}; expected {expected}.{hint}"
        )
    return list(metrics)


def require_signature(method: Callable[..., Any], *args: str, **kwargs: str) -> None:
    """Check that a method of a task accepts the arguments that the trainer passes to it.

    Args:
        method: The method.
        *args: The names of the positional arguments of the call.
        **kwargs: The keyword arguments of the call; the values do not matter.

    Raises:
        errors.ConfigTypeError: If the method does not accept these arguments.
    """
    remedy = "Give the method the same parameters as in `base_task.Task`."
    plugins.require_signature(method, remedy, *args, **kwargs)


def require_losses(task: Any, base: type, step: str) -> None:
    """Check that `build_losses` accepts its arguments by name, if the default step calls it.

    Args:
        task: The task.
        base: The class that defines the default steps.
        step: The name of the step.

    Raises:
        errors.ConfigTypeError: If the method does not accept these arguments.
    """
    if all(getattr(type(task), name) is getattr(base, name) for name in (step, "step_loss")):
        require_signature(task.build_losses, labels="", model_outputs="", aux_losses="")


def warn_of_compiled_optimizer(
    model: keras.Model | tf.Module, optimizer: keras.optimizers.Optimizer
) -> None:
    """Warn if `compile` was given another optimizer, because the trainer uses its own."""
    given = getattr(model, "optimizer", None) if getattr(model, "compiled", False) else None
    # If `compile` is given no optimizer, it creates an RMSprop, which needs no warning.
    if given is None or type(given) is keras.optimizers.RMSprop or given is optimizer:
        return
    logging.warning(
        "The model was compiled with the optimizer %s, but the run uses the optimizer %s of "
        "`trainer.optimizer_config`. Remove the optimizer from `compile`.",
        type(given).__name__,
        optimizer.name,
    )


# The options that a Keras optimizer applies only in some steps, each with the config field to set
# instead.
_NOT_IN_EACH_STEP = {
    "gradient_accumulation_steps": "`trainer.grad_accum_steps`",
    "ema_overwrite_frequency": "`trainer.optimizer_config.ema` to evaluate the averaged weights",
}


def require_one_replica(optimizer: Any, num_replicas: int) -> None:
    """Check that no optimizer has an option that Keras supports only on a single replica.

    Keras applies these options inside a condition, and in a graph, replicas can't exchange values
    inside a condition.

    Raises:
        errors.ConfigValueError: If an optimizer has such an option and there are several replicas.
    """
    if num_replicas == 1 or not isinstance(optimizer, keras.optimizers.Optimizer):
        return
    for one in distributed_gradients.innermost_optimizers(optimizer):
        for name, instead in _NOT_IN_EACH_STEP.items():
            value = getattr(one, name, None)
            if value and (name != "ema_overwrite_frequency" or one.use_ema):
                raise errors.ConfigValueError(
                    f"The optimizer {one.name} has `{name}={value}`, which Keras supports only on "
                    f"one replica, but there are {num_replicas} replicas. Set {instead}."
                )


def warn_of_logits(task: Any, model: keras.Model | tf.Module) -> None:
    """Warn if the loss of `compile` expects probabilities but the model outputs logits."""
    loss = getattr(model, "loss", None) if getattr(model, "compiled", False) else None
    if loss is not None and _is_linear(model) and _takes_probabilities(loss):
        logging.warning(
            "The loss of %s takes probabilities, but the last layer of the model, `%s`, has no "
            "activation, so its outputs are logits. Pass `from_logits=True` to the loss, or give "
            "the layer the activation `softmax` or `sigmoid`.",
            type(task).__name__,
            model.layers[-1].name,
        )


def _is_linear(model: Any) -> bool:
    # A subclassed model defines no `outputs`, and its last layer need not compute its result.
    if len(getattr(model, "outputs", None) or ()) != 1 or not model.layers:
        return False
    # In a functional model, ops that are not layers may follow the last layer.
    last = getattr(model, "operations", model.layers)[-1]
    return getattr(last, "activation", None) is keras.activations.linear


def _takes_probabilities(loss: Any) -> bool:
    if isinstance(loss, str):
        try:
            loss = keras.losses.get(loss)
        except ValueError:  # Keras itself reports unknown names.
            return False
    if isinstance(loss, keras.Loss):
        return loss.get_config().get("from_logits") is False
    if not callable(loss):
        return False
    parameter = inspect.signature(loss).parameters.get("from_logits")
    return parameter is not None and parameter.default is False


@contextlib.contextmanager
def naming_the_block(build_inputs: Callable[..., Any], path: str, data: Any) -> Iterator[None]:
    """Name the config block in errors of `build_inputs`, which is called for several blocks.

    Args:
        build_inputs: The method of the task.
        path: The path of the block in the config, such as `task.validation_data`.
        data: The block.

    Raises:
        errors.DataError: If the data can't be used.
        errors.ConfigValueError: If the method reads a field of the block, but the block is null, or
            if a field of the block has an unusable value.
    """
    try:
        yield
    except errors.DataError as error:
        # A message that begins with a quoted name, such as a file name, needs no config path.
        if str(error).startswith("`"):
            raise
        raise errors.DataError(f"`{path}`: {error}") from error
    except errors.ConfigValueError as error:
        field = re.match(r"`(\w+)`", str(error))
        if not field or not hasattr(data, field[1]):
            raise
        is_set = bool(getattr(data, field[1]))
        hint = "" if is_set else " Set the field, or use a mode that does not read these data."
        raise errors.ConfigValueError(f"`{path}.{str(error)[1:]}{hint}") from error
    except AttributeError as error:
        if data is not None or error.obj is not None:
            raise
        raise errors.ConfigValueError(
            f"`{path}` is null in the config, but {plugins.described(build_inputs)} needs it: "
            f"{error_report.headline(error)}. Set the block, or use a mode that does not read it."
        ) from error


def _in_short(x: Any) -> str:
    if isinstance(x, tf.Tensor | tf.TensorSpec):
        return f"{x.dtype.name} {x.shape}"
    return type(x).__name__


@contextlib.contextmanager
def explaining_the_step(task: Any, step: Callable[..., Any], inputs: nests.Nest) -> Iterator[None]:
    """If tracing a step fails, explain missing features or steps, and add the inputs as a note.

    Args:
        task: The task.
        step: The method of the task that is traced inside the context.
        inputs: The inputs of the step, or their specs.

    Raises:
        KeyError: If the step requests a key that a dictionary of features does not have.
        TypeError: If the step combines floats of different precision.
        errors.MissingStepError: If the step, or a method of the task that it calls, raises
            `NotImplementedError`.
    """
    try:
        with input_errors.naming_the_keys(step, inputs):
            yield
    except errors.OfficialLiteError:
        raise
    except Exception as error:
        is_missing = isinstance(error, NotImplementedError)
        if isinstance(error, TypeError) and _TWO_PRECISIONS.search(str(error)):
            raise TypeError(
                f"{error_report.first_line(str(error))} In mixed precision, give the last layer "
                "`dtype='float32'`. Otherwise use `tf.cast`."
            ) from error
        # A step is missing only if a method of the task raised `NotImplementedError`: the step
        # itself, or a method that the step calls, such as `build_losses`.
        if not is_missing or not hasattr(task, error_report.raising_function(error)):
            name = getattr(step, "__name__", "the step")
            shapes = tf.nest.map_structure(_in_short, inputs)
            error.add_note(f"The inputs of `{type(task).__name__}.{name}`: {shapes}")
            raise
        other = "eval" if step == task.train_step else "train"
        raise errors.MissingStepError(
            f"{plugins.described(step)} raised NotImplementedError. If the task does not support "
            f"this step, use `--mode={other}`."
        ) from error


def warn_of_pairing(task: Any, base: type, labels: nests.Nest, outputs: nests.Nest) -> None:
    """Warn if a loss may pair each label with the outputs of all examples.

    With labels of shape `(batch,)` and outputs of shape `(batch, 1)`, `labels - outputs` has the
    shape `(batch, batch)`. The losses that Keras itself calls align the shapes.

    Args:
        task: The task.
        base: The class that defines the default of `build_losses`.
        labels: The labels of a batch.
        outputs: The outputs of the model.
    """
    is_own = type(task).build_losses is not getattr(base, "build_losses", None)
    if not is_own or not _may_be_broadcast(labels, outputs):
        return
    logging.warning(
        "%s gets labels of shape %s and model outputs of shape %s. An operation such as `labels - "
        "model_outputs` pairs every label with every output. If the loss does not align them, use "
        "`labels[:, tf.newaxis]` or `tf.squeeze(model_outputs, -1)`. Labels and outputs of the "
        "same shape silence this warning.",
        plugins.described(task.build_losses),
        labels.shape,
        outputs.shape,
    )


def check_class_labels(
    metrics: Sequence[Any], labels: nests.Nest, outputs: nests.Nest, task_name: str
) -> None:
    """Warn about metrics that expect one-hot labels but are given integer class labels."""
    if not (_has_rank(labels, 1) and _has_rank(outputs, 2)) or outputs.shape[-1] in (None, 1):
        return
    for metric in metrics:
        if isinstance(metric, _WANT_ONE_HOT) and metric not in _warned:
            _warned.add(metric)
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
    # If `call` has been replaced, another replica's thread may already be watching the model.
    is_watched = "call" in getattr(model, "__dict__", ())
    if is_watched or not isinstance(model, keras.Model) or not _has_layers_that_differ(model):
        yield
        return
    modes: list[bool] = []
    call = model.call

    def noting_call(*args: Any, **kwargs: Any) -> Any:
        modes.append(keras_variables.is_training_call(kwargs))
        return call(*args, **kwargs)

    with keras_variables.replacing_call(model, noting_call):
        yield
    if modes and not any(modes) and model not in _warned:
        _warned.add(model)
        logging.warning(
            "`train_step` of %s never calls the model with `training=True`, so dropout is "
            "inactive and batch normalization does not update its statistics. Pass "
            "`training=True` when the step calls the model.",
            task_name,
        )


def _may_be_broadcast(labels: nests.Nest, outputs: nests.Nest) -> bool:
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
