"""Tree-based deep match: scores of the nodes of a tree, and a beam search down the tree."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from experiments.recommendation.tdm import configs, tree

__all__ = ["TreeMatcher"]


class TreeMatcher(keras.Model):
    """A model that scores tree nodes for a user with a history of items.

    In training, a target's path from the root is compared with other nodes of the same levels. The
    tree is part of the weights, so it is saved in the checkpoint. Until `plant` sets another tree,
    the items are in the order of their numbers.

    Args:
        config: The layers.
        num_items: The number of items.
    """

    def __init__(self, config: configs.TdmModelConfig, num_items: int) -> None:
        super().__init__(name="tdm")
        self.depth = tree.depth_for(num_items)
        self._num_negatives = config.num_negatives
        layers, width = keras.layers, config.embedding_width
        self.item_embeddings = layers.Embedding(num_items, width, name="items")
        self.node_embeddings = layers.Embedding(2 ** (self.depth + 1), width, name="nodes")
        hidden = [layers.Dense(units, activation="relu") for units in config.units]
        self.scorer = keras.Sequential([*hidden, layers.Dense(1, dtype="float32")], name="scorer")
        in_order = np.full(2**self.depth, tree.VACANT, np.int32)
        in_order[:num_items] = np.arange(num_items)
        self.item_of_leaf = self._add_constant("item_of_leaf", in_order)
        self.leaf_of_item = self._add_constant("leaf_of_item", _invert(in_order))
        # The trainer sets a different state of this generator in every step and on every replica.
        self.seed_generator = keras.random.SeedGenerator(0)

    def plant(self, item_of_leaf: np.ndarray) -> None:
        """Replace the tree.

        Args:
            item_of_leaf: The result of `tree.plant`.
        """
        self.item_of_leaf.assign(item_of_leaf)
        self.leaf_of_item.assign(_invert(item_of_leaf))

    def call(self, inputs: dict[str, tf.Tensor], training: bool | None = None) -> tf.Tensor:
        """Return logits of the nodes on the path to the target, each followed by other nodes.

        Args:
            inputs: `history` of shape (batch, length) and `target` of shape (batch,).
            training: Without effect.

        Returns:
            Logits of shape (batch, depth, 1 + num_negatives).
        """
        del training
        path = self.path_to(inputs["target"])[..., tf.newaxis]
        nodes = tf.concat([path, self._draw_others(path)], axis=-1)
        logits = self.score(inputs["history"], tf.reshape(nodes, [tf.shape(path)[0], -1]))
        return tf.reshape(logits, tf.shape(nodes))

    def path_to(self, items: tf.Tensor) -> tf.Tensor:
        """Return the leaves of items and the nodes above them, without the root: (batch, depth)."""
        leaves = 2**self.depth + tf.gather(self.leaf_of_item.value, items)
        return tf.bitwise.right_shift(leaves[:, tf.newaxis], tf.range(self.depth)[::-1])

    def score(self, history: tf.Tensor, nodes: tf.Tensor) -> tf.Tensor:
        """Return logits of nodes, each from the part of the history that the node attends to.

        Args:
            history: Items, of shape (batch, length).
            nodes: Nodes, of shape (batch, n).

        Returns:
            float32 of the shape of `nodes`.
        """
        items, wanted = self.item_embeddings(history), self.node_embeddings(nodes)
        attention = tf.nn.softmax(tf.matmul(wanted, items, transpose_b=True))
        attended = tf.matmul(attention, items)
        scores = self.scorer(tf.concat([wanted, attended, wanted * attended], axis=-1))
        return scores[..., 0]

    def recommend(self, history: tf.Tensor, count: int, beam_width: int) -> tf.Tensor:
        """Return the best items that a search down the tree finds, the best one first.

        Args:
            history: Items, of shape (batch, length).
            count: The number of items to recommend; at most twice the beam width.
            beam_width: The number of nodes of a level whose children the search visits.

        Returns:
            Items, int32 of shape (batch, count).
        """
        nodes = tf.ones_like(history[:, :1])
        for _ in range(self.depth - 1):
            children = _children(nodes)
            nodes = _best(children, self.score(history, children), beam_width)
        leaves = _children(nodes)
        items = tf.gather(self.item_of_leaf.value, leaves - 2**self.depth)
        scores = tf.where(items == tree.VACANT, -np.inf, self.score(history, leaves))
        return _best(items, scores, count)

    def _draw_others(self, path: tf.Tensor) -> tf.Tensor:
        """Draw negative nodes at the level of each path node: (batch, depth, num_negatives)."""
        first = tf.bitwise.left_shift(1, tf.range(1, self.depth + 1))[:, tf.newaxis]
        shape = (tf.shape(path)[0], self.depth, self._num_negatives)
        shares = keras.random.uniform(shape, seed=self.seed_generator)
        # The index of the first node of a level is equal to the number of nodes at that level.
        steps = 1 + tf.cast(shares * tf.cast(first - 1, tf.float32), tf.int32)
        return first + (path - first + steps) % first

    def _add_constant(self, name: str, values: np.ndarray) -> Any:
        return self.add_weight(
            shape=values.shape,
            dtype="int32",
            initializer=_constant_initializer(values),
            trainable=False,
            name=name,
        )


def _constant_initializer(values: np.ndarray) -> Callable[..., tf.Tensor]:
    return lambda shape, dtype=None: tf.constant(values, dtype)


def _invert(item_of_leaf: np.ndarray) -> np.ndarray:
    leaves = np.flatnonzero(item_of_leaf != tree.VACANT)
    leaf_of_item = np.empty(len(leaves), np.int32)
    leaf_of_item[item_of_leaf[leaves]] = leaves
    return leaf_of_item


def _children(nodes: tf.Tensor) -> tf.Tensor:
    return tf.concat([2 * nodes, 2 * nodes + 1], axis=1)


def _best(candidates: tf.Tensor, scores: tf.Tensor, count: int) -> tf.Tensor:
    count = min(count, candidates.shape[1])
    return tf.gather(candidates, tf.math.top_k(scores, count).indices, batch_dims=1)
