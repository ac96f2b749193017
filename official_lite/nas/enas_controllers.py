"""What draws the architectures of ENAS: a distribution over paths, of one kind or another.

A controller is walked along: it gives the logits of one label after another, and `choose` says at
each which option is taken. Sampling, the preferred path and the probability of a path that is known
are such walks, which differ in `choose` alone::

    walk = controller.walk(lambda label, logits: paths[label])
    walk.log_prob, walk.entropy
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from official_lite.nas import resolvers

__all__ = ["Choose", "LogitsController", "LstmController", "Walk"]

Choose = Callable[[str, tf.Tensor], tf.Tensor]
"""The index of an option, int32, of a label and its logits."""

_INITIAL_SCALE = 0.1


@dataclasses.dataclass(frozen=True)
class Walk:
    """A path, and how it was come to.

    Attributes:
        paths: The index of the option that was taken for each label.
        logits: Those of each label, after the options before it had been taken.
    """

    paths: dict[str, tf.Tensor]
    logits: dict[str, tf.Tensor]

    @property
    def log_prob(self) -> tf.Tensor:
        """The logarithm of the probability of the path."""
        return tf.add_n(
            [
                tf.gather(tf.nn.log_softmax(logits), self.paths[label])
                for label, logits in self.logits.items()
            ]
        )

    @property
    def entropy(self) -> tf.Tensor:
        """How undecided the controller is, the sum over the labels."""
        log_probs = [tf.nn.log_softmax(logits) for logits in self.logits.values()]
        return -tf.add_n([tf.reduce_sum(tf.exp(one) * one) for one in log_probs])


class LogitsController:
    """Labels that know nothing of one another: a number for each option of each."""

    def __init__(self, by_label: Mapping[str, resolvers.PathResolver]) -> None:
        self._resolvers = by_label

    @property
    def variables(self) -> list[keras.Variable]:
        """What is trained."""
        return [v for resolver in self._resolvers.values() for v in resolver.variables]

    def walk(self, choose: Choose) -> Walk:
        """Goes through the labels in the order of the model."""
        logits = {label: resolver.logits() for label, resolver in self._resolvers.items()}
        return Walk({label: choose(label, one) for label, one in logits.items()}, logits)


class LstmController:
    """Each label after those before it: an LSTM that is told what was taken (the paper's, NNI's).

    Create it in the strategy's scope.

    Args:
        sizes: How many options each label has.
        units: Of the LSTM.
        tanh_constant: The largest of a logit, so that no option is ever ruled out.
    """

    def __init__(self, sizes: Mapping[str, int], *, units: int, tanh_constant: float) -> None:
        self._units = units
        self._tanh_constant = tanh_constant
        # Of float32 whatever the policy of the model is.
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
        """What is trained."""
        return [
            *self._cell.trainable_variables,
            self._start,
            *self._embeddings.values(),
            *self._heads.values(),
        ]

    def walk(self, choose: Choose) -> Walk:
        """Goes through the labels in the order of the model."""
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
