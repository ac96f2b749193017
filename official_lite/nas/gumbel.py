"""The Gumbel-softmax trainer, which samples mixtures with a falling temperature (FBNet, GDAS)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from official_lite.common import user_code
from official_lite.nas import (
    choices,
    draws,
    hypergradient,
    one_shot_trainer,
    resolvers,
    train_val_streams,
)

__all__ = ["GumbelTrainer"]

_ARCH, _WEIGHTS = 1, 2


class GumbelTrainer(one_shot_trainer.OneShotTrainer):
    """A trainer that mixes the options of each choice by the softmax of α plus Gumbel noise."""

    def make_resolver(self, choice: choices.Choice) -> resolvers.GumbelResolver:
        return resolvers.GumbelResolver(choice, hard=self.one_shot.gumbel.hard)

    def arch_draw(self, step: tf.Tensor) -> draws.Draw:
        return self._draw(step, _ARCH)

    def weight_draw(self, step: tf.Tensor) -> draws.Draw:
        return self._draw(step, _WEIGHTS)

    def arch_gradients(self, inputs: Mapping[str, Any]) -> list[tf.Tensor]:
        return hypergradient.first_order(
            self.arch_loss, val=inputs[train_val_streams.VAL], alphas=self.alphas
        )

    def temperature(self, step: tf.Tensor) -> tf.Tensor:
        """Return the temperature at a step. It falls linearly over the whole training."""
        config = self.one_shot.gumbel
        done = tf.cast(step, tf.float32) / float(max(1, self.config.trainer.train_steps))
        fallen = (config.temperature - config.final_temperature) * tf.minimum(done, 1.0)
        return config.temperature - fallen

    def _draw(self, step: tf.Tensor, salt: int) -> draws.Draw:
        temperature = user_code.converted(self.temperature)(step)
        return draws.Draw(noise=self.noise(step, salt), temperature=temperature)
