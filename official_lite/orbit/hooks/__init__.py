"""Hooks: user-defined Python code between steps. The module `hook` documents the call order."""

from official_lite.orbit.hooks.action_hook import ActionHook as ActionHook
from official_lite.orbit.hooks.best_checkpoint import BestCheckpoint as BestCheckpoint
from official_lite.orbit.hooks.early_stopping import EarlyStopping as EarlyStopping
from official_lite.orbit.hooks.export_model import ExportModel as ExportModel
from official_lite.orbit.hooks.gradient_norm import GradientNorm as GradientNorm
from official_lite.orbit.hooks.graph_summary import GraphSummary as GraphSummary
from official_lite.orbit.hooks.hook import GraphHook as GraphHook, Hook as Hook
from official_lite.orbit.hooks.input_wait import InputWait as InputWait
from official_lite.orbit.hooks.iteration_timer import IterationTimer as IterationTimer
from official_lite.orbit.hooks.keras_callback import KerasCallback as KerasCallback
from official_lite.orbit.hooks.lambda_hook import LambdaHook as LambdaHook
from official_lite.orbit.hooks.learning_rate_logger import LearningRateLogger as LearningRateLogger
from official_lite.orbit.hooks.memory_stats import MemoryStats as MemoryStats
from official_lite.orbit.hooks.non_finite import NonFinite as NonFinite
from official_lite.orbit.hooks.periodic_checkpoint import PeriodicCheckpoint as PeriodicCheckpoint
from official_lite.orbit.hooks.precise_batch_norm import PreciseBatchNorm as PreciseBatchNorm
from official_lite.orbit.hooks.profiler import Profiler as Profiler
from official_lite.orbit.hooks.stall_warning import StallWarning as StallWarning
from official_lite.orbit.hooks.weight_averaging import (
    StochasticWeightAveraging as StochasticWeightAveraging,
)
from official_lite.orbit.hooks.weight_norms import WeightNorms as WeightNorms
