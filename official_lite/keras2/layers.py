"""Base layers for subclasses written for Keras 2, and a mixin for other layers and for models.

Keras 2 treats a kernel with three or more dimensions as a convolution kernel, and computes the fans
for its initializer from the shape alone. Keras 3 computes the fans from the einsum equation.
"""

import functools
import inspect
import os
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from official_lite.common import keras_variables
from official_lite.keras2 import saving

if TYPE_CHECKING:
    from keras import Layer as _LayerHalf
    from keras.layers import Conv2D as _ConvolutionHalf
else:
    # At runtime, the mixins derive from `object`. Subclasses also derive from a layer or a model.
    _LayerHalf = _ConvolutionHalf = object

# The arguments of `add_weight` in the order of Keras 2, where the name comes first.
_ADD_WEIGHT = ("name", "shape", "dtype", "initializer", "regularizer", "trainable", "constraint")
# The constructor arguments that `_IgnoresKernel` drops.
_IGNORED = ("kernel_initializer", "kernel_regularizer", "kernel_constraint")


class Keras2Habits(_LayerHalf):
    """Mixin that gives a subclass of `keras.Layer` what Keras 2 offers and Keras 3 does not.

    List the mixin before the Keras class among the base classes, and for a model directly before
    `keras.Model`: if a model's constructor is called with inputs and outputs, Keras changes the
    base classes of the classes in between, for all models that share them.

    * The constructor accepts names with slashes, which become underscores. Names that begin with
      an underscore, such as those of private classes, get the prefix `private`. It ignores the
      layer itself if that is passed as a positional argument, as in `super().__init__(self)`.
    * `build` is called with a `tf.TensorShape`, or a nest of them, instead of tuples, and outside
      of the function that is being traced.
    * A `tf.Variable` that is assigned to an attribute becomes a weight.
    * `add_weight` accepts the name first, and members of `tf.VariableAggregation` and
      `tf.VariableSynchronization`.
    * `add_metric` reports the mean of a value under a name.
    * `add_loss` accepts functions without arguments, which are called when the losses are read.
    * `add_update` runs an update, if it is a function.
    * Only the first argument of `call` is converted to the layer's dtype. Values that `call` puts
      into a dictionary reach the caller.
    * A model that takes a dictionary leaves out what is not among its inputs.
    * `save` writes a SavedModel if the path has no extension.
    * State may be created in `call`.
    * Layers, variables and metrics in lists, dictionaries and tuples of any depth are tracked, also
      if they are added to an inner list later, and `tf.train.Checkpoint` saves them.
    * `get_config` gives the dtype as a string.
    * A convolution that is assigned to an attribute may have a whole float, such as `64 / 2`, as
      its `filters`.
    * An attribute that is assigned again no longer tracks its previous layer, unless another
      attribute, or a container in one, holds that layer.
    * `inputs` and `outputs` of a model may be assigned.
    * The constructor may be wrapped by `gin.configurable`.
    """

    name: str

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "build" in cls.__dict__:
            replace_build(cls, _with_tensor_shapes(cls.__dict__["build"]))

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        # Expose the constructor's signature: Keras reads the name of its first parameter, which
        # gin's wrapper hides.
        init: Any = cls.__init__
        if hasattr(init, "__wrapped__") and not hasattr(init, "__signature__"):
            init.__signature__ = inspect.signature(init.__wrapped__)
        return super().__new__(cls, *args, **kwargs)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args and args[0] is self:
            args = args[1:]
        if isinstance(name := kwargs.get("name"), str):
            kwargs["name"] = name.replace("/", "_")
        super().__init__(*args, **kwargs)
        if self.name.startswith("_"):
            # Add a prefix, as in Keras 2: TensorFlow rejects name scopes that begin with an
            # underscore.
            self.name = f"private{self.name}"
        # Disable Keras 3's conversion of all arguments, which would copy dictionary arguments.
        self._convert_input_args = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        names = _positional_names(type(self).call)
        if args:
            # Pass the other arguments by name: Keras accepts only tensors as positional arguments,
            # and passes `training` by name.
            kwargs.update(zip(names[1:], args[1:], strict=False))
            args = (self._converted(args[0]), *args[max(1, len(names)) :])
        elif names and names[0] in kwargs:
            kwargs[names[0]] = self._converted(kwargs[names[0]])
        for name, value in kwargs.items():
            if isinstance(value, np.ndarray):
                kwargs[name] = tf.convert_to_tensor(value)
        if not self.built:
            self._track_containers()
        self.__dict__["_is_in_call"] = True
        try:
            outputs = super().__call__(*args, **kwargs)
        finally:
            self.__dict__["_is_in_call"] = False
        saving.remember_arguments(self, names, args, kwargs)
        return outputs

    def _track_containers(self) -> None:
        """Track the items of nested containers, because Keras 3 misses items added later."""
        for container in saving.containers_of(self).values():
            for one in keras_variables.parts_of(container):
                self._tracker.track(one)

    @property
    def weights(self) -> list[Any]:
        """The weights of the layer and of all layers in it."""
        self._track_containers()
        weights: list[Any] = super().weights
        return weights

    @property
    def variables(self) -> list[Any]:
        """The weights, and the states of random generators."""
        self._track_containers()
        variables: list[Any] = super().variables
        return variables

    def _flatten_layers(self, *args: Any, **kwargs: Any) -> list[Any]:
        self._track_containers()
        layers: list[Any] = super()._flatten_layers(*args, **kwargs)
        return layers

    def _converted(self, inputs: Any) -> Any:
        """Convert numbers and arrays in a call's first argument to tensors of the layer's dtype."""
        wanted = getattr(self, "_inputs_struct", None)
        if isinstance(inputs, dict) and isinstance(wanted, dict) and wanted.keys() < inputs.keys():
            # Keep only the model's inputs: Keras 3 would match dictionary entries to inputs by
            # order, not by name.
            inputs = {name: inputs[name] for name in wanted}
        return keras.tree.map_structure(self._as_tensor, inputs)

    def _as_tensor(self, value: Any) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = tf.convert_to_tensor(value)
        return self.dtype_policy.convert_input(value, self.autocast, self.input_dtype)

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Save a model; see `keras.Model.save`. A path without an extension is a SavedModel."""
        if os.path.splitext(os.fspath(filepath))[1]:
            super().save(filepath, *args, **kwargs)
        else:
            saving.save_model(self, os.fspath(filepath))

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        children: dict[str, Any] = super()._trackable_children(save_type, **kwargs)
        return children | saving.tracked_containers(self)

    @property
    def _default_save_signature(self) -> Any:
        return saving.serving_function(self) or super()._default_save_signature

    def _set_dtype_policy(self, policy: Any) -> None:
        # A subclass may call this method before the constructor of the base class.
        self.__dict__["_dtype_policy"] = keras.dtype_policies.get(policy)

    @property
    def inputs(self) -> Any:
        """The inputs of the model's graph, or the assigned value if there is no graph."""
        return self._of_graph("inputs")

    @inputs.setter
    def inputs(self, value: Any) -> None:
        self.__dict__["_own_inputs"] = value

    @property
    def outputs(self) -> Any:
        """The outputs of the model's graph, or the assigned value if there is no graph."""
        return self._of_graph("outputs")

    @outputs.setter
    def outputs(self, value: Any) -> None:
        self.__dict__["_own_outputs"] = value

    def _of_graph(self, name: str) -> Any:
        try:
            return getattr(super(), name)
        except AttributeError:
            if f"_own_{name}" not in self.__dict__:
                raise
            return self.__dict__[f"_own_{name}"]

    def _lock_state(self) -> None:
        """Do nothing, so that `call` may still create state."""

    def __setattr__(self, name: str, value: Any) -> None:
        old = self.__dict__.get(name)
        if isinstance(value, keras.Layer):
            _make_filters_an_integer(value)
        super().__setattr__(name, value)
        if isinstance(old, keras.Layer) and not saving.holds(self, old):
            self._tracker.untrack(old)
        if isinstance(value, tf.Variable) and value is not old:
            self._track_variable(_Weight(value, name))

    def get_config(self) -> dict[str, Any]:
        """Return the config, with the dtype as a string."""
        config: dict[str, Any] = super().get_config()
        if isinstance(config.get("dtype"), dict):
            config["dtype"] = self.dtype_policy.name
        return config

    def add_weight(self, *args: Any, **kwargs: Any) -> keras.Variable:
        """Add a weight; see `keras.Layer.add_weight` and the description of `Keras2Habits`."""
        if args and (args[0] is None or isinstance(args[0], str)):
            kwargs.update(zip(_ADD_WEIGHT, args, strict=False))
            args = ()
        if isinstance(name := kwargs.get("name"), str):
            kwargs["name"] = name.replace("/", "_")
        if "experimental_autocast" in kwargs:
            kwargs["autocast"] = kwargs.pop("experimental_autocast")
        for ignored in ("partitioner", "use_resource", "collections"):
            kwargs.pop(ignored, None)
        if isinstance(kwargs.get("shape"), int):
            kwargs["shape"] = (kwargs["shape"],)
        synchronization = kwargs.pop("synchronization", None)
        if synchronization == tf.VariableSynchronization.ON_READ:
            kwargs["trainable"] = False
        if "aggregation" in kwargs:
            kwargs["aggregation"] = _aggregation(kwargs["aggregation"])
        return super().add_weight(*args, **kwargs)

    def add_update(self, updates: Any) -> None:
        """Call `updates` if it is a function; an operation has already taken effect."""
        if callable(updates):
            updates()

    def add_loss(self, loss: Any) -> None:
        """Add losses; functions are called immediately inside `call`, else when losses are read."""
        for one in keras.tree.flatten(loss):
            if not callable(one):
                super().add_loss(one)
            elif self.built and self.__dict__.get("_is_in_call"):
                super().add_loss(one())
            else:
                self.__dict__.setdefault("_loss_functions", []).append(one)

    def _get_own_losses(self) -> list[Any]:
        functions = self.__dict__.get("_loss_functions", ())
        return [*super()._get_own_losses(), *(function() for function in functions)]

    def add_metric(self, value: tf.Tensor, name: str, aggregation: str = "mean") -> None:
        """Add `value` to the mean that the layer reports as the metric `name`."""
        del aggregation  # For tensors, Keras 2 supports only the mean.
        self._metric_named(name).update_state(value)

    def _metric_named(self, name: str) -> keras.metrics.Metric:
        metrics: list[keras.metrics.Metric] = self.__dict__["_metrics"]
        for metric in metrics:
            if metric.name == name:
                return metric
        # Append the metric explicitly, because Keras does not track metrics that `call` creates.
        metrics.append(keras.metrics.Mean(name))
        return metrics[-1]

    @property
    def _compute_dtype(self) -> str:
        return self.compute_dtype

    @property
    def _activity_regularizer(self) -> Any:
        return self.activity_regularizer

    @_activity_regularizer.setter
    def _activity_regularizer(self, value: Any) -> None:
        self.activity_regularizer = value


