"""A model's variables: their creation before anything is compiled or restored, and freezing."""

import contextlib
import functools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite.common import error_report, errors, nests, suggestions, user_code
from official_lite.core import base_task, step_checks
from official_lite.modeling import model_export
from official_lite.modeling.optimization import gradient_accumulator

__all__ = [
    "build_by_task",
    "build_for_prediction",
    "build_for_steps",
    "build_for_training",
    "build_variables",
    "freeze",
    "has_variables",
    "warn_of_wrong_gradients",
]

# The number of channels in a block of oneDNN. The defect that `warn_of_wrong_gradients` looks for
# affects only kernels with fewer input channels.
_CHANNELS_OF_A_BLOCK = 8

# Compares float32 gradients of a strided 1x1 kernel, which TensorFlow computes with oneDNN, with
# float64 gradients, which it computes with Eigen; fails if they differ. Uninitialized memory may
# contain zeros by chance, so the gradient is computed several times. Rounding errors are about a
# thousand times smaller than the bound, and other errors are as large as the gradient.
_COMPARE_GRADIENTS = """
import tensorflow as tf

@tf.function
def gradient_of(images, kernel):
    with tf.GradientTape() as tape:
        tape.watch(kernel)
        loss = tf.reduce_sum(tf.square(tf.nn.conv2d(images, kernel, 2, "SAME")))
    return tape.gradient(loss, kernel)

for seed in range(16):
    images = tf.random.stateless_uniform([10, 14, 14, 6], [seed, 0])
    kernel = tf.random.stateless_uniform([1, 1, 6, 8], [seed, 1])
    exact = gradient_of(tf.cast(images, tf.float64), tf.cast(kernel, tf.float64))
    error = tf.cast(gradient_of(images, kernel), tf.float64) - exact
    if tf.reduce_max(tf.abs(error)) > 1e-3 * tf.reduce_max(exact):
        raise SystemExit("The gradients differ.")
"""


def build_by_task(
    model: keras.Model,
    task: base_task.Task,
    element_spec: nests.Nest,
    metrics: Sequence[Any],
    *,
    optimizer: Any = None,
) -> None:
    """Build a model and the metrics by tracing the training or validation step of its task.

    Args:
        model: The model.
        task: The task.
        element_spec: The `element_spec` of the distributed dataset that the step reads.
        metrics: The metrics that the task built for the step. They are not built again here,
            because a task may keep some of them as attributes.
        optimizer: The optimizer to pass to the training step, which need not be built and is not
            changed. None traces the validation step, whose inputs may differ.

    Raises:
        errors.ConfigError: As in `build_variables`.
    """
    if optimizer is not None:
        sink = gradient_accumulator.GradientSink(optimizer)
        step = _explained(task, task.train_step, model=model, optimizer=sink, metrics=metrics)
    else:
        step = _explained(task, task.validation_step, model=model, metrics=metrics)
    build_variables(model, step, element_spec, metrics)


def build_for_steps(
    model: keras.Model,
    task: base_task.Task,
    task_metrics: Mapping[bool, Sequence[Any]],
    find_spec: Callable[[bool], nests.Nest],
    optimizer: Any,
) -> None:
    """Build a model and the metrics of its task, unless they are built, and name the metrics.

    Args:
        model: The model.
        task: The task.
        task_metrics: The metrics that the task built: under True for training, under False for
            evaluation.
        find_spec: Returns the specs of the inputs of the training or validation step.
        optimizer: The optimizer to pass to the training step.
    """
    for training, metrics in task_metrics.items():
        if not has_variables(model, metrics):
            used = optimizer if training else None
            build_by_task(model, task, find_spec(training), metrics, optimizer=used)
    for metrics in task_metrics.values():
        step_checks.name_metrics(task, metrics, model)


