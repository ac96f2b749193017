"""The configs that classifications share."""

import dataclasses

from official_lite.common import errors
from official_lite.core import config_definitions as cfg
from official_lite.modeling import hyperparams
from official_lite.modeling.hyperparams import field_checks

__all__ = ["ClassificationConfig", "LossesConfig"]


@dataclasses.dataclass
class LossesConfig(hyperparams.Config):
    """What is minimized.

    Attributes:
        label_smoothing: How much of a label's probability is shared by all classes.
        l2_weight_decay: Factor of half the sum of the squares of all kernels.
    """

    label_smoothing: float = 0.0
    l2_weight_decay: float = 0.0

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_not_negative(self, "l2_weight_decay")
        if not 0 <= self.label_smoothing < 1:
            raise errors.ConfigValueError(
                f"`label_smoothing` is {self.label_smoothing}; wanted 0 or more, and less than 1."
            )


@dataclasses.dataclass
class ClassificationConfig(cfg.TaskConfig):
    """Classification of images.

    Attributes:
        losses: What is minimized.
        top_k: Besides the accuracy, how often the label is among so many best; 0 leaves it out.
    """

    losses: LossesConfig = dataclasses.field(default_factory=LossesConfig)
    top_k: int = 5

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_not_negative(self, "top_k")
