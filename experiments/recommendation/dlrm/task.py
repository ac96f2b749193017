"""The task of predicting clicks with DLRM."""

import keras

from experiments.recommendation.criteo import task
from experiments.recommendation.dlrm import model

__all__ = ["DlrmTask"]


class DlrmTask(task.CriteoTask):
    """A task that predicts the logit of a click on an impression with DLRM."""

    def build_model(self) -> keras.Model:
        return model.build_model(self.task_config.model, self.num_rows)
