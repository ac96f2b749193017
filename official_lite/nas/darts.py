"""DARTS: mixtures of all options, whose shares are learnt by gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from official_lite.nas import choices, hypergradient, one_shot_trainer, resolvers, two_streams

__all__ = ["DartsTrainer"]


class DartsTrainer(one_shot_trainer.OneShotTrainer):
    """Each choice is a sum of its options by the softmax of α; α learns from the other batch.

    `one_shot.darts.order` says whether its gradient looks a step of the weights ahead.
    """

    def make_resolver(self, choice: choices.Choice) -> resolvers.MixtureResolver:
        return resolvers.MixtureResolver(choice)

    def arch_gradients(self, inputs: Mapping[str, Any]) -> list[tf.Tensor]:
        config = self.one_shot.darts
        val = inputs[two_streams.VAL]
        if config.order == "first":
            return hypergradient.first_order(self.arch_loss, val=val, alphas=self.alphas)
        estimate = {
            "second": hypergradient.second_order,
            "finite_difference": hypergradient.finite_difference,
        }[config.order]
        train = inputs[two_streams.TRAIN]

        def loss_fn(batch: Any, *others: Any) -> tf.Tensor:
            # Of the two, the architecture is judged by one.
            return (self.arch_loss if batch is val else self.loss)(batch, *others)

        return estimate(
            loss_fn,
            train=train,
            val=val,
            weights=self.model.trainable_variables,
            alphas=self.alphas,
            learning_rate=config.unrolled_learning_rate,
        )
