"""Trains a few steps with batches of one size, and says how fast they were and what they took."""

import argparse
import dataclasses
import resource
import sys
import time
from typing import Any

import tensorflow as tf

from official_lite import pipeline
from official_lite.common import errors
from official_lite.core import micro_batches
from official_lite.orbit import preemption
from official_lite.tools import run_source
from official_lite.tools.tuning import trial_training

__all__ = ["Probe", "probe"]

# What is measured, after a first loop that traces the step.
_SECONDS = 1.0
_SECONDS_PER_LOOP = 0.2
_FEWEST_STEPS = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe:
    """What came of a size.

    Attributes:
        examples_per_second: How fast it is trained.
        memory: The most that the process had, in bytes.
        unit: What the size has to be a multiple of: a replica's share of a micro-batch each.
        problem: Why there are no such steps, by the data or the config; empty if there are.
        is_exhausted: Whether it is the memory that has ended.
    """

    examples_per_second: float = 0.0
    memory: int = 0
    unit: int = 1
    problem: str = ""
    is_exhausted: bool = False


def probe(args: argparse.Namespace, batch_size: int) -> Probe:
    """Trains with batches of a size; meant for a process that may be lost.

    Args:
        args: The command line, with `source` and what `run_source` adds.
        batch_size: Examples in an update.
    """
    params = run_source.read(args.source, args).params
    found: list[Probe] = []

    def measure(ctx: pipeline.ExperimentContext) -> None:
        found.append(_measure(ctx, batch_size))

    try:
        trial_training.train(
            params,
            measure,
            trainer={"train_steps": 10**6, "train_epochs": None},
            task={"train_data": {"global_batch_size": batch_size}},
        )
    except errors.PreemptedError:
        raise
    except (tf.errors.ResourceExhaustedError, MemoryError):
        return Probe(memory=_peak_memory(), is_exhausted=True)
    except errors.OfficialLiteError as error:
        return Probe(memory=_peak_memory(), problem=f"{type(error).__name__}: {error}")
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
    unit = replicas * micro_batches.count_micro_batches(ctx.params)
    return Probe(examples_per_second=rate, memory=_peak_memory(), unit=unit)


def _seconds_of(trainer: Any, num_steps: int) -> float:
    started = time.monotonic()
    trainer.train(tf.constant(num_steps))
    return time.monotonic() - started


def _peak_memory() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
