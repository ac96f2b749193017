"""ENAS: a controller draws architectures, and learns from how good they are."""

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
    rewards,
    two_streams,
)

__all__ = ["EnasTrainer"]

_WEIGHTS = 2
# Of the first architecture that an update tries; the next ones follow.
_FIRST_SAMPLE = 10


class EnasTrainer(one_shot_trainer.OneShotTrainer):
    """The controller is a distribution over the options of each label, learnt by REINFORCE.

    A step of the weights trains a path that it draws. Every `one_shot.enas.controller_every` steps
    it draws some more, which are rated on the other batch, in inference mode.
    """

    draws_paths = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        own = self.one_shot
        self.__dict__["_reward"] = rewards.Reward(
            self.task, self.model, metric=own.reward, direction=own.reward_direction
        )

    def make_resolver(self, choice: choices.Choice) -> resolvers.PathResolver:
        return resolvers.PathResolver(choice)

    def is_arch_step_due(self, step: tf.Tensor) -> tf.Tensor | None:
        every = self.one_shot.enas.controller_every
        warm = super().is_arch_step_due(step)
        if every == 1:
            return warm
        is_turn = tf.equal(step % every, 0)
        return is_turn if warm is None else tf.logical_and(is_turn, warm)

    def weight_draw(self, step: tf.Tensor) -> draws.Draw:
        return draws.Draw(paths=self.sampled_paths(step, _WEIGHTS))

    def arch_gradients(self, inputs: Mapping[str, Any]) -> list[tf.Tensor]:
        """The policy gradient, averaged over the samples."""
        config = self.one_shot.enas
        step = self.global_step.read_value()
        paths = [
            self.sampled_paths(step, _FIRST_SAMPLE + number) for number in range(config.samples)
        ]
        rewarded = [self._rate(path, inputs[two_streams.VAL]) for path in paths]
        baseline = self._update_baseline(tf.reduce_mean(rewarded))
        with tf.GradientTape() as tape:
            loss = -config.entropy_weight * self._entropy()
            for path, reward in zip(paths, rewarded, strict=True):
                loss -= (reward - baseline) * self._log_prob(path) / config.samples
            # All replicas have the same.
            loss /= self.strategy.num_replicas_in_sync
        return hypergradient.gradients_or_zeros(tape, loss, self.alphas)

    def _rate(self, paths: Mapping[str, tf.Tensor], batch: Any) -> tf.Tensor:
        with draws.in_force(draws.Draw(paths=paths)):
            reward: tf.Tensor = self.__dict__["_reward"].of_batch(batch)
        self._arch_loss.update_state(-reward)
        one_hot = {label: tf.one_hot(paths[label], len(o)) for label, o in self.space.items()}
        return reward - tf.cast(self.arch_cost(one_hot), tf.float32)

    def _update_baseline(self, reward: tf.Tensor) -> tf.Tensor:
        decay = self.one_shot.enas.baseline_decay
        before = self._baseline.read_value()
        # At first it is what the first architectures get.
        is_first = tf.equal(tf.convert_to_tensor(self.arch_optimizer.iterations), 0)
        after = tf.where(is_first, reward, decay * before + (1.0 - decay) * reward)
        self._baseline.assign(after)
        return after

    def _log_prob(self, paths: Mapping[str, tf.Tensor]) -> tf.Tensor:
        return tf.add_n(
            [
                tf.gather(tf.nn.log_softmax(resolver.logits()), paths[label])
                for label, resolver in self.resolvers.items()
            ]
        )

    def _entropy(self) -> tf.Tensor:
        log_probs = [tf.nn.log_softmax(r.logits()) for r in self.resolvers.values()]
        return -tf.add_n([tf.reduce_sum(tf.exp(one) * one) for one in log_probs])

    def _checkpoint_items(self) -> dict[str, Any]:
        self._baseline = tf.Variable(
            0.0,
            name="enas_baseline",
            trainable=False,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        return {**super()._checkpoint_items(), "enas_baseline": self._baseline}