def build_for_prediction(
    model: keras.Model, task: base_task.Task, element_spec: nests.Nest
) -> None:
    """Build a model by tracing the prediction step of its task.

    Args:
        model: The model.
        task: The task.
        element_spec: The `element_spec` of the distributed dataset that the step reads.

    Raises:
        errors.ConfigError: As in `build_variables`.
    """
    build_variables(model, _explained(task, task.predict_step, model=model), element_spec)


def build_for_training(
    model: keras.Model | tf.Module,
    task: base_task.Task,
    find_spec: Callable[[], nests.Nest],
    optimizer: Any,
) -> None:
    """Build the layers that only the training step calls, for a run that does not train.

    Without these layers, a checkpoint of the training run would contain more weights than the
    model. A run that does not train may lack the training data, so if the step can't be traced, the
    layers stay unbuilt and a warning is logged.

    Args:
        model: The model; any object other than a Keras model is left unchanged.
        task: The task.
        find_spec: Returns the specs of the inputs of the training step.
        optimizer: The optimizer to pass to the training step; without one, nothing is built.
    """
    if optimizer is None or not isinstance(model, keras.Model):
        return
    if all(layer.built for layer in model._flatten_layers()):
        return
    try:
        # Pass no metrics, because building training metrics could replace the evaluation metrics
        # that a task keeps as attributes. A step that requires metrics fails only after it has
        # called the model.
        build_by_task(model, task, find_spec(), (), optimizer=optimizer)
    except Exception as error:
        logging.warning(
            "The training step could not be traced to build the layers that only it calls. A "
            "checkpoint that contains their weights will be refused. The reason is: %s",
            error_report.summary(error),
        )


def _explained(
    task: base_task.Task, step: Callable[..., Any], **kwargs: Any
) -> Callable[[nests.Nest], Any]:
    """Return a function that runs a step on inputs and explains missing keys and missing steps."""

    @user_code.not_converted
    def run(inputs: nests.Nest) -> Any:
        with step_checks.explaining_the_step(task, step, inputs):
            return user_code.converted(step)(inputs, **kwargs)

    return run


def build_variables(
    model: keras.Model,
    step_fn: Callable[[Any], Any],
    element_spec: nests.Nest,
    metrics: Sequence[Any] = (),
) -> None:
    """Build a model and metrics that create their variables on their first call.

    The task's own step is traced on the element spec of the dataset, but never executed. The model
    is therefore called with exactly the inputs that the task passes to it, and no batch is read.
    Nothing is traced if the model and the metrics already have their variables.

    Args:
        model: The model; any object other than a Keras model is left unchanged.
        step_fn: A function that takes a replica's inputs and runs its step, without updating the
            weights.
        element_spec: The `element_spec` of the distributed dataset that the step reads.
        metrics: The metrics that the step updates, besides those of `model.compile`.

    Raises:
        errors.ConfigError: If the step fails or does not call the model, with the step's own error
            as the cause.
    """
    if has_variables(model, metrics):
        return
    tried: set[int] = set()
    is_new = isinstance(model, keras.Model) and not model.built
    recording = model_export.recording_inputs(model) if is_new else contextlib.nullcontext()
    try:
        # Each iteration builds one more layer or metric outside the replica context. The last
        # iteration finds nothing left to build.
        with recording:
            while _stops_at_unbuilt_part(model, step_fn, element_spec, metrics, tried):
                pass
    except errors.ConfigError:
        raise
    except Exception as error:
        if _is_built(model):
            return  # The model is built, so running the step will raise the same error.
        raise errors.ConfigError(
            f"The model {model.name!r} could not be built from the inputs of its task. "
            f"{error_report.summary(error)}\nThe inputs that `build_inputs` returned are "
            f"{element_spec}."
        ) from error
    # A model that was called is built, even if it has no weights.
    if isinstance(model, keras.Model) and not model.variables and not model.built:
        raise errors.ConfigError(
            f"The task's step does not call the model {model.name!r}, so the model has no "
            "variables. Call the model in the step, or build it in `build_model`."
        )


