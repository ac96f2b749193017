"""Optimizers, learning-rate schedules and moving averages of weights.

::

    config = optimization.OptimizationConfig(
        {
            "optimizer": {"type": "sgd", "sgd": {"momentum": 0.9}},
            "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.1}},
        }
    )
    factory = optimization.OptimizerFactory(config)
    optimizer = factory.build_optimizer(factory.build_learning_rate())

Importing this package loads only the configs. Names that need TensorFlow are imported on first
use, so listing or describing experiments does not load TensorFlow.
"""

import importlib
from typing import TYPE_CHECKING, Any

from official_lite.modeling.optimization.configs.learning_rate_config import (
    ConstantLrConfig,
    CosineLrConfig,
    DirectPowerLrConfig,
    ExponentialLrConfig,
    LinearWarmupConfig,
    PolynomialLrConfig,
    PolynomialWarmupConfig,
    PowerAndLinearDecayLrConfig,
    PowerDecayWithOffsetLrConfig,
    StepCosineLrConfig,
    StepwiseLrConfig,
)
from official_lite.modeling.optimization.configs.optimization_config import (
    LrConfig,
    OptimizationConfig,
    OptimizerConfig,
    WarmupConfig,
)
from official_lite.modeling.optimization.configs.optimizer_config import (
    AdafactorConfig,
    AdafactorKerasConfig,
    AdagradConfig,
    AdamaxConfig,
    AdamConfig,
    AdamExperimentalConfig,
    AdamWeightDecayConfig,
    AdamWeightDecayExperimentalConfig,
    BaseOptimizerConfig,
    EMAConfig,
    FtrlConfig,
    LAMBConfig,
    LARSConfig,
    LionConfig,
    MuonConfig,
    NadamConfig,
    RMSPropConfig,
    SGDConfig,
    SGDExperimentalConfig,
)

if TYPE_CHECKING:
    from official_lite.modeling.distributed_gradients import make_distributed
    from official_lite.modeling.optimization.adamw import AdamWeightDecay
    from official_lite.modeling.optimization.ema_optimizer import (
        ExponentialMovingAverage,
        get_moving_average,
    )
    from official_lite.modeling.optimization.lamb import LAMB
    from official_lite.modeling.optimization.lars import LARS
    from official_lite.modeling.optimization.lr_schedule import (
        CosineDecayWithOffset,
        DirectPowerDecay,
        ExponentialDecayWithOffset,
        LinearWarmup,
        PiecewiseConstantDecayWithOffset,
        PolynomialDecayWithOffset,
        PolynomialWarmUp,
        PowerAndLinearDecay,
        PowerDecayWithOffset,
        StepCosineDecayWithOffset,
    )
    from official_lite.modeling.optimization.optimizer_factory import (
        OptimizerFactory,
        register_optimizer_cls,
    )

__all__ = [
    "OptimizationConfig",
    "OptimizerConfig",
    "LrConfig",
    "WarmupConfig",
    "BaseOptimizerConfig",
    "SGDConfig",
    "SGDExperimentalConfig",
    "RMSPropConfig",
    "AdagradConfig",
    "AdamConfig",
    "AdamExperimentalConfig",
    "AdamWeightDecayConfig",
    "AdamWeightDecayExperimentalConfig",
    "LAMBConfig",
    "LARSConfig",
    "AdafactorConfig",
    "AdafactorKerasConfig",
    "LionConfig",
    "MuonConfig",
    "NadamConfig",
    "AdamaxConfig",
    "FtrlConfig",
    "EMAConfig",
    "ConstantLrConfig",
    "StepwiseLrConfig",
    "ExponentialLrConfig",
    "PolynomialLrConfig",
    "CosineLrConfig",
    "DirectPowerLrConfig",
    "PowerAndLinearDecayLrConfig",
    "PowerDecayWithOffsetLrConfig",
    "StepCosineLrConfig",
    "LinearWarmupConfig",
    "PolynomialWarmupConfig",
    "OptimizerFactory",
    "register_optimizer_cls",
    "make_distributed",
    "AdamWeightDecay",
    "LAMB",
    "LARS",
    "ExponentialMovingAverage",
    "get_moving_average",
    "PiecewiseConstantDecayWithOffset",
    "PolynomialDecayWithOffset",
    "ExponentialDecayWithOffset",
    "CosineDecayWithOffset",
    "LinearWarmup",
    "PolynomialWarmUp",
    "DirectPowerDecay",
    "PowerAndLinearDecay",
    "PowerDecayWithOffset",
    "StepCosineDecayWithOffset",
]

_MODULE_OF = {
    "make_distributed": "official_lite.modeling.distributed_gradients",
    "AdamWeightDecay": f"{__name__}.adamw",
    "ExponentialMovingAverage": f"{__name__}.ema_optimizer",
    "get_moving_average": f"{__name__}.ema_optimizer",
    "LAMB": f"{__name__}.lamb",
    "LARS": f"{__name__}.lars",
    "OptimizerFactory": f"{__name__}.optimizer_factory",
    "register_optimizer_cls": f"{__name__}.optimizer_factory",
    "PiecewiseConstantDecayWithOffset": f"{__name__}.lr_schedule",
    "PolynomialDecayWithOffset": f"{__name__}.lr_schedule",
    "ExponentialDecayWithOffset": f"{__name__}.lr_schedule",
    "CosineDecayWithOffset": f"{__name__}.lr_schedule",
    "LinearWarmup": f"{__name__}.lr_schedule",
    "PolynomialWarmUp": f"{__name__}.lr_schedule",
    "DirectPowerDecay": f"{__name__}.lr_schedule",
    "PowerAndLinearDecay": f"{__name__}.lr_schedule",
    "PowerDecayWithOffset": f"{__name__}.lr_schedule",
    "StepCosineDecayWithOffset": f"{__name__}.lr_schedule",
}
# `optimization.ema_optimizer.…` works without importing the submodule, as in the Model Garden.
_MODULES = ("adamw", "ema_optimizer", "lamb", "lars", "lr_schedule", "optimizer_factory")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
