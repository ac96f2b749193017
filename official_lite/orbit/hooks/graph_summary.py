"""A hook that writes the graph of a training step for TensorBoard."""

import tensorflow as tf

from official_lite.checkpoint import directories
from official_lite.common import errors
from official_lite.orbit import triggers
from official_lite.orbit.hooks.hook import Hook
from official_lite.orbit.hooks.output_directory import output_directory


class GraphSummary(Hook):
    """Writes the graphs that TensorFlow executes in one training step, for TensorBoard's Graphs page.

    Args:
      step: The training step, counted from 1. A run that is resumed after this step writes nothing.
      directory: The output directory, relative to the run's `model_dir` unless it is absolute. It
        needs to be separate from other event files, because TensorBoard reads the files of a
        directory one after another.

    Raises:
      errors.ConfigValueError: `step` is less than 1.
    """

    def __init__(self, step: int = 1, directory: str = "graph") -> None:
        if step < 1:
            raise errors.ConfigValueError(
                f"GraphSummary can't write the graph of step {step}. Steps are counted from 1."
            )
        self._step = step
        self._directory = directory
        self._is_active = False

    def build_trigger(self) -> triggers.Trigger:
        return triggers.AtSteps([self._step - 1, self._step])

    def before_train(self) -> None:
        output_directory(self, self._directory)
        self._start()

    def after_step(self) -> None:
        if self._is_active:
            self._export()
        self._start()

    def after_train(self, success: bool) -> None:
        if self._is_active:
            self._is_active = False
            tf.summary.trace_off()

    def _start(self) -> None:
        is_due = self.controller.step == self._step - 1
        if is_due and directories.is_chief(self.controller.strategy):
            self._is_active = True
            tf.summary.trace_on(graph=True)

    def _export(self) -> None:
        self._is_active = False
        writer = tf.summary.create_file_writer(output_directory(self, self._directory))
        # Inside the loop, summaries are recorded at an interval only.
        with writer.as_default(), tf.summary.record_if(True):
            tf.summary.trace_export("train_step", step=self.controller.step)
        writer.close()
