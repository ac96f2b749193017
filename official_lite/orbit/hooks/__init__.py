"""Hooks: Python of the user's own between the steps. `hook` has the order of the calls."""

from official_lite.orbit.hooks.action_hook import ActionHook
from official_lite.orbit.hooks.best_checkpoint import BestCheckpoint
from official_lite.orbit.hooks.early_stopping import EarlyStopping
from official_lite.orbit.hooks.export_model import ExportModel
from official_lite.orbit.hooks.gradient_norm import GradientNorm
from official_lite.orbit.hooks.hook import GraphHook, Hook
from official_lite.orbit.hooks.input_wait import InputWait
from official_lite.orbit.hooks.iteration_timer import IterationTimer
from official_lite.orbit.hooks.keras_callback import KerasCallback
from official_lite.orbit.hooks.lambda_hook import LambdaHook
from official_lite.orbit.hooks.learning_rate_logger import LearningRateLogger
from official_lite.orbit.hooks.memory_stats import MemoryStats
from official_lite.orbit.hooks.non_finite import NonFinite
from official_lite.orbit.hooks.periodic_checkpoint import PeriodicCheckpoint
from official_lite.orbit.hooks.precise_batch_norm import PreciseBatchNorm
from official_lite.orbit.hooks.profiler import Profiler
from official_lite.orbit.hooks.stall_warning import StallWarning
from official_lite.orbit.hooks.weight_averaging import StochasticWeightAveraging
from official_lite.orbit.hooks.weight_norms import WeightNorms

__all__ = [
    "GraphHook",
    "Hook",
    "ActionHook",
    "BestCheckpoint",
    "EarlyStopping",
    "ExportModel",
    "IterationTimer",
    "KerasCallback",
    "LambdaHook",
    "LearningRateLogger",
    "MemoryStats",
    "PeriodicCheckpoint",
    "Profiler",
    "StallWarning",
    "WeightNorms",
    "GradientNorm",
    "InputWait",
    "NonFinite",
    "PreciseBatchNorm",
    "StochasticWeightAveraging",
]
