"""Clicks by DLRM."""

import keras

from experiments.recommendation.criteo import task
from experiments.recommendation.dlrm import model

__all__ = ["DlrmTask"]


class DlrmTask(task.CriteoTask):
    """From an impression to the logit of a click on it, by DLRM."""

    def build_model(self) -> keras.Model:
        return model.build_model(self.task_config.model, self.num_rows)