def has_variables(model: keras.Model | tf.Module, metrics: Sequence[Any] = ()) -> bool:
    """Return whether a model, its metrics and the given metrics all have their variables.

    A model that is not a Keras model is assumed to have its variables.
    """
    return _is_built(model) and not _lazy_metrics(model, metrics)


def _is_built(model: keras.Model | tf.Module) -> bool:
    if not isinstance(model, keras.Model):
        return True
    layers = model._flatten_layers(include_self=True)
    return not _unbuilt_metrics(model) and all(layer.built for layer in layers)


def _unbuilt_metrics(model: keras.Model) -> list[Any]:
    """Return the unbuilt metrics and loss of `compile`; a compiled loss contains metrics, too."""
    parts = (getattr(model, name, None) for name in ("_compile_metrics", "_compile_loss"))
    return [part for part in parts if part is not None and not part.built]


def _lazy_metrics(
    model: keras.Model | tf.Module, metrics: Sequence[Any]
) -> list[keras.metrics.Metric]:
    """Return the metrics that may create variables in their first update, such as `F1Score`."""
    compiled = getattr(model, "_compile_metrics", None) if isinstance(model, keras.Model) else None
    parts = [*metrics, *(compiled.metrics if compiled else ())]
    lazy = {}
    while parts:
        metric = parts.pop()
        if isinstance(metric, keras.metrics.Metric):
            parts += metric._metrics
            if not (metric.variables and getattr(metric, "_built", True)):
                lazy[id(metric)] = metric
    return list(lazy.values())


def _stops_at_unbuilt_part(
    model: keras.Model,
    step_fn: Callable[[Any], Any],
    element_spec: nests.Nest,
    metrics: Sequence[Any],
    tried: set[int],
) -> bool:
    """Trace the step; if an unbuilt layer or metric stops the trace, build it and return True.

    A `Sequential` builds an internal functional model on its first call, and mirrored variables
    can't be created in that model's graph. Metric variables can't be created inside the step
    either. The trace is therefore stopped at such a layer or metric, which is then built outside
    the trace.
    """
    strategy = tf.distribute.get_strategy()
    requests: list[Callable[[], None]] = []
    failures: list[Exception] = []
    # Keep the dtype policy, because a layer may create sublayers while it is built.
    step_fn = user_code.with_dtype_policy(step_fn)

    @user_code.not_converted
    def trace(inputs: nests.Nest) -> None:
        try:
            strategy.run(step_fn, args=(inputs,))
        except Exception as error:  # Keras may wrap the error that stops the trace.
            # Finish the trace; otherwise TensorFlow would not initialize variables that the step
            # has created.
            failures.append(error)

    with contextlib.ExitStack() as stack:
        is_keras = isinstance(model, keras.Model)
        parts = _unbuilt_metrics(model) if is_keras else []
        if is_keras and strategy.num_replicas_in_sync > 1:
            layers = model._flatten_layers(include_self=True)
            parts += [x for x in layers if isinstance(x, keras.Sequential) and not x.built]
        for part in parts:
            stack.enter_context(_build_on_request(part, requests))
        for metric in _lazy_metrics(model, metrics):
            if id(metric) not in tried:
                stack.enter_context(_create_on_request(metric, requests, tried))
        try:
            tf.function(trace).get_concrete_function(element_spec)
        except Exception as error:
            failures.append(error)
    # A request to build a layer or metric stops the trace with an error, so ignore errors if there
    # is a request. If the step itself is at fault, its error occurs again in the next trace.
    if failures and not requests:
        raise failures[0]
    for build in requests[:1]:
        build()
    return bool(requests)


