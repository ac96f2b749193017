"""Trainers that learn the architecture parameters α by gradient descent, and their gradients.

Second-order gradients account for the weights' dependence on the architecture. The functions that
compute gradients run in a replica; the gradient is the sum of their results over the replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from official_lite.common import nests, user_code
from official_lite.modeling import distributed_gradients
from official_lite.nas import choices, one_shot_trainer, resolution

__all__ = [
    "DartsTrainer",
    "GumbelTrainer",
    "LossFn",
    "ProxylessTrainer",
    "finite_difference",
    "first_order",
    "gradients_or_zeros",
    "second_order",
]


class _FirstOrderTrainer(one_shot_trainer.OneShotTrainer):
    def arch_gradients(self, inputs: Mapping[str, Any]) -> list[tf.Tensor]:
        return first_order(
            self.arch_loss,
            val=inputs[one_shot_trainer.VAL],
            alphas=self.alphas,
            scale=self.arch_loss_scale,
        )


class DartsTrainer(_FirstOrderTrainer):
    """A trainer that mixes the options of each choice by the softmax of α.

    α learns from the batch of the architecture data. `one_shot.darts.order` selects whether its
    gradient accounts for the next step of the weights.
    """

    def make_resolver(self, choice: choices.Choice) -> resolution.MixtureResolver:
        return resolution.MixtureResolver(choice)

    def arch_gradients(self, inputs: Mapping[str, Any]) -> list[tf.Tensor]:
        config = self.one_shot.darts
        if config.order == "first":
            return super().arch_gradients(inputs)
        estimate = {
            "second": second_order,
            "finite_difference": finite_difference,
        }[config.order]
        train, val = inputs[one_shot_trainer.TRAIN], inputs[one_shot_trainer.VAL]

        def loss_fn(batch: nests.Nest, *others: Any) -> tf.Tensor:
            # Only the loss on the architecture batch includes the penalty and is recorded.
            return (self.arch_loss if batch is val else self.loss)(batch, *others)

        return estimate(
            loss_fn,
            train=train,
            val=val,
            weights=self.model.trainable_variables,
            alphas=self.alphas,
            learning_rate=config.unrolled_learning_rate,
            scale=self.arch_loss_scale,
        )


class GumbelTrainer(_FirstOrderTrainer):
    """A trainer that mixes the options of each choice by the softmax of α plus Gumbel noise."""

    def make_resolver(self, choice: choices.Choice) -> resolution.GumbelResolver:
        return resolution.GumbelResolver(choice, hard=self.one_shot.gumbel.hard)

    def arch_draw(self, step: tf.Tensor) -> resolution.Draw:
        return self._draw(step, one_shot_trainer.ARCH)

    def weight_draw(self, step: tf.Tensor) -> resolution.Draw:
        return self._draw(step, one_shot_trainer.WEIGHTS)

    def temperature(self, step: tf.Tensor) -> tf.Tensor:
        """Return the temperature at a step. It falls linearly over the whole run."""
        config = self.one_shot.gumbel
        done = tf.cast(step, tf.float32) / float(max(1, self.config.trainer.train_steps))
        fallen = (config.temperature - config.final_temperature) * tf.minimum(done, 1.0)
        return config.temperature - fallen

    def _draw(self, step: tf.Tensor, salt: int) -> resolution.Draw:
        temperature = user_code.converted(self.temperature)(step)
        return resolution.Draw(noise=self.noise(step, salt), temperature=temperature)


class ProxylessTrainer(_FirstOrderTrainer):
    """A trainer that samples paths by the softmax of α.

    A step of the weights computes a single path. A step of the architecture computes all options of
    each choice and lets one through a binary gate, which gives α a gradient.
    """

    draws_paths = True

    def make_resolver(self, choice: choices.Choice) -> resolution.GateResolver:
        return resolution.GateResolver(choice)

    def arch_draw(self, step: tf.Tensor) -> resolution.Draw:
        paths = self.sampled_paths(step, one_shot_trainer.ARCH)
        return resolution.Draw(paths=paths, gates=True)


LossFn = Callable[..., tf.Tensor]
"""`loss_fn(batch)`, or `loss_fn(batch, weights, values)` to substitute `values` for `weights`."""

# In the DARTS paper, the finite-difference step is this number divided by the norm of the weights'
# gradient.
_FINITE_STEP = 0.01


def first_order(
    loss_fn: LossFn,
    *,
    val: nests.Nest,
    alphas: Sequence[Any],
    scale: tf.Tensor | None = None,
) -> list[tf.Tensor]:
    """Return the gradient of the loss of `val` with respect to `alphas` at the current weights.

    Args:
        loss_fn: The loss function.
        val: The batch.
        alphas: The architecture parameters.
        scale: The loss scale; see `gradients_or_zeros`.
    """
    with tf.GradientTape() as tape:
        loss = loss_fn(val)
    return gradients_or_zeros(tape, loss, alphas, scale)


def second_order(
    loss_fn: LossFn,
    *,
    train: nests.Nest,
    val: nests.Nest,
    weights: Sequence[Any],
    alphas: Sequence[Any],
    learning_rate: float | tf.Tensor,
    scale: tf.Tensor | None = None,
) -> list[tf.Tensor]:
    """Return the exact gradient of L_val(w − ξ ∂L_train(w, α)/∂w, α) with respect to α.

    The updated weights are tensors. No variable is written, so none has to be restored.

    Args:
        loss_fn: The loss function.
        train: The batch of L_train.
        val: The batch of L_val.
        weights: The weights w.
        alphas: The architecture parameters α.
        learning_rate: The learning rate ξ.
        scale: The loss scale; see `gradients_or_zeros`.
    """
    with tf.GradientTape() as outer:
        unrolled = _step(loss_fn, train, weights, learning_rate, scale)
        loss = loss_fn(val, weights, unrolled)
    return gradients_or_zeros(outer, loss, alphas, scale)


def finite_difference(
    loss_fn: LossFn,
    *,
    train: nests.Nest,
    val: nests.Nest,
    weights: Sequence[Any],
    alphas: Sequence[Any],
    learning_rate: float | tf.Tensor,
    scale: tf.Tensor | None = None,
) -> list[tf.Tensor]:
    """Estimate the gradient of `second_order` by the paper's finite differences.

    This takes the same arguments as `second_order` and needs only first derivatives.
    """
    unrolled = _step(loss_fn, train, weights, learning_rate, scale)
    with tf.GradientTape() as tape:
        tape.watch(unrolled)
        loss = loss_fn(val, weights, unrolled)
    both = gradients_or_zeros(tape, loss, [*alphas, *unrolled], scale)
    direct, direction = both[: len(alphas)], both[len(alphas) :]
    direction = distributed_gradients.sum_over_replicas(direction)
    step = _FINITE_STEP / tf.maximum(tf.linalg.global_norm(direction), 1e-12)

    def at(sign: float) -> list[tf.Tensor]:
        moved = [
            tf.convert_to_tensor(w) + tf.cast(sign * step, d.dtype) * d
            for w, d in zip(weights, direction, strict=True)
        ]
        with tf.GradientTape() as tape:
            loss = loss_fn(train, weights, moved)
        return gradients_or_zeros(tape, loss, alphas, scale)

    return [
        d - learning_rate * (plus - minus) / (2.0 * step)
        for d, plus, minus in zip(direct, at(1.0), at(-1.0), strict=True)
    ]


def gradients_or_zeros(
    tape: tf.GradientTape,
    loss: tf.Tensor,
    sources: Sequence[Any],
    scale: tf.Tensor | None = None,
) -> list[tf.Tensor]:
    """Return the gradients, with zeros for sources on which the loss does not depend.

    Args:
        tape: The tape that recorded the loss.
        loss: The loss.
        sources: The variables or tensors.
        scale: A factor for the loss while it is differentiated, by which the gradients are divided
            again. It keeps small float16 gradients inside the model from becoming 0.
    """
    upstream = None if scale is None else tf.cast(scale, loss.dtype)
    gradients = tape.gradient(loss, list(sources), output_gradients=upstream)
    return [
        tf.zeros(source.shape, source.dtype)
        if gradient is None
        else _divided(tf.convert_to_tensor(gradient), scale)
        for gradient, source in zip(gradients, sources, strict=True)
    ]


def _divided(gradient: tf.Tensor, scale: tf.Tensor | None) -> tf.Tensor:
    return gradient if scale is None else gradient / tf.cast(scale, gradient.dtype)


def _step(
    loss_fn: LossFn,
    train: nests.Nest,
    weights: Sequence[Any],
    learning_rate: float | tf.Tensor,
    scale: tf.Tensor | None,
) -> list[tf.Tensor]:
    """Return w − ξ ∂L_train/∂w, with the gradient summed over all replicas."""
    with tf.GradientTape() as tape:
        loss = loss_fn(train)
    gradients = gradients_or_zeros(tape, loss, weights, scale)
    gradients = distributed_gradients.sum_over_replicas(gradients)
    return [
        tf.convert_to_tensor(w) - tf.cast(learning_rate, g.dtype) * g
        for w, g in zip(weights, gradients, strict=True)
    ]
