"""Convolutions whose subclasses are written for Keras 2, or that get arguments it ignores."""

from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from official_lite.keras2 import layers

__all__ = ["Conv2D", "Conv3D", "DepthwiseConv2D", "SeparableConv2D"]

_IGNORED = ("kernel_initializer", "kernel_regularizer", "kernel_constraint")

if TYPE_CHECKING:
    from keras.layers import Conv2D as _ConvolutionHalf
else:
    _ConvolutionHalf = object


class _Causal(layers.Keras2Habits, _ConvolutionHalf):
    """Mixin for the extension points of Keras 2 that concern causal padding.

    A subclass that supports `padding="causal"` overrides both methods:

    * `_validate_init()`: refuses it otherwise; called at the end of the constructor.
    * `_compute_causal_padding(inputs)`: the paddings for `tf.pad`.
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
                "Causal padding is for `Conv1D` and `SeparableConv1D`, or for a subclass that "
                "overrides `_validate_init` and `_compute_causal_padding`."
            )

    def _compute_causal_padding(self, inputs: tf.Tensor) -> Any:
        # Only a subclass that accepts causal padding in `_validate_init` gets here.
        raise NotImplementedError(f"{type(self).__name__} has no `_compute_causal_padding`.")

    def convolution_op(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        """Convolve, after the padding of the subclass if it is causal."""
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
        """Trace `call`, because a subclass may pad as it likes."""
        return keras.Operation.compute_output_spec(self, *args, **kwargs)


class _IgnoresKernel(layers.Keras2Habits):
    """Mixin that drops the arguments for a kernel that the layer does not have."""

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
