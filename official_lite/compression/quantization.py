"""Quantization-aware training: a model that computes with the rounding errors of 8-bit integers.

The layers, their names and their weights stay what they are, so checkpoints of float runs fit. The
class of the model is replaced by a subclass that rounds kernels and activations on the way through
the graph. The scheme is that of Krishnamoorthi, Quantizing deep convolutional networks for
efficient inference (2018): kernels are symmetric, activations are asymmetric, and the ranges of
activations follow the training batches.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any, Self

import keras
import tensorflow as tf

from official_lite.common import errors, keras_variables
from official_lite.compression import configs, fake_quantization, quantization_plan

__all__ = ["quantize", "synchronize_ranges"]

# Ranges before the first training step.
_INITIAL_RANGE = (-6.0, 6.0)
_SMALLEST_WIDTH = 1e-6


def quantize(
    model: keras.Model,
    config: configs.QuantizationConfig,
    *,
    path: str = "",
    is_inner: bool = False,
) -> None:
    """Make a model compute with rounded kernels and activations, in place.

    Args:
        model: A functional model, or a sequential one with a known input shape. It gets two more
            variables: `activation_ranges` and `range_updates`.
        config: What is quantized.
        path: The path of the model inside of other models, with a slash at its end.
        is_inner: Whether the model is a part of a quantized model.

    Raises:
        errors.ConfigValueError: If the model is not functional, or has a layer that can't be
            quantized.
    """
    plans = list(_quantize(model, config, path, is_inner))
    if not is_inner:
        quantization_plan.require_matches(config, plans)


def synchronize_ranges(model: keras.Model) -> None:
    """Combine the ranges of all replicas, so that they cover the values of the whole batch.

    Call this in every replica at the end of a step, before which the ranges of all replicas must be
    equal. Then the results are those of one replica that sees all values.
    """
    context = tf.distribute.get_replica_context()
    count = context.num_replicas_in_sync
    ranges = [one.ranges for one in _quantizers_in(model) if one.follows_batches]
    if count == 1 or not ranges:
        return
    own = tf.concat([variable.value for variable in ranges], axis=0)
    # TensorFlow reduces by sums only: each replica fills its own row of a table.
    table = tf.one_hot(context.replica_id_in_sync_group, count)[:, None, None] * own
    table = context.all_reduce(tf.distribute.ReduceOp.SUM, table)
    low, high = tf.reduce_min(table[..., 0], axis=0), tf.reduce_max(table[..., 1], axis=0)
    parts = tf.split(tf.stack([low, high], axis=-1), [v.shape[0] for v in ranges])
    for variable, part in zip(ranges, parts, strict=True):
        variable.assign(part)


class _Quantizers:
    """The ranges of a model's activations and the rounding of its values.

    Args:
        model: The model, which gets the variables.
        config: How ranges are found.
        plan: Where the model is quantized.
    """

    def __init__(
        self, model: keras.Model, config: configs.QuantizationConfig, plan: quantization_plan.Plan
    ) -> None:
        self.config = config
        self.plan = plan
        first = config.fixed_range if config.ranges == "fixed" else _INITIAL_RANGE
        self.ranges = model.add_weight(
            shape=(len(plan.names), 2),
            initializer=lambda shape, dtype: tf.zeros(shape, dtype) + tf.constant(first, dtype),
            dtype="float32",
            trainable=False,
            name="activation_ranges",
        )
        self.updates = model.add_weight(
            shape=(), initializer="zeros", dtype="float32", trainable=False, name="range_updates"
        )
        for variable in (self.ranges, self.updates):
            keras_variables.mark_optional(variable)

    @property
    def follows_batches(self) -> bool:
        """Whether training changes the ranges."""
        return self.config.ranges != "fixed" and bool(self.plan.names)


class _Pass:
    """One pass through the graph of a model.

    Args:
        quantizers: The ranges and the plan.
        training: Whether this is a training step.
    """

    def __init__(self, quantizers: _Quantizers, training: bool) -> None:
        self._quantizers = quantizers
        self._plan = quantizers.plan
        self._training = training
        self._observed: dict[int, tf.Tensor] = {}
        # All activations of a step are rounded with the ranges of the steps before it, which are
        # the same on all replicas.
        self._ranges = tf.convert_to_tensor(quantizers.ranges)
        self._updates = tf.convert_to_tensor(quantizers.updates)

    def round_inputs(self, inputs: list[Any]) -> list[Any]:
        """Round the inputs of the model."""
        rows = self._plan.inputs
        return [self._round(x, rows[i]) if i in rows else x for i, x in enumerate(inputs)]

    def wrap(self, operation: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls an operation, and rounds its kernel and its output."""

        def rounding(*args: Any, **kwargs: Any) -> Any:
            with self._replaced_parts(operation):
                outputs = call(*args, **kwargs)
            row = self._plan.outputs.get(id(operation))
            if row is None:
                return outputs
            return keras.tree.map_structure(lambda x: self._round(x, row), outputs)

        return rounding

    def update_ranges(self) -> None:
        """Let the ranges follow the observed batch."""
        config = self._quantizers.config
        if not (self._training and self._observed and self._quantizers.follows_batches):
            return
        rows = range(len(self._plan.names))
        batch = tf.stack([self._observed[row] for row in rows])
        is_first = tf.equal(self._updates, 0)
        if config.ranges == "min_max":
            extremes = tf.stack(
                [
                    tf.minimum(self._ranges[:, 0], batch[:, 0]),
                    tf.maximum(self._ranges[:, 1], batch[:, 1]),
                ],
                axis=-1,
            )
            new = tf.where(is_first, batch, extremes)
        else:
            # A plain average at first, so that the earliest batches do not count for longer.
            rate = tf.maximum(1 - config.moving_average_decay, 1 / (self._updates + 1))
            new = self._ranges + rate * (batch - self._ranges)
        self._quantizers.ranges.assign(new)
        self._quantizers.updates.assign(self._updates + 1)

    def _round(self, x: tf.Tensor, row: int) -> tf.Tensor:
        rounded = fake_quantization.quantize_activation(
            x, self._ranges[row, 0], self._ranges[row, 1]
        )
        if self._training and self._quantizers.follows_batches:
            self._observe(x, row)
            # The first step, which has no ranges yet, computes in floating point.
            rounded = tf.where(self._updates > 0, rounded, x)
        mask = getattr(x, "_keras_mask", None)
        if mask is not None:
            rounded._keras_mask = mask
        return rounded

    def _observe(self, x: tf.Tensor, row: int) -> None:
        x = tf.stop_gradient(tf.cast(x, tf.float32))
        # Zero must be representable, for padding and ReLU.
        low = tf.minimum(tf.reduce_min(x), 0.0)
        high = tf.maximum(tf.reduce_max(x), low + _SMALLEST_WIDTH)
        if row in self._observed:
            known = self._observed[row]
            low, high = tf.minimum(low, known[0]), tf.maximum(high, known[1])
        self._observed[row] = tf.stack([low, high])

    @contextlib.contextmanager
    def _replaced_parts(self, operation: Any) -> Iterator[None]:
        """Let a layer compute with its rounded kernel, and round what its activation gets."""
        channel_axes = self._plan.kernels.get(id(operation))
        if channel_axes is None:
            yield
            return
        kernel = fake_quantization.quantize_kernel(
            tf.convert_to_tensor(operation.kernel), channel_axes
        )
        # `kernel` may be a property, which also adds the weights of an adapter.
        name = "_kernel" if "_kernel" in vars(operation) else "kernel"
        parts: dict[str, Any] = {name: kernel}
        if getattr(operation, "lora_enabled", False):
            parts["lora_enabled"] = False
        row = self._plan.before_activations.get(id(operation))
        if row is not None:
            activation = operation.activation
            parts["activation"] = lambda x: activation(self._round(x, row))
        # Keras would track what is assigned as an attribute.
        known = {name: vars(operation)[name] for name in parts}
        vars(operation).update(parts)
        try:
            yield
        finally:
            vars(operation).update(known)


