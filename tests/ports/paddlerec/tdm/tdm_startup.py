"""A startup stage that distinguishes a single device from a cluster."""

import logging

import tensorflow as tf

from official_lite.pipeline.paddlerec import EngineMode, StartupBase

logger = logging.getLogger("tdm")


class Startup(StartupBase):
    def startup(self, context):
        logger.info("Run TDM Trainer Startup Pass")
        if context["engine"] == EngineMode.SINGLE:
            self._single_startup(context)
        else:
            self._cluster_startup(context)

        context["status"] = "train_pass"

    def _single_startup(self, context):
        self._load_all(context)
        logger.info("single startup")

    def _cluster_startup(self, context):
        self._load_all(context)
        logger.info("cluster startup of %d replicas", context.strategy.num_replicas_in_sync)

    def _load_all(self, context):
        # A checkpoint already contains the tree and what was learned since.
        if self.load(context) is None and not context.params.task.init_checkpoint:
            self._load_tree(context)

    def _load_tree(self, context):
        """Load TDM's tree, here the biases of the last layer."""
        bias = context.model.get_layer("logits").bias
        bias.assign(tf.range(10, dtype=bias.dtype))
