"""Measurement of the speed and memory of a few training steps with a given batch size."""

import argparse
import dataclasses
import resource
import sys
import time
from typing import Any

import tensorflow as tf

from official_lite import pipeline
from official_lite.common import errors
from official_lite.core import train_data
from official_lite.run import preemption
from official_lite.tools import run_source
from official_lite.tools.tuning import trial_training

__all__ = ["Probe", "probe"]

# Duration of the measurement, after first loops that trace the step.
_SECONDS = 1.0
_SECONDS_PER_LOOP = 0.2
_FEWEST_STEPS = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe:
    """The result for one batch size.

    Attributes:
        examples_per_second: Training speed.
        memory: Peak memory of the process in bytes.
        unit: Batch sizes must be a multiple of this: the number of replicas times the number of
            micro-batches.
        problem: Why the data or config do not allow such steps; empty if they do.
        is_of_config: Whether the problem is an error in the config.
        is_exhausted: Whether the process ran out of memory.
    """

    examples_per_second: float = 0.0
    memory: int = 0
    unit: int = 1
    problem: str = ""
    is_of_config: bool = False
    is_exhausted: bool = False


def probe(args: argparse.Namespace, batch_size: int) -> Probe:
    """Train with batches of a given size. Call this in a process that may be killed.

    Args:
        args: The command line, with `source` and the arguments of `run_source`.
        batch_size: Examples per update.
    """
    params = run_source.read(args.source, args).params
    found: list[Probe] = []

    def measure(ctx: pipeline.ExperimentContext) -> None:
        found.append(_measure(ctx, batch_size))

    try:
        trial_training.train(
            params,
            measure,
            trainer={"train_steps": 10**6},
            task={"train_data": {"global_batch_size": batch_size}},
        )
    except errors.PreemptedError:
        raise
    except (tf.errors.ResourceExhaustedError, MemoryError):
        return Probe(memory=_peak_memory(), is_exhausted=True)
    except errors.OfficialLiteError as error:
        return Probe(
            memory=_peak_memory(),
            problem=f"{type(error).__name__}: {error}",
            is_of_config=isinstance(error, errors.ConfigError),
        )
    return found[0]


def _measure(ctx: pipeline.ExperimentContext, batch_size: int) -> Probe:
    trainer: Any = ctx.require("trainer")
    _seconds_of(trainer, 1)
    seconds = _seconds_of(trainer, 1)
    num_steps = max(1, int(_SECONDS_PER_LOOP / seconds))
    steps, started = 0, time.monotonic()
    while steps < _FEWEST_STEPS or time.monotonic() - started < _SECONDS:
        preemption.check()
        _seconds_of(trainer, num_steps)
        steps += num_steps
    rate = steps * batch_size / (time.monotonic() - started)
    replicas = ctx.require("strategy").num_replicas_in_sync
    unit = replicas * train_data.count_micro_batches(ctx.params)
    return Probe(examples_per_second=rate, memory=_peak_memory(), unit=unit)


def _seconds_of(trainer: Any, num_steps: int) -> float:
    started = time.monotonic()
    trainer.train(tf.constant(num_steps))
    return time.monotonic() - started


def _peak_memory() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
