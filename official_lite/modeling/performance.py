"""Numeric precision: the dtype policy of layers and the loss scaling that float16 requires.

::

    with performance.mixed_precision_policy("float16"):
        model = build_model()
    optimizer = performance.configure_optimizer(optimizer, use_float16=True)
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite.common import errors, suggestions
from official_lite.modeling import distributed_gradients

__all__ = [
    "LossScaleOptimizer",
    "configure_optimizer",
    "mixed_precision_policy",
    "set_mixed_precision_policy",
]

_POLICIES = {
    "float16": "mixed_float16",
    "mixed_float16": "mixed_float16",
    "bfloat16": "mixed_bfloat16",
    "mixed_bfloat16": "mixed_bfloat16",
    "float32": "float32",
}


def set_mixed_precision_policy(dtype: str | tf.DType | None, loss_scale: None = None) -> None:
    """Set Keras' dtype policy for layers that are created from now on.

    Args:
        dtype: A name or a `tf.DType`. `float16` and `bfloat16`, with or without the prefix
            `mixed_`, compute in that type and keep the weights in float32. `float32` uses float32
            for both. None changes nothing.
        loss_scale: Must be None; pass it to `configure_optimizer` instead.

    Raises:
        ConfigValueError: The policy is unknown, or a loss scale is given.
    """
    if loss_scale is not None:
        raise errors.ConfigValueError(
            f"`loss_scale` is {loss_scale!r}; it is an option of the optimizer. Pass it to "
            "`configure_optimizer`."
        )
    if dtype is not None:
        keras.mixed_precision.set_dtype_policy(_policy_name(dtype))


@contextlib.contextmanager
def mixed_precision_policy(dtype: str | tf.DType | None) -> Iterator[None]:
    """Set Keras' policy like `set_mixed_precision_policy`, and restore the previous one on exit."""
    previous = keras.mixed_precision.dtype_policy()
    set_mixed_precision_policy(dtype)
    try:
        yield
    finally:
        keras.mixed_precision.set_dtype_policy(previous)


def configure_optimizer(
    optimizer: keras.optimizers.Optimizer,
    use_float16: bool = False,
    loss_scale: str | float | None = None,
    use_graph_rewrite: bool | None = None,
) -> keras.optimizers.Optimizer:
    """Add loss scaling for float16; otherwise return the optimizer unchanged.

    Args:
        optimizer: The optimizer to wrap.
        use_float16: Whether the model computes in float16.
        loss_scale: A fixed scale. `dynamic` or None adapts the scale to the gradients.
        use_graph_rewrite: Has no effect.

    Raises:
        ConfigValueError: `loss_scale` is neither `dynamic` nor a positive number.
    """
    if use_graph_rewrite is not None:
        logging.warning("`use_graph_rewrite` has no effect; remove it.")
    if not use_float16:
        return optimizer
    if loss_scale is None or loss_scale == "dynamic":
        return LossScaleOptimizer(optimizer)
    if isinstance(loss_scale, str) or not loss_scale > 0:
        raise errors.ConfigValueError(
            f"`loss_scale` is {loss_scale!r}; expected 'dynamic' or a positive number."
        )
    return LossScaleOptimizer(optimizer, initial_scale=float(loss_scale), dynamic=False)


@keras.saving.register_keras_serializable("official_lite")
class LossScaleOptimizer(
    distributed_gradients.DistributedLossScaleOptimizer, keras.optimizers.LossScaleOptimizer
):
    """Keras' loss scaling, made correct for several replicas and with the methods of Keras 2.

    The loss is multiplied by a scale so that small gradients do not vanish in float16, and
    `apply_gradients` divides the gradients by the scale. If a gradient, summed over the replicas,
    is infinite or NaN, the update is skipped, `iterations` does not change and the scale is halved.
    After `dynamic_growth_steps` updates without overflow, the scale is doubled. Put a moving
    average inside this optimizer.

    Args:
        inner_optimizer: The optimizer that updates the weights. It is made distributed.
        initial_scale: The initial scale.
        dynamic_growth_steps: The number of updates without overflow before the scale grows.
        dynamic: Whether the scale changes. With a fixed scale no update is skipped: an overflow
            makes the weights NaN and ends the run, because it would recur at every step.
        name: The optimizer's name.
        **kwargs: Arguments of Keras' `LossScaleOptimizer`.
    """

    def __init__(
        self,
        inner_optimizer: keras.optimizers.Optimizer,
        initial_scale: float = 2.0**15,
        dynamic_growth_steps: int = 2000,
        dynamic: bool = True,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            inner_optimizer=distributed_gradients.make_distributed(inner_optimizer),
            initial_scale=initial_scale,
            dynamic_growth_steps=dynamic_growth_steps,
            name=name,
            **kwargs,
        )
        self.dynamic = dynamic
        for wrapped in distributed_gradients.wrapped_optimizers(inner_optimizer):
            # Keras clears the loss scale factor of only the outermost wrapped optimizer. Any other
            # factor would scale the loss without ever being divided out.
            wrapped.loss_scale_factor = None

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments."""
        return super().get_config() | {"dynamic": self.dynamic}

    def check_finite(self, grads: Sequence[Any]) -> Any:
        """Return whether to apply the update, which is always True with a fixed scale."""
        return super().check_finite(grads) if self.dynamic else keras.ops.array(True)

    def _scale_bounds(self) -> tuple[float, float]:
        return super()._scale_bounds() if self.dynamic else (self.initial_scale,) * 2


def _policy_name(dtype: str | tf.DType) -> str:
    name = str(getattr(dtype, "name", dtype))
    if name not in _POLICIES:
        raise errors.ConfigValueError(
            f"Unknown precision {name!r}. {suggestions.did_you_mean(name, _POLICIES)}"
        )
    return _POLICIES[name]
