"""Trainers that learn the architecture parameters α by gradient descent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from official_lite.common import nests, user_code
from official_lite.nas import choices, hypergradient, one_shot_trainer, resolvers, train_val_streams

__all__ = ["DartsTrainer", "GumbelTrainer", "ProxylessTrainer"]


_ARCH, _WEIGHTS = 1, 2


class _FirstOrderTrainer(one_shot_trainer.OneShotTrainer):
    def arch_gradients(self, inputs: Mapping[str, Any]) -> list[tf.Tensor]:
        return hypergradient.first_order(
            self.arch_loss, val=inputs[train_val_streams.VAL], alphas=self.alphas
        )


class DartsTrainer(_FirstOrderTrainer):
    """A trainer that mixes the options of each choice by the softmax of α.

    α learns from the batch of the architecture data. `one_shot.darts.order` selects whether its
    gradient accounts for the next step of the weights.
    """

    def make_resolver(self, choice: choices.Choice) -> resolvers.MixtureResolver:
        return resolvers.MixtureResolver(choice)

    def arch_gradients(self, inputs: Mapping[str, Any]) -> list[tf.Tensor]:
        config = self.one_shot.darts
        if config.order == "first":
            return super().arch_gradients(inputs)
        estimate = {
            "second": hypergradient.second_order,
            "finite_difference": hypergradient.finite_difference,
        }[config.order]
        train, val = inputs[train_val_streams.TRAIN], inputs[train_val_streams.VAL]

        def loss_fn(batch: nests.Nest, *others: Any) -> tf.Tensor:
            # Only the architecture's batch reports the loss and includes the penalty.
            return (self.arch_loss if batch is val else self.loss)(batch, *others)

        return estimate(
            loss_fn,
            train=train,
            val=val,
            weights=self.model.trainable_variables,
            alphas=self.alphas,
            learning_rate=config.unrolled_learning_rate,
        )


class GumbelTrainer(_FirstOrderTrainer):
    """A trainer that mixes the options of each choice by the softmax of α plus Gumbel noise."""

    def make_resolver(self, choice: choices.Choice) -> resolvers.GumbelResolver:
        return resolvers.GumbelResolver(choice, hard=self.one_shot.gumbel.hard)

    def arch_draw(self, step: tf.Tensor) -> resolvers.Draw:
        return self._draw(step, _ARCH)

    def weight_draw(self, step: tf.Tensor) -> resolvers.Draw:
        return self._draw(step, _WEIGHTS)

    def temperature(self, step: tf.Tensor) -> tf.Tensor:
        """Return the temperature at a step. It falls linearly over the whole training."""
        config = self.one_shot.gumbel
        done = tf.cast(step, tf.float32) / float(max(1, self.config.trainer.train_steps))
        fallen = (config.temperature - config.final_temperature) * tf.minimum(done, 1.0)
        return config.temperature - fallen

    def _draw(self, step: tf.Tensor, salt: int) -> resolvers.Draw:
        temperature = user_code.converted(self.temperature)(step)
        return resolvers.Draw(noise=self.noise(step, salt), temperature=temperature)


class ProxylessTrainer(_FirstOrderTrainer):
    """A trainer that samples paths by the softmax of α.

    A step of the weights computes a single path. A step of the architecture computes all options of
    each choice and lets one through a binary gate, which gives α a gradient.
    """

    draws_paths = True

    def make_resolver(self, choice: choices.Choice) -> resolvers.GateResolver:
        return resolvers.GateResolver(choice)

    def arch_draw(self, step: tf.Tensor) -> resolvers.Draw:
        return resolvers.Draw(paths=self.sampled_paths(step, _ARCH), gates=True)

    def weight_draw(self, step: tf.Tensor) -> resolvers.Draw:
        return resolvers.Draw(paths=self.sampled_paths(step, _WEIGHTS))
