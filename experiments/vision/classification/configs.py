"""The configs that classification experiments share."""

import dataclasses

from official_lite.common import errors
from official_lite.core import config_definitions as cfg
from official_lite.modeling import hyperparams
from official_lite.modeling.hyperparams import field_checks

__all__ = ["ClassificationConfig", "LossesConfig"]


@dataclasses.dataclass
class LossesConfig(hyperparams.Config):
    """The terms of the loss.

    Attributes:
        label_smoothing: The fraction of a label's probability that is shared by all classes.
        l2_weight_decay: The factor of half the sum of the squares of all kernels.
    """

    label_smoothing: float = 0.0
    l2_weight_decay: float = 0.0

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_not_negative(self, "l2_weight_decay")
        if not 0 <= self.label_smoothing < 1:
            raise errors.ConfigValueError(
                f"`label_smoothing` is {self.label_smoothing}; expected 0 or more, and less than 1."
            )


@dataclasses.dataclass
class ClassificationConfig(cfg.TaskConfig):
    """The config of image classification.

    Attributes:
        losses: The terms of the loss.
        top_k: Also report how often the label is among this number of best classes; 0 omits the
            metric.
    """

    losses: LossesConfig = dataclasses.field(default_factory=LossesConfig)
    top_k: int = 5

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_not_negative(self, "top_k")
