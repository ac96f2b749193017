"""The controllers of ENAS: distributions over paths through the model.

A controller is walked: it computes the logits of one label after the other, and `choose` selects an
option for each. Sampling a path, finding the preferred path and computing the probability of a
known path are walks that differ only in `choose`::

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
"""Function that takes a label and its logits and returns the int32 index of an option."""

_INITIAL_SCALE = 0.1


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

    def __init__(self, by_label: Mapping[str, resolvers.PathResolver]) -> None:
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
