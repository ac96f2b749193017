"""The DARTS trainer, which learns the weights of a mixture of all options by gradient descent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from official_lite.common import types
from official_lite.nas import choices, hypergradient, one_shot_trainer, resolvers, train_val_streams

__all__ = ["DartsTrainer"]


class DartsTrainer(one_shot_trainer.OneShotTrainer):
    """A trainer that mixes the options of each choice by the softmax of α.

    α learns from the batch of the architecture data. `one_shot.darts.order` selects whether its
    gradient accounts for the next step of the weights.
    """

    def make_resolver(self, choice: choices.Choice) -> resolvers.MixtureResolver:
        return resolvers.MixtureResolver(choice)

    def arch_gradients(self, inputs: Mapping[str, Any]) -> list[tf.Tensor]:
        config = self.one_shot.darts
        val = inputs[train_val_streams.VAL]
        if config.order == "first":
            return hypergradient.first_order(self.arch_loss, val=val, alphas=self.alphas)
        estimate = {
            "second": hypergradient.second_order,
            "finite_difference": hypergradient.finite_difference,
        }[config.order]
        train = inputs[train_val_streams.TRAIN]

        def loss_fn(batch: types.Nest, *others: Any) -> tf.Tensor:
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
