"""Config of the optimizer, its learning rate and the moving average of the weights.

::

    OptimizationConfig(
        {
            "optimizer": {"type": "adamw", "adamw": {"weight_decay_rate": 0.01}},
            "learning_rate": {
                "type": "cosine",
                "cosine": {"initial_learning_rate": 1e-3, "decay_steps": 10_000},
            },
            "warmup": {"type": "linear", "linear": {"warmup_steps": 500}},
        }
    )
"""

import dataclasses
import math
from collections.abc import Iterator

from official_lite.common import errors
from official_lite.modeling.hyperparams import base_config
from official_lite.modeling.optimization.configs import learning_rate_config as lr_cfg
from official_lite.modeling.optimization.configs import optimizer_config as opt_cfg

__all__ = ["OptimizerConfig", "LrConfig", "WarmupConfig", "OptimizationConfig"]


@dataclasses.dataclass
class OptimizerConfig(base_config.OneOfConfig):
    """Choice of the optimizer: `type` names one of the other fields."""

    type: str | None = None
    sgd: opt_cfg.SGDConfig = dataclasses.field(default_factory=opt_cfg.SGDConfig)
    sgd_experimental: opt_cfg.SGDExperimentalConfig = dataclasses.field(
        default_factory=opt_cfg.SGDExperimentalConfig
    )
    adam: opt_cfg.AdamConfig = dataclasses.field(default_factory=opt_cfg.AdamConfig)
    adam_experimental: opt_cfg.AdamExperimentalConfig = dataclasses.field(
        default_factory=opt_cfg.AdamExperimentalConfig
    )
    adamw: opt_cfg.AdamWeightDecayConfig = dataclasses.field(
        default_factory=opt_cfg.AdamWeightDecayConfig
    )
    adamw_experimental: opt_cfg.AdamWeightDecayExperimentalConfig = dataclasses.field(
        default_factory=opt_cfg.AdamWeightDecayExperimentalConfig
    )
    lamb: opt_cfg.LAMBConfig = dataclasses.field(default_factory=opt_cfg.LAMBConfig)
    rmsprop: opt_cfg.RMSPropConfig = dataclasses.field(default_factory=opt_cfg.RMSPropConfig)
    lars: opt_cfg.LARSConfig = dataclasses.field(default_factory=opt_cfg.LARSConfig)
    adagrad: opt_cfg.AdagradConfig = dataclasses.field(default_factory=opt_cfg.AdagradConfig)
    adafactor: opt_cfg.AdafactorConfig = dataclasses.field(default_factory=opt_cfg.AdafactorConfig)
    adafactor_keras: opt_cfg.AdafactorKerasConfig = dataclasses.field(
        default_factory=opt_cfg.AdafactorKerasConfig
    )
    lion: opt_cfg.LionConfig = dataclasses.field(default_factory=opt_cfg.LionConfig)
    muon: opt_cfg.MuonConfig = dataclasses.field(default_factory=opt_cfg.MuonConfig)
    nadam: opt_cfg.NadamConfig = dataclasses.field(default_factory=opt_cfg.NadamConfig)
    adamax: opt_cfg.AdamaxConfig = dataclasses.field(default_factory=opt_cfg.AdamaxConfig)
    ftrl: opt_cfg.FtrlConfig = dataclasses.field(default_factory=opt_cfg.FtrlConfig)
    adadelta: opt_cfg.AdadeltaConfig = dataclasses.field(default_factory=opt_cfg.AdadeltaConfig)
    schedule_free_adamw: opt_cfg.ScheduleFreeAdamWConfig = dataclasses.field(
        default_factory=opt_cfg.ScheduleFreeAdamWConfig
    )


@dataclasses.dataclass
class LrConfig(base_config.OneOfConfig):
    """Choice of the learning-rate schedule: `type` names one of the other fields."""

    type: str | None = None
    constant: lr_cfg.ConstantLrConfig = dataclasses.field(default_factory=lr_cfg.ConstantLrConfig)
    stepwise: lr_cfg.StepwiseLrConfig = dataclasses.field(default_factory=lr_cfg.StepwiseLrConfig)
    exponential: lr_cfg.ExponentialLrConfig = dataclasses.field(
        default_factory=lr_cfg.ExponentialLrConfig
    )
    polynomial: lr_cfg.PolynomialLrConfig = dataclasses.field(
        default_factory=lr_cfg.PolynomialLrConfig
    )
    cosine: lr_cfg.CosineLrConfig = dataclasses.field(default_factory=lr_cfg.CosineLrConfig)
    power: lr_cfg.DirectPowerLrConfig = dataclasses.field(
        default_factory=lr_cfg.DirectPowerLrConfig
    )
    power_linear: lr_cfg.PowerAndLinearDecayLrConfig = dataclasses.field(
        default_factory=lr_cfg.PowerAndLinearDecayLrConfig
    )
    power_with_offset: lr_cfg.PowerDecayWithOffsetLrConfig = dataclasses.field(
        default_factory=lr_cfg.PowerDecayWithOffsetLrConfig
    )
    step_cosine_with_offset: lr_cfg.StepCosineLrConfig = dataclasses.field(
        default_factory=lr_cfg.StepCosineLrConfig
    )


@dataclasses.dataclass
class WarmupConfig(base_config.OneOfConfig):
    """Choice of the warm-up: `type` names one of the other fields; None disables the warm-up."""

    type: str | None = None
    linear: lr_cfg.LinearWarmupConfig = dataclasses.field(default_factory=lr_cfg.LinearWarmupConfig)
    polynomial: lr_cfg.PolynomialWarmupConfig = dataclasses.field(
        default_factory=lr_cfg.PolynomialWarmupConfig
    )


@dataclasses.dataclass
class OptimizationConfig(base_config.Config):
    """Config of how the weights are updated.

    Attributes:
        optimizer: The optimizer; its `type` must be set.
        ema: The moving average of the weights; None disables it.
        learning_rate: The learning rate; its `type` must be set.
        warmup: The warm-up, which replaces the learning rate during the first steps.
    """

    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    ema: opt_cfg.EMAConfig | None = None
    learning_rate: LrConfig = dataclasses.field(default_factory=LrConfig)
    warmup: WarmupConfig = dataclasses.field(default_factory=WarmupConfig)

    def validate_fields(self) -> None:
        for block in ("learning_rate", "warmup"):
            choice = getattr(self, block)
            for name, value in (choice.as_dict().get(choice.type) or {}).items():
                _require_usable(f"{block}.{choice.type}.{name}", value)


def _require_usable(path: str, value: object) -> None:
    is_rate = path.endswith(("learning_rate", "values"))
    for number in _numbers(value):
        if not math.isfinite(number) or (is_rate and number < 0):
            wanted = "a finite number, 0 or above" if is_rate else "a finite number"
            raise errors.ConfigValueError(f"`{path}` is {value}; expected {wanted}.")


def _numbers(value: object) -> Iterator[int | float]:
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, dict | list | tuple):
        for element in value.values() if isinstance(value, dict) else value:
            yield from _numbers(element)
