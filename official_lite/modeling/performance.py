"""Numeric precision: the policy that layers compute in, and the scaling of the loss that it needs.

::

    with performance.mixed_precision_policy("float16"):
        model = build_model()
    optimizer = performance.configure_optimizer(optimizer, use_float16=True)
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
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


def set_mixed_precision_policy(dtype: Any, loss_scale: None = None) -> None:
    """Sets Keras' policy for the layers that are made from now on.

    Args:
        dtype: `float16` and `bfloat16`, with or without `mixed_` before, compute in that type and
            keep the weights in float32; `float32` does everything in it; None changes nothing. A
            `tf.DType` does as well.
        loss_scale: Must be None: `configure_optimizer` takes it.

    Raises:
        ConfigValueError: There is no such policy, or a loss scale is given.
    """
    if loss_scale is not None:
        raise errors.ConfigValueError(
            f"`loss_scale` is {loss_scale!r}; it belongs to the optimizer: give it to "
            "`configure_optimizer`."
        )
    if dtype is not None:
        keras.mixed_precision.set_dtype_policy(_policy_name(dtype))


@contextlib.contextmanager
def mixed_precision_policy(dtype: Any) -> Iterator[None]:
    """Sets Keras' policy as `set_mixed_precision_policy` does, and puts the old one back after."""
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
    """Adds loss scaling for float16; otherwise returns the optimizer as it is.

    Args:
        optimizer: What to wrap.
        use_float16: Whether the model computes in float16.
        loss_scale: A fixed scale; `dynamic` or None adapts it to what the gradients bear.
        use_graph_rewrite: Without effect.

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
            f"`loss_scale` is {loss_scale!r}; wanted 'dynamic' or a positive number."
        )
    return LossScaleOptimizer(optimizer, initial_scale=float(loss_scale), dynamic=False)


@keras.saving.register_keras_serializable("official_lite")
class LossScaleOptimizer(
    distributed_gradients.DistributedLossScaleOptimizer, keras.optimizers.LossScaleOptimizer
):
    """Keras' loss scaling, right on several replicas and with the methods of Keras 2.

    The loss is multiplied by a scale so that small gradients survive in float16, and gradients are
    divided by it in `apply_gradients`. If one of them, summed over the replicas, is infinite or
    NaN, the update is skipped, `iterations` stays and the scale is halved; after
    `dynamic_growth_steps` updates without that it is doubled. A moving average goes inside.
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
        """Wraps `inner_optimizer`, and makes it a distributed one.

        Args:
            inner_optimizer: What updates the weights.
            initial_scale: The first scale.
            dynamic_growth_steps: Updates without overflow before the scale grows.
            dynamic: Whether the scale changes. A fixed one skips nothing: an overflow makes the
                weights NaN and ends the run, for it would come back at every step.
            name: The optimizer's name.
            **kwargs: As for Keras' own.
        """
        super().__init__(
            inner_optimizer=distributed_gradients.make_distributed(inner_optimizer),
            initial_scale=initial_scale,
            dynamic_growth_steps=dynamic_growth_steps,
            name=name,
            **kwargs,
        )
        self.dynamic = dynamic
        for wrapped in distributed_gradients.wrapped_optimizers(inner_optimizer):
            # Keras clears it on the first only; a second scale would never be divided out.
            wrapped.loss_scale_factor = None

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return super().get_config() | {"dynamic": self.dynamic}

    def check_finite(self, grads: Sequence[Any]) -> Any:
        """Whether to make the update: always with a fixed scale."""
        return super().check_finite(grads) if self.dynamic else keras.ops.array(True)

    def _scale_bounds(self) -> tuple[float, float]:
        return super()._scale_bounds() if self.dynamic else (self.initial_scale,) * 2


def _policy_name(dtype: Any) -> str:
    name = str(getattr(dtype, "name", dtype))
    if name not in _POLICIES:
        raise errors.ConfigValueError(
            f"There is no precision {name!r}. {suggestions.did_you_mean(name, _POLICIES)}"
        )
    return _POLICIES[name]
