"""Where a functional model is quantized: at which kernels, and after which operations.

LiteRT computes an operation in integers if the ranges of its inputs and its output are known. Some
operations are one kernel there: a convolution or dense layer, a batch normalization after it, and
a ReLU. Nothing is rounded between them. Since a kernel has one scale per output channel, the
converter can fold a batch normalization into the kernel after training without changing one of its
integers.
"""

import dataclasses
import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras

from official_lite.common import errors, suggestions
from official_lite.compression import configs

__all__ = ["Plan", "is_graph", "make_plan", "require_matches"]

# The layers whose kernels are quantized, with the axes of the output channels.
_AFFINE: Mapping[type, Sequence[int]] = {
    keras.layers.Conv1D: (2,),
    keras.layers.Conv2D: (3,),
    keras.layers.Conv2DTranspose: (2,),
    keras.layers.Dense: (1,),
    keras.layers.DepthwiseConv2D: (2, 3),
}

# Layers with weights that compute in floating point, between integers.
_FLOAT = (
    keras.layers.BatchNormalization,
    keras.layers.Embedding,
    keras.layers.GroupNormalization,
    keras.layers.LayerNormalization,
    keras.layers.Normalization,
    keras.layers.Rescaling,
    keras.layers.RMSNormalization,
)

# Names of the classes of layers and operations that pass values on, or choose among them, so that
# the range of the output is that of the input.
_SAME_RANGE = re.compile(
    r"InputLayer|\w*Dropout(1D|2D|3D)?|Gaussian\w*|ActivityRegularization|Identity|Flatten"
    r"|Reshape|Permute|RepeatVector|(Global)?MaxPool(ing)?\w*|AveragePooling\w*|ZeroPadding\w*"
    r"|Cropping\w*|UpSampling\w*|Masking|Transpose|Squeeze|ExpandDims|GetItem|Stop_?[gG]radient"
)

# LiteRT fixes the range of their outputs.
_FIXED_RANGE = ("sigmoid", "softmax", "tanh")
# LiteRT computes them in the same kernel as the operation before.
_FUSED = ("linear", "relu", "relu6")


class _Kind(enum.Enum):
    AFFINE = enum.auto()
    MODEL = enum.auto()
    FLOAT = enum.auto()
    SAME_RANGE = enum.auto()
    FIXED_RANGE = enum.auto()
    OTHER = enum.auto()


@dataclasses.dataclass
class Plan:
    """Where a model is quantized. Operations are identified by `id`.

    Attributes:
        names: For each range, the path of the operation whose output it describes.
        inputs: The range of each input of the model, by its position.
        outputs: The range of each operation's output.
        before_activations: The range of what a layer passes to its activation function.
        kernels: The axes of the channels, for each layer whose kernel is quantized.
        models: The models inside this model.
        paths: The paths of all layers, for messages.
    """

    names: list[str] = dataclasses.field(default_factory=list)
    inputs: dict[int, int] = dataclasses.field(default_factory=dict)
    outputs: dict[int, int] = dataclasses.field(default_factory=dict)
    before_activations: dict[int, int] = dataclasses.field(default_factory=dict)
    kernels: dict[int, Sequence[int]] = dataclasses.field(default_factory=dict)
    models: dict[str, keras.Model] = dataclasses.field(default_factory=dict)
    paths: list[str] = dataclasses.field(default_factory=list)

    def add_range(self, name: str) -> int:
        """Add a range, and return its position."""
        self.names.append(name)
        return len(self.names) - 1


@dataclasses.dataclass
class _Call:
    """A call of an operation, with the calls that produce its inputs and use its output."""

    operation: Any
    path: str
    kind: _Kind
    producers: list["_Call"] = dataclasses.field(default_factory=list)
    consumers: list["_Call"] = dataclasses.field(default_factory=list)
    is_float: bool = False
    is_output: bool = False


def is_graph(model: keras.layers.Layer) -> bool:
    """Return whether a model is functional: a graph of operations."""
    return isinstance(model, keras.Model) and hasattr(model, "_run_through_graph")


