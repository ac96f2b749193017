from official_lite.modeling.distributed_gradients import make_distributed as make_distributed
from official_lite.modeling.optimization.adamw import AdamWeightDecay as AdamWeightDecay
from official_lite.modeling.optimization.configs.learning_rate_config import (
    ConstantLrConfig as ConstantLrConfig,
    CosineLrConfig as CosineLrConfig,
    DirectPowerLrConfig as DirectPowerLrConfig,
    ExponentialLrConfig as ExponentialLrConfig,
    LinearWarmupConfig as LinearWarmupConfig,
    PolynomialLrConfig as PolynomialLrConfig,
    PolynomialWarmupConfig as PolynomialWarmupConfig,
    PowerAndLinearDecayLrConfig as PowerAndLinearDecayLrConfig,
    PowerDecayWithOffsetLrConfig as PowerDecayWithOffsetLrConfig,
    StepCosineLrConfig as StepCosineLrConfig,
    StepwiseLrConfig as StepwiseLrConfig,
)
from official_lite.modeling.optimization.configs.optimization_config import (
    LrConfig as LrConfig,
    OptimizationConfig as OptimizationConfig,
    OptimizerConfig as OptimizerConfig,
    WarmupConfig as WarmupConfig,
)
from official_lite.modeling.optimization.configs.optimizer_config import (
    AdadeltaConfig as AdadeltaConfig,
    AdafactorConfig as AdafactorConfig,
    AdafactorKerasConfig as AdafactorKerasConfig,
    AdagradConfig as AdagradConfig,
    AdamaxConfig as AdamaxConfig,
    AdamConfig as AdamConfig,
    AdamExperimentalConfig as AdamExperimentalConfig,
    AdamWeightDecayConfig as AdamWeightDecayConfig,
    AdamWeightDecayExperimentalConfig as AdamWeightDecayExperimentalConfig,
    BaseOptimizerConfig as BaseOptimizerConfig,
    EMAConfig as EMAConfig,
    FtrlConfig as FtrlConfig,
    LAMBConfig as LAMBConfig,
    LARSConfig as LARSConfig,
    LionConfig as LionConfig,
    MuonConfig as MuonConfig,
    NadamConfig as NadamConfig,
    RMSPropConfig as RMSPropConfig,
    ScheduleFreeAdamWConfig as ScheduleFreeAdamWConfig,
    SGDConfig as SGDConfig,
    SGDExperimentalConfig as SGDExperimentalConfig,
)
from official_lite.modeling.optimization.ema_optimizer import (
    ExponentialMovingAverage as ExponentialMovingAverage,
    get_moving_average as get_moving_average,
)
from official_lite.modeling.optimization.lamb import LAMB as LAMB
from official_lite.modeling.optimization.lars import LARS as LARS
from official_lite.modeling.optimization.lr_schedule import (
    CosineDecayWithOffset as CosineDecayWithOffset,
    DirectPowerDecay as DirectPowerDecay,
    ExponentialDecayWithOffset as ExponentialDecayWithOffset,
    LinearWarmup as LinearWarmup,
    PiecewiseConstantDecayWithOffset as PiecewiseConstantDecayWithOffset,
    PolynomialDecayWithOffset as PolynomialDecayWithOffset,
    PolynomialWarmUp as PolynomialWarmUp,
    PowerAndLinearDecay as PowerAndLinearDecay,
    PowerDecayWithOffset as PowerDecayWithOffset,
    StepCosineDecayWithOffset as StepCosineDecayWithOffset,
)
from official_lite.modeling.optimization.optimizer_factory import (
    OptimizerFactory as OptimizerFactory,
    register_optimizer_cls as register_optimizer_cls,
)
