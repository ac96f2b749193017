"""Clicks by DeepFM."""

import keras

from experiments.recommendation.criteo import task
from experiments.recommendation.deepfm import model

__all__ = ["DeepFmTask"]


class DeepFmTask(task.CriteoTask):
    """From an impression to the logit of a click on it, by DeepFM."""

    def build_model(self) -> keras.Model:
        return model.build_model(self.task_config.model, self.num_rows)
