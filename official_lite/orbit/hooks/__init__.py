"""Hooks: user-defined Python code between steps. The module `hook` documents the call order."""

from official_lite.orbit.hooks.batch_norm_statistics import PreciseBatchNorm as PreciseBatchNorm
from official_lite.orbit.hooks.hook import (
    ActionHook as ActionHook,
    GraphHook as GraphHook,
    Hook as Hook,
    LambdaHook as LambdaHook,
)
from official_lite.orbit.hooks.input_wait import InputWait as InputWait
from official_lite.orbit.hooks.keepers import (
    BestCheckpoint as BestCheckpoint,
    ExportModel as ExportModel,
    PeriodicCheckpoint as PeriodicCheckpoint,
)
from official_lite.orbit.hooks.keras_callback import KerasCallback as KerasCallback
from official_lite.orbit.hooks.monitors import (
    GradientNorm as GradientNorm,
    GraphSummary as GraphSummary,
    IterationTimer as IterationTimer,
    LearningRateLogger as LearningRateLogger,
    MemoryStats as MemoryStats,
    Profiler as Profiler,
    StallWarning as StallWarning,
    WeightNorms as WeightNorms,
)
from official_lite.orbit.hooks.non_finite import NonFinite as NonFinite
from official_lite.orbit.hooks.watched_metric import EarlyStopping as EarlyStopping
from official_lite.orbit.hooks.weight_averaging import (
    StochasticWeightAveraging as StochasticWeightAveraging,
)
