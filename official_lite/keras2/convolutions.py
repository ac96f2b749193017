"""Convolutions that accept arguments which Keras 2 ignores and Keras 3 refuses."""

from typing import Any

import keras

__all__ = ["DepthwiseConv2D", "SeparableConv2D"]

_IGNORED = ("kernel_initializer", "kernel_regularizer", "kernel_constraint")


class _IgnoresKernel:
    """Mixin that drops the arguments for a kernel that the layer does not have."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        for name in _IGNORED:
            kwargs.pop(name, None)
        super().__init__(*args, **kwargs)


class DepthwiseConv2D(_IgnoresKernel, keras.layers.DepthwiseConv2D):
    """A `keras.layers.DepthwiseConv2D` that ignores arguments such as `kernel_initializer`."""


class SeparableConv2D(_IgnoresKernel, keras.layers.SeparableConv2D):
    """A `keras.layers.SeparableConv2D` that ignores arguments such as `kernel_initializer`."""
