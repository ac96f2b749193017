"""A train step of which XLA compiles all but the update."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from official_lite.core import base_task
from official_lite.modeling.optimization import gradient_accumulator

__all__ = ["create_split_train_step"]


def create_split_train_step(
    task: base_task.Task, metrics: Sequence[keras.metrics.Metric]
) -> Callable[..., Mapping[str, Any]]:
    """`task.train_step` with its forward and its backward pass compiled.

    The update is left out, because it exchanges gradients between replicas, which XLA can't. Make
    it once: each one is compiled anew.

    Args:
        task: The task.
        metrics: What its step updates.

    Returns:
        A function of the arguments of `task.train_step`; its metrics are those given here.
    """
    variables: list[Any] = []

    @tf.function(jit_compile=True)
    def forward_and_backward(
        inputs: Any, model: Any, optimizer: Any
    ) -> tuple[Mapping[str, Any], list[tf.Tensor]]:
        collector = gradient_accumulator.GradientCollector(optimizer)
        logs = task.train_step(inputs, model=model, optimizer=collector, metrics=metrics)
        variables[:] = [variable for _, variable in collector.grads_and_vars]
        return logs, [gradient for gradient, _ in collector.grads_and_vars]

    def train_step(
        inputs: Any, *, model: Any, optimizer: Any, metrics: Any = None
    ) -> Mapping[str, Any]:
        del metrics
        logs, gradients = forward_and_backward(inputs, model, optimizer)
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
        return logs

    return train_step