_current_pass: contextvars.ContextVar[_Pass | None] = contextvars.ContextVar("pass", default=None)


class _QuantizedGraph:
    """Mixin for a functional model that rounds on the way through its graph."""

    _quantizers: _Quantizers | None = None

    def call(
        self, inputs: Any, training: bool | None = None, mask: Any = None, **kwargs: Any
    ) -> Any:
        """Compute the outputs with rounded kernels and activations."""
        parent: Any = super()
        if self._quantizers is None:
            return parent.call(inputs, training=training, mask=mask, **kwargs)
        run = _Pass(self._quantizers, bool(training))
        token = _current_pass.set(run)
        try:
            outputs = parent.call(inputs, training=training, mask=mask, **kwargs)
        finally:
            _current_pass.reset(token)
        run.update_ranges()
        return outputs

    def _run_through_graph(self, inputs: Any, operation_fn: Any = None, call_fn: Any = None) -> Any:
        operation_fn = operation_fn or (lambda operation: operation)
        parent: Any = super()
        run = _current_pass.get()
        if run is None or call_fn is not None or _is_symbolic(inputs):
            return parent._run_through_graph(inputs, operation_fn, call_fn)
        return parent._run_through_graph(
            run.round_inputs(keras.tree.flatten(inputs)),
            operation_fn=lambda operation: run.wrap(operation, operation_fn(operation)),
        )


