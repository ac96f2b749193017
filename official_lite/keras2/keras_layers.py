"""Attention and convolutions whose subclasses are written for Keras 2.

Keras 2 treats a kernel with three or more dimensions as a convolution kernel, and computes the fans
for its initializer from the shape alone. Keras 3 computes the fans from the einsum equation.
"""

import inspect
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from official_lite.keras2 import layers

_IGNORED = ("kernel_initializer", "kernel_regularizer", "kernel_constraint")

if TYPE_CHECKING:
    from keras.layers import Conv2D as _ConvolutionHalf
else:
    _ConvolutionHalf = object


@keras.saving.register_keras_serializable("official_lite")
class EinsumDense(layers.Keras2Habits, keras.layers.EinsumDense):
    """A `keras.layers.EinsumDense` whose initial kernel has the variance that it has in Keras 2."""

    def _update_kernel_initializer(self, input_axes: Any, output_axes: Any) -> Any:
        # Keras 3 would return an initializer whose fans depend on these axes.
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
class MultiHeadAttention(layers.Keras2Habits, keras.layers.MultiHeadAttention):
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
            layers.replace_build(cls, _build_for(cls.__dict__["call"]))
        super().__init_subclass__(**kwargs)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Code for Keras 2 concatenates the output shape with lists.
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
        # Instead of a shape, Keras 2 passes the number of dimensions before the last one.
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
    """Return a `build` whose parameters are named after inputs of `call`, as Keras requires."""
    inputs = inspect.signature(call).parameters
    if "query" not in inputs or "value" not in inputs:
        return _build_from_first
    return _BUILD if "key" in inputs else _build_without_key


_BUILD = inspect.unwrap(MultiHeadAttention.build)
_BUILDS = (_BUILD, _build_without_key, _build_from_first)


def _shape_of(tensor: tf.Tensor) -> tf.TensorShape:
    shape: tf.TensorShape = tf.TensorShape(getattr(tensor, "shape", tensor))
    return shape


class _Causal(layers.Keras2Habits, _ConvolutionHalf):
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
        # Reached only if the `_validate_init` of a subclass accepts causal padding.
        raise NotImplementedError(
            f"{type(self).__name__} must override `_compute_causal_padding` for causal padding."
        )

    def convolution_op(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        """Convolve; with causal padding, apply the padding of the subclass first."""
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
        """Trace `call`, because a subclass may change the padding."""
        return keras.Operation.compute_output_spec(self, *args, **kwargs)


class _IgnoresKernel(layers.Keras2Habits):
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