def make_plan(
    model: keras.Model,
    config: configs.QuantizationConfig,
    *,
    path: str = "",
    quantizes_inputs: bool = True,
) -> Plan:
    """Plan the quantization of a functional model.

    Args:
        model: The model.
        config: Which layers are quantized.
        path: The path of the model inside of other models, with a slash at its end.
        quantizes_inputs: Whether nothing else quantizes the inputs of the model.

    Raises:
        errors.ConfigValueError: If a layer has weights, but is of a class that is not supported.
    """
    plan = Plan()
    calls = _calls_of(model, config, path)
    plan.paths = [call.path for call in calls]
    for call in calls:
        operation = call.operation
        if call.kind is _Kind.MODEL:
            plan.models[f"{call.path}/"] = operation
        if call.kind is _Kind.AFFINE:
            plan.kernels[id(operation)] = _AFFINE[type(operation)] if config.per_channel else ()
            activation = _activation(operation)
            if activation not in _FUSED and id(operation) not in plan.before_activations:
                name = f"{call.path}/before_{activation}"
                plan.before_activations[id(operation)] = plan.add_range(name)
        if quantizes_inputs and call.kind is _Kind.SAME_RANGE and not call.producers:
            position = _input_position(model, operation)
            if position is not None and any(map(_takes_integers, call.consumers)):
                plan.inputs[position] = plan.add_range(call.path)
        if _needs_range(call) and id(operation) not in plan.outputs:
            plan.outputs[id(operation)] = plan.add_range(call.path)
    return plan


def require_matches(config: configs.QuantizationConfig, plans: Sequence[Plan]) -> None:
    """Check that every pattern matches a layer, and that something is quantized.

    Raises:
        errors.ConfigValueError: If not.
    """
    paths = [path for plan in plans for path in plan.paths]
    for field, patterns in (("include", config.include), ("exclude", config.exclude)):
        for pattern in patterns:
            if not any(re.search(pattern, path) for path in paths):
                raise errors.ConfigValueError(
                    f"`task.compression.quantization.{field}` has {pattern!r}, which matches no "
                    f"layer. {suggestions.did_you_mean(pattern, paths)}"
                )
    if not any(plan.kernels for plan in plans):
        raise errors.ConfigValueError(
            "`task.compression.quantization` quantizes no layer: the model has no convolution and "
            "no dense layer, or `include` and `exclude` leave none."
        )