@functools.cache
def _positional_names(call: Callable[..., Any]) -> Sequence[str]:
    """Return the names of the parameters after `self` that may be passed by position."""
    parameters = inspect.signature(call).parameters.values()
    return [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD][1:]


def replace_build(layer_cls: Any, build: Callable[..., None]) -> None:
    """Set the method `build` of a class."""
    layer_cls.build = build


def _make_filters_an_integer(layer: keras.Layer) -> None:
    filters = vars(layer).get("filters")
    if isinstance(filters, float) and filters.is_integer():
        layer.filters = int(filters)


class _Weight(keras.Variable):
    """A Keras weight whose value is an existing `tf.Variable`."""

    def __init__(self, variable: tf.Variable, name: str) -> None:
        # While Keras traces a model, it accepts only a function as a variable's initial value.
        super().__init__(
            lambda shape, dtype: variable,
            shape=variable.shape,
            dtype=variable.dtype.name,
            trainable=variable.trainable,
            name=name,
        )

    def _initialize_with_initializer(self, initializer: Callable[..., tf.Variable]) -> None:
        self._value = initializer(self.shape, dtype=self.dtype)


class Layer(Keras2Habits, keras.layers.Layer):
    """A `keras.layers.Layer` for subclasses that are written for Keras 2; see `Keras2Habits`."""


