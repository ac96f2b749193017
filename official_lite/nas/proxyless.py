"""The ProxylessNAS trainer, which trains weights on single paths and α through binary gates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from official_lite.nas import (
    choices,
    draws,
    hypergradient,
    one_shot_trainer,
    resolvers,
    train_val_streams,
)

__all__ = ["ProxylessTrainer"]

_ARCH, _WEIGHTS = 1, 2


class ProxylessTrainer(one_shot_trainer.OneShotTrainer):
    """A trainer that samples paths by the softmax of α.

    A step of the weights computes a single path. A step of the architecture computes all options of
    each choice and lets one through a binary gate, which gives α a gradient.
    """

    draws_paths = True

    def make_resolver(self, choice: choices.Choice) -> resolvers.GateResolver:
        return resolvers.GateResolver(choice)

    def arch_draw(self, step: tf.Tensor) -> draws.Draw:
        return draws.Draw(paths=self.sampled_paths(step, _ARCH), gates=True)

    def weight_draw(self, step: tf.Tensor) -> draws.Draw:
        return draws.Draw(paths=self.sampled_paths(step, _WEIGHTS))

    def arch_gradients(self, inputs: Mapping[str, Any]) -> list[tf.Tensor]:
        return hypergradient.first_order(
            self.arch_loss, val=inputs[train_val_streams.VAL], alphas=self.alphas
        )
