"""A hook that writes the graph of the training steps for TensorBoard."""

import math
from typing import Any

import tensorflow as tf
from absl import logging

from official_lite.checkpoint import directories
from official_lite.orbit import triggers
from official_lite.orbit.hooks.hook import Hook
from official_lite.orbit.hooks.output_directory import output_directory


class GraphSummary(Hook):
    """Writes the graph of the compiled training loop, for TensorBoard's Graphs page.

    The graph is written after the first step of each start. If nothing is compiled, the hook logs a
    warning.

    Args:
      directory: The output directory, relative to the run's `model_dir` unless it is absolute. It
        must not contain other event files, because TensorBoard reads the files of a directory one
        after another.
    """

    def __init__(self, directory: str = "graph") -> None:
        self._directory = directory
        self._first_step = _FirstStep()

    def build_trigger(self) -> triggers.Trigger:
        return self._first_step

    def before_train(self) -> None:
        output_directory(self, self._directory)
        self._first_step.is_over = False

    def after_step(self) -> None:
        self._first_step.is_over = True
        if directories.is_chief(self.controller.strategy):
            self._write()

    def _write(self) -> None:
        loop: Any = getattr(self.trainer, "train_loop", None)
        functions = [] if loop is None else loop.trace()
        if not functions:
            logging.warning("GraphSummary writes no graph, because no training loop is compiled.")
            return
        writer = tf.summary.create_file_writer(output_directory(self, self._directory))
        # Inside the loop, summaries are recorded at an interval only.
        with writer.as_default(), tf.summary.record_if(True):
            tf.summary.graph(functions[0].graph)
        writer.close()


class _FirstStep(triggers.Trigger):
    """Due after the first step; the hook says when that is over."""

    def __init__(self) -> None:
        self.is_over = False

    def next_step(self, step: int) -> float:
        return math.inf if self.is_over else step + 1

    def is_due(self, step: int) -> bool:
        return not self.is_over