@contextlib.contextmanager
def _build_on_request(
    part: keras.layers.Layer | keras.metrics.Metric, requests: list[Callable[[], None]]
) -> Iterator[None]:
    """Enter a context in which building `part` stops the trace.

    A function that builds `part` is added to `requests`.
    """
    build = part.build

    def note_and_stop(*args: Any, **kwargs: Any) -> None:
        specs = tf.nest.map_structure(_without_graph, args)
        requests.append(lambda: build(*specs, **kwargs))
        raise RuntimeError(f"Building {part.name} outside the replica context.")

    # Keep the parameter names of `build`, from which Keras determines the shapes to pass.
    part.build = functools.wraps(build)(note_and_stop)
    try:
        yield
    finally:
        part.build = build


# The methods of a metric that `_create_on_request` replaces while a step is traced.
_METHODS = frozenset({"update_state", "add_variable"})


@contextlib.contextmanager
def _create_on_request(
    metric: keras.metrics.Metric, requests: list[Callable[[], None]], tried: set[int]
) -> Iterator[None]:
    """Enter a context in which creating variables of `metric` stops the trace.

    A function that creates the variables is added to `requests`.
    """
    update_state = metric.update_state
    calls: list[Any] = []

    @user_code.not_converted
    def note(*args: Any, **kwargs: Any) -> Any:
        calls.append((args, kwargs))
        return user_code.converted(update_state)(*args, **kwargs)

    def stop(*args: Any, **kwargs: Any) -> None:
        specs = tf.nest.map_structure(_spec_of, calls[-1], expand_composites=True)

        def create() -> None:
            tried.add(id(metric))
            _create_variables(metric, *specs)

        requests.append(create)
        raise RuntimeError(f"Creating the variables of {metric.name} outside the replica context.")

    # Write to `__dict__` to bypass the `__setattr__` of Keras.
    own = {name: metric.__dict__[name] for name in _METHODS & metric.__dict__.keys()}
    metric.__dict__.update(update_state=note, add_variable=stop)
    try:
        yield
    finally:
        for name in _METHODS:
            del metric.__dict__[name]
        metric.__dict__.update(own)


