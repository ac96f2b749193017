"""The ENAS trainer, whose controller samples architectures and learns from their rewards."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from official_lite.common import nests
from official_lite.nas import choices, differentiable, one_shot_trainer, resolution

__all__ = ["Choose", "EnasTrainer", "LogitsController", "LstmController", "Walk"]

Choose = Callable[[str, tf.Tensor], tf.Tensor]
"""Function that takes a label and its logits and returns the int32 index of an option."""

_INITIAL_SCALE = 0.1
# The salt of the first architecture that an update samples; later samples use the next numbers.
_FIRST_SAMPLE = 10
# The baseline before the first reward. NaN would fail the check for non-finite variables.
_NO_REWARD = tf.float32.min
# The smallest probability that is passed to a logarithm.
_MIN_PROBABILITY = 1e-6


@dataclasses.dataclass(frozen=True)
class Walk:
    """A path through the model with the logits from which it was chosen.

    Attributes:
        paths: The index of the chosen option for each label.
        logits: The logits of each label, given the options chosen before it.
    """

    paths: dict[str, tf.Tensor]
    logits: dict[str, tf.Tensor]

    @property
    def log_prob(self) -> tf.Tensor:
        """The log probability of the path."""
        return tf.add_n(
            [
                tf.gather(tf.nn.log_softmax(logits), self.paths[label])
                for label, logits in self.logits.items()
            ]
        )

    @property
    def entropy(self) -> tf.Tensor:
        """The entropy of the controller, summed over the labels."""
        log_probs = [tf.nn.log_softmax(logits) for logits in self.logits.values()]
        return -tf.add_n([tf.reduce_sum(tf.exp(one) * one) for one in log_probs])


class LogitsController:
    """A controller that decides the labels independently, with one logit per option.

    Args:
        by_label: The resolver of each label, which holds its logits.
    """

    def __init__(self, by_label: Mapping[str, resolution.PathResolver]) -> None:
        self._resolvers = by_label

    @property
    def variables(self) -> list[keras.Variable]:
        """The trainable variables."""
        return [v for resolver in self._resolvers.values() for v in resolver.variables]

    def walk(self, choose: Choose) -> Walk:
        """Choose an option for each label, in the order of the model."""
        logits = {label: resolver.logits() for label, resolver in self._resolvers.items()}
        return Walk({label: choose(label, one) for label, one in logits.items()}, logits)


class LstmController:
    """A controller that decides each label depending on the previous ones, as in the paper and NNI.

    An LSTM receives the embedding of each chosen option. Create the controller in the strategy's
    scope.

    Args:
        sizes: The number of options of each label.
        units: The number of units of the LSTM.
        tanh_constant: The largest absolute logit. The limit ensures that no option is ever ruled
            out.
    """

    def __init__(self, sizes: Mapping[str, int], *, units: int, tanh_constant: float) -> None:
        self._units = units
        self._tanh_constant = tanh_constant
        # Use float32 regardless of the dtype policy of the model.
        self._cell = keras.layers.LSTMCell(units, dtype="float32")
        self._cell.build((None, units))
        self._start = _variable([1, units], "enas_start")
        self._embeddings = {
            label: _variable([size, units], f"enas_embedding_{number}")
            for number, (label, size) in enumerate(sizes.items())
        }
        self._heads = {
            label: _variable([units, size], f"enas_head_{number}")
            for number, (label, size) in enumerate(sizes.items())
        }

    @property
    def variables(self) -> list[keras.Variable]:
        """The trainable variables."""
        return [
            *self._cell.trainable_variables,
            self._start,
            *self._embeddings.values(),
            *self._heads.values(),
        ]

    def walk(self, choose: Choose) -> Walk:
        """Choose an option for each label, in the order of the model."""
        paths, logits = {}, {}
        inputs = tf.convert_to_tensor(self._start)
        state = [tf.zeros([1, self._units]), tf.zeros([1, self._units])]
        for label, head in self._heads.items():
            output, state = self._cell(inputs, state)
            raw = tf.matmul(output, tf.convert_to_tensor(head))[0]
            logits[label] = self._tanh_constant * tf.tanh(raw)
            paths[label] = choose(label, logits[label])
            embedding = tf.convert_to_tensor(self._embeddings[label])
            inputs = tf.gather(embedding, paths[label])[tf.newaxis]
        return Walk(paths, logits)


def _variable(shape: list[int], name: str) -> Any:
    return keras.Variable(
        keras.random.uniform(shape, -_INITIAL_SCALE, _INITIAL_SCALE),
        dtype="float32",
        autocast=False,
        name=name,
    )


class EnasTrainer(one_shot_trainer.OneShotTrainer):
    """A trainer with a controller: a distribution over paths, trained by REINFORCE.

    Each step of the weights trains a path that the controller samples. Every
    `one_shot.enas.controller_every` steps, the controller samples further paths. They are rated on
    the batch of the architecture data, in inference mode, and the controller learns from the
    rewards.
    """

    draws_paths = True
    _controller: LogitsController | LstmController

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reward = self.build_reward()

    def resolve(self, model: keras.Model) -> list[tuple[str, Any]]:
        resolved = super().resolve(model)
        self._controller = self._build_controller(dict(resolved))
        return resolved

    def make_resolver(self, choice: choices.Choice) -> resolution.PathResolver:
        if self.one_shot.enas.controller == "lstm":
            return _WalkedPath(choice, self._preferred)
        return resolution.PathResolver(choice)

    @property
    def alphas(self) -> list[Any]:
        """The variables of the controller."""
        return self._controller.variables

    def picks(self) -> dict[str, int]:
        """Return the index of the preferred option, by label."""
        return {label: int(index) for label, index in self._preferred().paths.items()}

    def probs(self) -> dict[str, list[float]]:
        """Return the probability of each option, by label.

        The probabilities are conditioned on the preferred options of all previous labels.
        """
        logits = self._preferred().logits
        return {
            label: [float(p) for p in tf.nn.softmax(one).numpy()] for label, one in logits.items()
        }

    def sampled_paths(self, step: tf.Tensor, salt: int) -> dict[str, tf.Tensor]:
        """Return the index of an option for each label, sampled by the controller."""
        noise = self.noise(step, salt)
        return self._controller.walk(lambda label, logits: _largest(logits + noise[label])).paths

    def is_arch_step_due(self, step: tf.Tensor) -> tf.Tensor | None:
        every = self.one_shot.enas.controller_every
        warm = super().is_arch_step_due(step)
        if every == 1:
            return warm
        is_turn = tf.equal(step % every, 0)
        return is_turn if warm is None else tf.logical_and(is_turn, warm)

    def arch_gradients(self, inputs: Mapping[str, Any]) -> list[tf.Tensor]:
        """Return the policy gradient, averaged over the samples."""
        config = self.one_shot.enas
        step = self.global_step.read_value()
        paths = [
            self.sampled_paths(step, _FIRST_SAMPLE + number) for number in range(config.samples)
        ]
        rewarded = [self._rate(path, inputs[one_shot_trainer.VAL]) for path in paths]
        baseline = self._update_baseline(rewarded)
        rewarded = self._finite_rewards(rewarded, baseline)
        with tf.GradientTape() as tape:
            loss = tf.constant(0.0)
            for path, reward in zip(paths, rewarded, strict=True):
                walk = self._controller.walk(_along(path))
                loss -= (reward - baseline) * walk.log_prob
                loss -= config.entropy_weight * walk.entropy
                loss += config.skip_weight * self._skip_cost(walk)
            # Average over the samples. All replicas compute the same loss, and their gradients are
            # summed, so also divide the loss by the number of replicas.
            loss /= config.samples * self.strategy.num_replicas_in_sync
        return differentiable.gradients_or_zeros(tape, loss, self.alphas)

    def _rate(self, paths: Mapping[str, tf.Tensor], batch: nests.Nest) -> tf.Tensor:
        with resolution.active_draw(resolution.Draw(paths=paths)):
            reward = self._reward.of_batch(batch)
        self._arch_loss.update_state(-reward)
        one_hot = {label: tf.one_hot(paths[label], len(o)) for label, o in self.space.items()}
        return reward - tf.cast(self.arch_cost(one_hot), tf.float32)

    def _update_baseline(self, rewards: Sequence[tf.Tensor]) -> tf.Tensor:
        """Update the baseline with the mean of the finite rewards, and return the baseline."""
        decay = self.one_shot.enas.baseline_decay
        before = self._baseline.read_value()
        is_finite = tf.math.is_finite(tf.stack(rewards))
        finite = tf.where(is_finite, tf.stack(rewards), 0.0)
        num_finite = tf.reduce_sum(tf.cast(is_finite, tf.float32))
        reward = tf.math.divide_no_nan(tf.reduce_sum(finite), num_finite)
        # In the first update, the baseline becomes the mean reward of the update's architectures.
        is_first = tf.equal(before, _NO_REWARD)
        after = tf.where(is_first, reward, decay * before + (1.0 - decay) * reward)
        after = tf.where(num_finite > 0.0, after, before)
        self._baseline.assign(after)
        return tf.where(tf.equal(after, _NO_REWARD), 0.0, after)

    def _finite_rewards(self, rewards: Sequence[tf.Tensor], baseline: tf.Tensor) -> list[tf.Tensor]:
        """Replace the rewards that are not finite with a low reward.

        The controller thus learns to avoid architectures with such rewards. The low reward is at
        most the lowest finite reward of this update, and at most
        `baseline - max(abs(baseline), 1)`.
        """
        stacked = tf.stack(rewards)
        is_finite = tf.math.is_finite(stacked)
        lowest = tf.reduce_min(tf.where(is_finite, stacked, baseline))
        worst = tf.minimum(lowest, baseline - tf.maximum(tf.abs(baseline), 1.0))
        return tf.unstack(tf.where(is_finite, stacked, worst))

    def _preferred(self) -> Walk:
        return self._controller.walk(lambda label, logits: _largest(logits))

    def _build_controller(self, by_label: dict[str, Any]) -> Any:
        config = self.one_shot.enas
        if config.controller == "logits" or not by_label:
            return LogitsController(by_label)
        return LstmController(
            {label: resolver.num_options for label, resolver in by_label.items()},
            units=config.lstm_units,
            tanh_constant=config.tanh_constant,
        )

    def _skip_cost(self, walk: Walk) -> tf.Tensor:
        """Return the sum of the KL divergences of the inputs' probabilities from `skip_target`."""
        target = self.one_shot.enas.skip_target
        cost = tf.constant(0.0)
        for choice in resolution.find_choices(self.model):
            if isinstance(choice, choices.InputChoice) and choice.n_chosen is None:
                sets = tf.nn.softmax(walk.logits[choice.label])
                members = [[i in one for i in range(choice.n_candidates)] for one in choice.options]
                taken = tf.linalg.matvec(tf.constant(members, tf.float32), sets, transpose_a=True)
                # Clip to avoid log(0): an input's probability may be exactly 1, because a set of
                # inputs is never empty.
                taken = tf.clip_by_value(taken, _MIN_PROBABILITY, 1.0 - _MIN_PROBABILITY)
                cost += tf.reduce_sum(
                    taken * tf.math.log(taken / target)
                    + (1.0 - taken) * tf.math.log((1.0 - taken) / (1.0 - target))
                )
        return cost

    def _checkpoint_items(self) -> dict[str, Any]:
        self._baseline = tf.Variable(
            _NO_REWARD,
            name="enas_baseline",
            trainable=False,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        return {**super()._checkpoint_items(), "enas_baseline": self._baseline}


class _WalkedPath(resolution.PathResolver):
    """A path resolver whose logits come from a controller that all labels share."""

    def __init__(self, choice: choices.Choice, preferred: Callable[[], Walk]) -> None:
        resolution.require_sum(choice)
        self.num_options = len(choice.options)
        self._label = choice.label
        self._walk = preferred

    @property
    def variables(self) -> list[Any]:
        return []

    def logits(self) -> tf.Tensor:
        return self._walk().logits[self._label]


def _along(path: Mapping[str, tf.Tensor]) -> Choose:
    return lambda label, logits: path[label]


def _largest(logits: tf.Tensor) -> tf.Tensor:
    return tf.argmax(logits, output_type=tf.int32)
