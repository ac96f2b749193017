"""A hook that exports the model during training."""

import functools
import os

import keras
from absl import logging

from official_lite.checkpoint import directories
from official_lite.common import errors, suggestions
from official_lite.modeling import model_export
from official_lite.modeling.optimization import ema_optimizer
from official_lite.orbit import runner
from official_lite.orbit.hooks.hook import Hook
from official_lite.orbit.hooks.output_directory import output_directory


class ExportModel(Hook):
    """Exports the model to `<directory>/<step>.keras`, or as a SavedModel to `<directory>/<step>`.

    An export is written under a temporary name first, so every export under its final name is
    complete. If the optimizer averages the weights, the averaged weights are exported.

    Args:
      every_n_steps: The interval. 0 exports only at the end. Successful training always exports at
        the end.
      format: `keras` for `keras.models.load_model`, `tf_saved_model` for serving, `litert`, or
        `onnx`.
      subdir: The output directory, relative to the run's `model_dir` unless it is absolute.

    Raises:
      errors.ConfigValueError: The format is unknown.
    """

    def __init__(
        self, every_n_steps: int = 0, format: str = "keras", subdir: str = "export"
    ) -> None:
        if format not in model_export.FORMATS:
            raise errors.ConfigValueError(
                f"`format` of ExportModel is {format!r}. "
                + suggestions.did_you_mean(str(format), model_export.FORMATS)
            )
        self.every_n_steps = every_n_steps
        self._format = format
        self._subdir = subdir
        self._exported_step: int | None = None

    def before_train(self) -> None:
        self._model()
        output_directory(self, self._subdir)

    def after_step(self) -> None:
        self._export()

    def after_train(self, success: bool) -> None:
        is_new = self._exported_step != self.controller.step
        if success and is_new and not self.controller.is_interrupted:
            self._export()

    def _export(self) -> None:
        name = f"{self.controller.step}{model_export.FORMATS[self._format]}"
        path = os.path.join(self._directory, name)
        average = ema_optimizer.averaged_weights(runner.optimizer_of(self.trainer))
        # A model that puts numbers into the event storage would be saved with the storage.
        with average, self.controller.storage.muted():
            model_export.write_model(self._model(), path, self._format)
        self._exported_step = self.controller.step
        logging.info("Exported %s.", path)

    @functools.cached_property
    def _directory(self) -> str:
        # Every worker takes part, since reading a variable may be collective; the chief's is kept.
        return directories.writable_directory(
            output_directory(self, self._subdir), self.controller.strategy
        )

    def _model(self) -> keras.Model:
        model = runner.model_of(self.trainer)
        if not isinstance(model, keras.Model):
            raise errors.ConfigValueError(
                "ExportModel requires a trainer whose `model` is a Keras model; the `model` of "
                f"{type(self.trainer).__name__} is {type(model).__name__}."
            )
        return model