def _create_variables(
    metric: keras.metrics.Metric, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Let a metric create its variables in an update without effect, as Keras does in `fit`."""
    # Keras initializes the variables when the `StatelessScope` ends, outside the graph.
    with keras.StatelessScope(), tf.__internal__.FuncGraph("update").as_default():
        args, kwargs = tf.nest.map_structure(_placeholder, (args, kwargs), expand_composites=True)
        metric.update_state(*args, **kwargs)


def _spec_of(value: Any) -> Any:
    return tf.TensorSpec(value.shape, value.dtype) if tf.is_tensor(value) else value


def _placeholder(value: Any) -> Any:
    is_spec = isinstance(value, tf.TensorSpec)
    return tf.compat.v1.placeholder(value.dtype, value.shape) if is_spec else value


def _without_graph(value: nests.Nest) -> nests.Nest:
    """Replace a traced tensor with its shape and dtype; return any other value unchanged."""
    return keras.KerasTensor(value.shape, value.dtype.name) if tf.is_tensor(value) else value


def freeze(model: keras.Model | tf.Module, patterns: Sequence[str]) -> None:
    """Freeze the variables whose paths match a pattern, before the optimizer is built.

    If the patterns match all weights of a layer, the whole layer is frozen, so that batch
    normalization uses its statistics without updating them. If they match only some weights of a
    layer, those weights get no gradient.

    Args:
        model: A Keras model with existing variables.
        patterns: Regular expressions, searched for anywhere in `variable.path`.

    Raises:
        errors.ConfigValueError: If a pattern matches no variable, if the patterns match statistics
            that a layer would continue to update but not the whole layer, or if no trainable
            variable would remain.
    """
    if not patterns:
        return
    if not isinstance(model, keras.Model):
        raise errors.ConfigValueError(
            "`trainer.freeze` supports only Keras models, but the task's model is a "
            f"{type(model).__name__}. Remove the field."
        )
    meant = {id(v): v for pattern in patterns for v in _fitting(model, pattern)}
    for layer in model._flatten_layers(include_self=False):
        weights = layer.weights
        if weights and all(id(weight) in meant for weight in weights):
            layer.trainable = False
    for layer in model._flatten_layers():
        _freeze_single_weights(layer, meant)
    if not model.trainable_variables:
        raise errors.ConfigValueError(
            f"`trainer.freeze` {list(patterns)} freezes all weights of {model.name!r}, so nothing "
            "is left to train. Use patterns that match fewer weights."
        )
    logging.info("Froze %d of %d weights.", len(meant), len(model.weights))


def warn_of_wrong_gradients(model: keras.Model | tf.Module) -> None:
    """Warn if this processor computes wrong gradients for convolutions of the model.

    On processors with AVX2 but without AVX-512, the oneDNN library of TensorFlow 2.21 returns
    partly uninitialized memory as the gradient of a 1x1 kernel with stride 2 and fewer than 8 input
    channels; with a single core, it also writes out of bounds. For a model with such a layer,
    gradients are computed and compared with those of another library, so the warning disappears
    when TensorFlow is fixed. The comparison takes a few seconds.
    """
    if not isinstance(model, keras.Model) or tf.config.list_logical_devices("GPU"):
        return
    suspects = [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.Conv2D)
        and layer.built
        and (tuple(layer.kernel_size), tuple(layer.strides)) == ((1, 1), (2, 2))
        and layer.kernel.shape[-2] < _CHANNELS_OF_A_BLOCK
    ]
    if suspects and not _computes_gradients_of_strided_kernels():
        logging.warning(
            "TensorFlow computes wrong gradients for %s on this processor, because oneDNN returns "
            "uninitialized memory for 1x1 convolutions with stride 2 and fewer than %d input "
            "channels, and may damage other memory. Set the environment variable "
            "TF_ENABLE_ONEDNN_OPTS=0, or use more channels.",
            ", ".join(layer.path for layer in suspects),
            _CHANNELS_OF_A_BLOCK,
        )


@functools.cache
def _computes_gradients_of_strided_kernels() -> bool:
    """Return whether TensorFlow computes the gradients of strided 1x1 kernels correctly.

    The check runs in another process, because oneDNN may also write out of bounds.
    """
    command = [sys.executable, "-c", _COMPARE_GRADIENTS]
    return subprocess.run(command, capture_output=True).returncode == 0


def _fitting(model: keras.Model, pattern: str) -> list[Any]:
    found = [weight for weight in model.weights if re.search(pattern, weight.path)]
    if not found:
        paths = [weight.path for weight in model.weights]
        raise errors.ConfigValueError(
            f"`trainer.freeze` has {pattern!r}, which matches no variable. "
            f"{suggestions.did_you_mean(pattern, paths)}"
        )
    return found


def _freeze_single_weights(layer: keras.Layer, meant: dict[int, Any]) -> None:
    if not layer.trainable:
        return
    for variable in [*layer._trainable_variables, *layer._non_trainable_variables]:
        if id(variable) not in meant:
            continue
        if not variable.trainable and not _is_constant(layer, variable):
            raise errors.ConfigValueError(
                f"`trainer.freeze` matches {variable.path!r}, which is not trained by gradients, "
                "but which its layer may update during training. Freeze the whole layer instead: "
                f"{_folder_of(variable.path)!r}. If the layer does not update the variable, use a "
                "pattern that does not match it."
            )
        variable.trainable = False


def _is_constant(layer: keras.Layer, variable: keras.Variable) -> bool:
    """Return whether training is certain not to change a variable with `trainable=False`."""
    # `enable_lora` freezes a kernel that was created as trainable. The kernels and scales of
    # quantized layers are never updated.
    was_trainable = any(variable is one for one in layer._trainable_variables)
    return was_trainable or layer.quantization_mode is not None


def _folder_of(path: str) -> str:
    return path.rpartition("/")[0] + "/"