class _Serialized:
    """Mixin for the config of a quantized model, so that a `.keras` file can be loaded."""

    _settings: dict[str, Any] | None = None

    @property
    def litert_options(self) -> dict[str, Any]:
        """The options of the LiteRT converter: replace rounded values by integers."""
        return {"optimizations": [tf.lite.Optimize.DEFAULT]}

    def get_config(self) -> dict[str, Any]:
        """Return the config of the model, with the config of its quantization."""
        parent: Any = super()
        return {**parent.get_config(), "quantization": self._settings}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """Build a quantized model."""
        config = dict(config)
        settings = config.pop("quantization")
        parent: Any = super()
        model: Any = parent.from_config(config, custom_objects=custom_objects)
        quantize(
            model,
            configs.QuantizationConfig(settings["config"]),
            path=settings["path"],
            is_inner=settings["is_inner"],
        )
        return model


# The classes of quantized models, by the class of the model.
_classes: dict[type[keras.Model], type[keras.Model]] = {}


def _quantized_class(cls: type[keras.Model]) -> type[keras.Model]:
    """Return the class of the quantized models of a class."""
    if cls in _classes:
        return _classes[cls]
    is_sequential = issubclass(cls, keras.Sequential)
    bases = (_Serialized, cls) if is_sequential else (_Serialized, _QuantizedGraph, cls)
    quantized = type(f"Quantized{cls.__name__}", bases, {"__module__": __name__})
    register = keras.saving.register_keras_serializable("official_lite")
    _classes[cls] = register(quantized)
    return _classes[cls]


def _quantize(
    model: keras.Model, config: configs.QuantizationConfig, path: str, is_inner: bool
) -> Iterator[quantization_plan.Plan]:
    """Quantize a model and the models in it, and yield their plans."""
    known = vars(model).get("_settings")
    if known is not None:
        # Loaded from a file, or used in several places.
        return
    graph = model
    if isinstance(model, keras.Sequential):
        graph = model._functional
        if graph is None:
            raise errors.ConfigValueError(
                f"The sequential model {model.name!r} can't be quantized before its input shape is "
                "known. Let its first element be a `keras.Input`."
            )
    elif not quantization_plan.is_graph(model):
        raise errors.ConfigValueError(
            f"The model {model.name!r} is a {type(model).__name__}. Only functional and sequential "
            "models can be quantized, because the range of every value between their layers can "
            "be found. Build the model as `keras.Model(inputs, outputs)`."
        )
    plan = quantization_plan.make_plan(graph, config, path=path, quantizes_inputs=not is_inner)
    quantizers = _Quantizers(model, config, plan)
    model.activation_ranges, model.range_updates = quantizers.ranges, quantizers.updates
    if not isinstance(model, _Serialized):
        model.__class__ = _quantized_class(type(model))
    if not isinstance(graph, _QuantizedGraph):
        graph.__class__ = _quantized_class(type(graph))
    # Not by `setattr`, which would track the attributes as parts of the model.
    vars(graph)["_quantizers"] = quantizers
    settings = {"config": config.as_dict(), "path": path, "is_inner": is_inner}
    vars(model)["_settings"] = settings
    yield plan
    for inner_path, inner in plan.models.items():
        yield from _quantize(inner, config, inner_path, is_inner=True)


def _quantizers_in(model: keras.Model) -> list[_Quantizers]:
    layers = model._flatten_layers()
    graphs = [one._functional if isinstance(one, keras.Sequential) else one for one in layers]
    found = (vars(graph).get("_quantizers") for graph in graphs if graph is not None)
    return [quantizers for quantizers in found if quantizers is not None]


def _is_symbolic(inputs: Any) -> bool:
    return any(isinstance(x, keras.KerasTensor) for x in keras.tree.flatten(inputs))


def _register_functional() -> None:
    """Register the class of quantized functional models, which a `.keras` file may name."""
    x = keras.Input((1,), name="x")
    _quantized_class(type(keras.Model(x, x, name="model")))
    _quantized_class(keras.Sequential)


_register_functional()