def _as_tensor_shapes(shapes: Any) -> Any:
    """Convert each shape in a nested structure to a `tf.TensorShape`."""
    if shapes is None or isinstance(shapes, tf.TensorShape):
        return shapes
    if isinstance(shapes, dict):
        return {key: _as_tensor_shapes(value) for key, value in shapes.items()}
    if all(size is None or isinstance(size, int) for size in shapes):
        return tf.TensorShape(shapes)
    return type(shapes)(map(_as_tensor_shapes, shapes))


def _with_tensor_shapes(build: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(build)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        shapes = [_as_tensor_shapes(arg) for arg in args]
        with tf.init_scope():
            build(self, *shapes, **{name: _as_tensor_shapes(arg) for name, arg in kwargs.items()})
        if isinstance(self, Keras2Habits):
            self._track_containers()

    return wrapper


def _aggregation(value: Any) -> str | None:
    if isinstance(value, tf.VariableAggregation) or hasattr(value, "name"):
        return str(value.name).lower()
    return None if value is None else str(value)


@keras.saving.register_keras_serializable("official_lite")
class EinsumDense(Keras2Habits, keras.layers.EinsumDense):
    """A `keras.layers.EinsumDense` whose initial kernel has the variance that it has in Keras 2."""

    def _update_kernel_initializer(self, input_axes: Any, output_axes: Any) -> Any:
        # Keep the initializer: Keras 3 would return another one, whose fans depend on these axes.
        return self.kernel_initializer


def _with_einsum_dense(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of a Keras method that creates this module's `EinsumDense` layers."""
    function = inspect.unwrap(method)
    names = {**function.__globals__, "EinsumDense": EinsumDense}
    return types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )


_build_as_keras = _with_einsum_dense(keras.layers.MultiHeadAttention.build)
_make_output_dense_as_keras = _with_einsum_dense(keras.layers.MultiHeadAttention._make_output_dense)


@keras.saving.register_keras_serializable("official_lite")
class MultiHeadAttention(Keras2Habits, keras.layers.MultiHeadAttention):
    """A `keras.layers.MultiHeadAttention` with the extension points and initial weights of Keras 2.

    A subclass may override, in the order in which they are called:

    * `_build_from_signature(query, value, key=None)`: creates the layers, from tensors or shapes.
      It calls `_build_attention(rank)`.
    * `call(query, value, key=None, attention_mask=None, return_attention_scores=False, ...)`, which
      may begin with `if not self._built_from_signature`.
    * `_compute_attention(query, key, value, attention_mask=None, training=None)`: takes the
      projected tensors and returns the outputs and the scores.
    * `_masked_softmax(attention_scores, attention_mask=None)`.
    """

    _built_from_signature = False
    _output_shape: Any
    _softmax: keras.layers.Softmax

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # Match `build` to the subclass's `call`, unless the subclass has its own `build`.
        if "call" in cls.__dict__ and inspect.unwrap(cls.build) in _BUILDS:
            replace_build(cls, _build_for(cls.__dict__["call"]))
        super().__init_subclass__(**kwargs)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Code for Keras 2 concatenates the output shape with lists, so store it as a list.
        self._output_shape = list(self._output_shape) if self._output_shape else None

    def build(self, query_shape: Any, value_shape: Any, key_shape: Any = None) -> None:
        """Create the layers by `_build_from_signature`."""
        self._build_from_signature(query=query_shape, value=value_shape, key=key_shape)

    def _build_from_signature(
        self, query: tf.Tensor, value: tf.Tensor, key: tf.Tensor | None = None
    ) -> None:
        self._built_from_signature = True
        self._query_shape, self._value_shape = _shape_of(query), _shape_of(value)
        self._key_shape = self._value_shape if key is None else _shape_of(key)
        shapes = (self._query_shape, self._value_shape, self._key_shape)
        _build_as_keras(self, *map(tuple, shapes))

    def _build_attention(self, rank: int) -> None:
        super()._build_attention(rank)
        self._softmax = Softmax(axis=self._softmax.axis, dtype=self.dtype_policy)

    def _make_output_dense(
        self, query_shape: Any, common_kwargs: dict[str, Any], name: str | None = None
    ) -> keras.Layer:
        # Keras 2 passes the number of dimensions before the last one instead of a shape.
        if isinstance(query_shape, int):
            query_shape = (None,) * query_shape + (self._query_shape[-1],)
        return _make_output_dense_as_keras(self, query_shape, common_kwargs, name)

    def call(
        self,
        query: tf.Tensor,
        value: tf.Tensor,
        key: tf.Tensor | None = None,
        attention_mask: tf.Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        query_mask: tf.Tensor | None = None,
        value_mask: tf.Tensor | None = None,
        key_mask: tf.Tensor | None = None,
    ) -> Any:
        """Attend; see `keras.layers.MultiHeadAttention.call`, whose arguments have another order.

        Returns:
            The outputs; with `return_attention_scores`, the outputs and the scores.
        """
        key = value if key is None else key
        attention_mask = self._compute_attention_mask(
            query,
            value,
            query_mask=query_mask,
            value_mask=value_mask,
            key_mask=key_mask,
            attention_mask=attention_mask,
            use_causal_mask=use_causal_mask,
        )
        outputs, scores = self._compute_attention(
            self._query_dense(query),
            self._key_dense(key),
            self._value_dense(value),
            attention_mask,
            training,
        )
        outputs = self._output_dense(outputs)
        return (outputs, scores) if return_attention_scores else outputs

    def _compute_attention(
        self,
        query: tf.Tensor,
        key: tf.Tensor,
        value: tf.Tensor,
        attention_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        scale = keras.ops.cast(self._key_dim**-0.5, query.dtype)
        scores = keras.ops.einsum(self._dot_product_equation, key, query * scale)
        scores = self._masked_softmax(scores, attention_mask)
        dropped = self._dropout_layer(scores, training=training)
        return keras.ops.einsum(self._combine_equation, dropped, value), scores

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Trace `call`, because a subclass may return anything."""
        return keras.Operation.compute_output_spec(self, *args, **kwargs)


@keras.saving.register_keras_serializable("official_lite")
class Softmax(keras.layers.Softmax):
    """A `keras.layers.Softmax` that accepts a mask, or None, as a positional argument."""

    def __call__(self, inputs: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
        return super().__call__(inputs, mask=mask)


def _build_without_key(self: MultiHeadAttention, query_shape: Any, value_shape: Any) -> None:
    self._build_from_signature(query=query_shape, value=value_shape)


def _build_from_first(self: MultiHeadAttention, input_shape: Any) -> None:
    self._build_from_signature(query=input_shape, value=input_shape, key=input_shape)


def _build_for(call: Callable[..., Any]) -> Callable[..., None]:
    """Return a `build` whose parameters are named after inputs of `call`, as Keras requires.

    If `call` lacks `query` or `value`, the returned `build` takes the shape of a single input.
    """
    inputs = inspect.signature(call).parameters
    if "query" not in inputs or "value" not in inputs:
        return _build_from_first
    return _BUILD if "key" in inputs else _build_without_key


_BUILD = inspect.unwrap(MultiHeadAttention.build)
_BUILDS = (_BUILD, _build_without_key, _build_from_first)


def _shape_of(tensor: tf.Tensor) -> tf.TensorShape:
    shape: tf.TensorShape = tf.TensorShape(getattr(tensor, "shape", tensor))
    return shape


class _Causal(Keras2Habits, _ConvolutionHalf):
    """Mixin with the Keras 2 extension points for causal padding.

    A subclass that supports `padding="causal"` overrides both methods:

    * `_validate_init()`: called at the end of the constructor. Unless it is overridden, it rejects
      causal padding.
    * `_compute_causal_padding(inputs)`: returns the paddings for `tf.pad`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._is_causal = kwargs.get("padding") == "causal"
        if self._is_causal:
            kwargs["padding"] = "valid"
        super().__init__(*args, **kwargs)
        if self._is_causal:
            self.padding = "causal"
        self._validate_init()

    def _validate_init(self) -> None:
        if self._is_causal:
            raise ValueError(
                "Causal padding requires `Conv1D` or `SeparableConv1D`, or a subclass that "
                "overrides `_validate_init` and `_compute_causal_padding`."
            )

    def _compute_causal_padding(self, inputs: tf.Tensor) -> Any:
        # This error is raised only if a subclass's `_validate_init` accepts causal padding.
        raise NotImplementedError(
            f"{type(self).__name__} must override `_compute_causal_padding` for causal padding."
        )

    def convolution_op(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        """Convolve the inputs; for causal padding, first apply the subclass's padding."""
        if self._is_causal:
            inputs = tf.pad(inputs, self._compute_causal_padding(inputs))
        return keras.ops.conv(
            inputs,
            kernel,
            strides=list(self.strides),
            padding="valid" if self._is_causal else self.padding,
            dilation_rate=self.dilation_rate,
            data_format=self.data_format,
        )

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Infer the output spec by tracing `call`, because a subclass may change the padding."""
        return keras.Operation.compute_output_spec(self, *args, **kwargs)


class _IgnoresKernel(Keras2Habits):
    """Mixin for layers without a `kernel`, which drops the constructor's `kernel_*` arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        for name in _IGNORED:
            kwargs.pop(name, None)
        super().__init__(*args, **kwargs)


class Conv2D(_Causal, keras.layers.Conv2D):
    """A `keras.layers.Conv2D` whose subclasses may support causal padding."""


class Conv3D(_Causal, keras.layers.Conv3D):
    """A `keras.layers.Conv3D` whose subclasses may support causal padding."""


@keras.saving.register_keras_serializable("official_lite")
class DepthwiseConv2D(_Causal, _IgnoresKernel, keras.layers.DepthwiseConv2D):
    """A `keras.layers.DepthwiseConv2D` that ignores arguments such as `kernel_initializer`.

    Its subclasses may support causal padding; they pad in a `call` of their own.
    """

    filters: int | None = None


@keras.saving.register_keras_serializable("official_lite")
class SeparableConv2D(_IgnoresKernel, keras.layers.SeparableConv2D):
    """A `keras.layers.SeparableConv2D` that ignores arguments such as `kernel_initializer`."""
