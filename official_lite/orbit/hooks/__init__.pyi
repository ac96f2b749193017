from official_lite.orbit.hooks.batch_norm_statistics import (
    PreciseBatchNorm as PreciseBatchNorm,
    StochasticWeightAveraging as StochasticWeightAveraging,
)
from official_lite.orbit.hooks.hook import (
    ActionHook as ActionHook,
    GraphHook as GraphHook,
    Hook as Hook,
    LambdaHook as LambdaHook,
)
from official_lite.orbit.hooks.keras_callback import KerasCallback as KerasCallback
from official_lite.orbit.hooks.monitors import (
    GradientNorm as GradientNorm,
    GraphSummary as GraphSummary,
    InputWait as InputWait,
    IterationTimer as IterationTimer,
    LearningRateLogger as LearningRateLogger,
    MemoryStats as MemoryStats,
    Profiler as Profiler,
    StallWarning as StallWarning,
    WeightNorms as WeightNorms,
)
from official_lite.orbit.hooks.non_finite import NonFinite as NonFinite
from official_lite.orbit.hooks.saving_and_stopping import (
    BestCheckpoint as BestCheckpoint,
    EarlyStopping as EarlyStopping,
    ExportModel as ExportModel,
    PeriodicCheckpoint as PeriodicCheckpoint,
)
