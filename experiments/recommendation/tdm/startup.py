"""A startup stage that builds the tree before the first step.

As in PaddleRec, startup on a cluster and startup in a single process are separate methods.
"""

from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from experiments.recommendation.tdm import data, tree
from official_lite.common import errors
from official_lite.pipeline import paddlerec

__all__ = ["TreeStartup"]


class TreeStartup(paddlerec.StartupBase):
    """A stage that restores a checkpoint with its tree, or builds a tree for the training data."""

    def startup(self, context: Any) -> None:
        """Run the stage."""
        if context["engine"] == paddlerec.EngineMode.CLUSTER:
            self._cluster_startup(context)
        else:
            self._single_startup(context)
        context["status"] = "train_pass"

    def _single_startup(self, context: Any) -> None:
        if self._load(context):
            return
        context.model.plant(_build_tree(context.params.task))
        logging.info("Built a tree of depth %d.", context.model.depth)

    def _cluster_startup(self, context: Any) -> None:
        """Build the tree on each worker, and check that all workers have built the same tree."""
        if self._load(context):
            return
        item_of_leaf = _build_tree(context.params.task)
        _require_same(context.strategy, item_of_leaf)
        context.model.plant(item_of_leaf)
        logging.info("All workers built the same tree of depth %d.", context.model.depth)

    def _load(self, context: Any) -> bool:
        """Restore saved weights, if any, and return whether a tree was restored with them."""
        return self.load(context) is not None or bool(context.params.task.init_checkpoint)


def _build_tree(config: Any) -> np.ndarray:
    params = config.train_data
    histories = data.load_split(params.split, params.num_generated, config.num_topics)
    num_items = config.num_topics * data.ITEMS_PER_TOPIC
    return tree.plant(tree.item_vectors(histories.items, num_items))


def _require_same(strategy: tf.distribute.Strategy, item_of_leaf: np.ndarray) -> None:
    own = item_of_leaf.astype(np.int64)

    def sum_of_all() -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(own))

    summed = strategy.experimental_local_results(strategy.run(sum_of_all))[0]
    if not np.array_equal(summed, own * strategy.num_replicas_in_sync):
        raise errors.DataError(
            "The workers built different trees. Make sure that they use the same training data."
        )
