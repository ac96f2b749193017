"""The config of adapters: which layers get one, and which other weights are trained."""

import dataclasses

from official_lite.common import errors
from official_lite.modeling.hyperparams import base_config, field_checks

__all__ = ["AdaptersConfig"]


@dataclasses.dataclass
class AdaptersConfig(base_config.Config):
    """The config of low-rank adapters (LoRA, https://arxiv.org/abs/2106.09685).

    A layer with weight W computes with `W + alpha / rank * A @ B`. Only A and B are trained.

    Attributes:
        rank: The number of columns of A and of rows of B.
        alpha: The scale of the product; None means `rank`, which is a scale of 1.
        include: Regular expressions, searched for in the paths of `Dense`, `EinsumDense` and
            `Embedding` layers. The layers that match get an adapter; by default, all of them.
        exclude: Regular expressions for layers that get no adapter although `include` matches.
        trainable: Regular expressions, searched for in the paths of weights. The weights that match
            are trained and saved with the adapter, such as `bias$` or a new `^head/`. A layer
            whose kernel matches gets no adapter.
    """

    rank: int = 8
    alpha: float | None = None
    include: list[str] = dataclasses.field(default_factory=lambda: [".*"])
    exclude: list[str] = dataclasses.field(default_factory=list)
    trainable: list[str] = dataclasses.field(default_factory=list)

    def validate_fields(self) -> None:
        field_checks.require_positive(self, "rank")
        field_checks.require_positive_or_none(self, "alpha")
        field_checks.require_patterns(self, "include", "exclude", "trainable")
        if not self.include:
            raise errors.ConfigValueError(
                "`include` is empty, so no layer would get an adapter. Expected regular "
                "expressions, such as `.*` for all layers."
            )
