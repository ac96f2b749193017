"""The task of predicting clicks with DeepFM."""

import keras

from experiments.recommendation.criteo import task
from experiments.recommendation.deepfm import model

__all__ = ["DeepFmTask"]


class DeepFmTask(task.CriteoTask):
    """A task that predicts the logit of a click on an impression with DeepFM."""

    def build_model(self) -> keras.Model:
        return model.build_model(self.task_config.model, self.num_rows)