def _calls_of(model: keras.Model, config: configs.QuantizationConfig, path: str) -> list[_Call]:
    """Return the calls of the model's operations in their order; the inputs come first."""
    producer: dict[int, _Call] = {}
    calls: list[_Call] = []
    # Keeps the tensors, whose `id` must stay unique.
    tensors: list[Any] = []

    def record(operation: Any, args: Any, kwargs: Any, outputs: Any) -> Any:
        name = f"{path}{operation.name}"
        call = _Call(operation, name, _kind(operation, name, config))
        for leaf in keras.tree.flatten((args, kwargs)):
            if id(leaf) in producer:
                call.producers.append(producer[id(leaf)])
                producer[id(leaf)].consumers.append(call)
        call.is_float = _is_float(outputs)
        for leaf in keras.tree.flatten(outputs):
            producer[id(leaf)] = call
            tensors.append(leaf)
        calls.append(call)
        return outputs

    def recording(operation: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            outputs = operation.compute_output_spec(*args, **kwargs)
            return record(operation, args, kwargs, outputs)

        return run

    specs = [keras.KerasTensor(x.shape, x.dtype, name=x.name) for x in model.inputs]
    for tensor, spec in zip(model.inputs, specs, strict=True):
        record(tensor._keras_history.operation, (), {}, spec)
    outputs = model._run_through_graph(specs, operation_fn=recording)
    for leaf in keras.tree.flatten(outputs):
        producer[id(leaf)].is_output = True
    return calls


def _kind(operation: Any, path: str, config: configs.QuantizationConfig) -> _Kind:
    name = type(operation).__name__
    if is_graph(operation) or isinstance(operation, keras.Sequential):
        return _Kind.MODEL
    if _SAME_RANGE.fullmatch(name):
        return _Kind.SAME_RANGE
    is_chosen = not config.include or _matches(config.include, path)
    if _matches(config.exclude, path):
        return _Kind.FLOAT
    if type(operation) in _AFFINE:
        return _Kind.AFFINE if is_chosen else _Kind.FLOAT
    if isinstance(operation, _FLOAT) or (config.include and not is_chosen):
        return _Kind.FLOAT
    if isinstance(operation, keras.layers.Layer) and operation.weights:
        raise errors.ConfigValueError(
            f"The layer {path!r} is a {name}, which can't be quantized. Quantized are "
            f"{', '.join(sorted(cls.__name__ for cls in _AFFINE))}. To keep the layer in floating "
            f"point, add {path!r} to `task.compression.quantization.exclude`."
        )
    return _Kind.FIXED_RANGE if _activation(operation) in _FIXED_RANGE else _Kind.OTHER


def _needs_range(call: _Call) -> bool:
    """Return whether the output of a call gets a range of its own."""
    if not call.is_float or call.kind in (_Kind.SAME_RANGE, _Kind.FIXED_RANGE, _Kind.MODEL):
        return False
    if _is_fused_with_next(call):
        return False
    if call.kind is _Kind.AFFINE:
        return _activation(call.operation) not in _FIXED_RANGE
    if call.kind is _Kind.FLOAT and not _ends_affine(call):
        return any(map(_takes_integers, call.consumers))
    return True


def _is_fused_with_next(call: _Call) -> bool:
    """Return whether LiteRT computes a call and the next one in the same kernel."""
    if call.is_output or len(call.consumers) != 1:
        return False
    (following,) = call.consumers
    is_plain_affine = call.kind is _Kind.AFFINE and _activation(call.operation) == "linear"
    if isinstance(following.operation, keras.layers.BatchNormalization):
        return is_plain_affine
    is_sum = type(call.operation).__name__ in ("Add", "Subtract")
    is_fusable = is_plain_affine or is_sum or _is_folded(call)
    return is_fusable and _activation(following.operation) in ("relu", "relu6")


def _is_folded(call: _Call) -> bool:
    """Return whether a call is a batch normalization that is folded into the layer before."""
    return isinstance(call.operation, keras.layers.BatchNormalization) and any(
        producer.kind is _Kind.AFFINE and _is_fused_with_next(producer)
        for producer in call.producers
    )


def _ends_affine(call: _Call) -> bool:
    """Return whether a call is the last one in the kernel of an affine layer."""
    return _is_folded(call) or any(
        (producer.kind is _Kind.AFFINE or _is_folded(producer)) and _is_fused_with_next(producer)
        for producer in call.producers
    )


def _takes_integers(call: _Call) -> bool:
    if call.kind is _Kind.SAME_RANGE:
        return any(map(_takes_integers, call.consumers))
    return call.kind is not _Kind.FLOAT


def _activation(operation: Any) -> str:
    """Return the name of the activation function that an operation applies at its end."""
    if isinstance(operation, keras.layers.ReLU):
        is_plain = not (operation.negative_slope or operation.threshold)
        return "relu" if is_plain and operation.max_value in (None, 6) else "other"
    if isinstance(operation, keras.layers.Softmax):
        return "softmax"
    if isinstance(operation, keras.layers.Layer):
        function = getattr(operation, "activation", None)
        return getattr(function, "__name__", "other") if function else "linear"
    # An operation such as `keras.ops.relu`.
    return type(operation).__name__.lower()


def _is_float(outputs: Any) -> bool:
    return all("float" in leaf.dtype for leaf in keras.tree.flatten(outputs))


def _input_position(model: keras.Model, operation: Any) -> int | None:
    found: Iterator[int] = (
        i
        for i, x in enumerate(model.inputs)
        if x._keras_history.operation is operation and "float" in x.dtype
    )
    return next(found, None)


def _matches(patterns: Sequence[str], path: str) -> bool:
    return any(re.search(pattern, path) for pattern in patterns)
