"""Short training runs in a temporary directory, on which `tune` bases its results.

A sweep is a learning-rate range test (Smith, 2015): it records the loss while the learning rate
grows from step to step. A probe measures the speed and memory of a few steps with one batch size.
"""

import argparse
import dataclasses
import math
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from official_lite import orbit, pipeline
from official_lite.common import errors, preemption
from official_lite.core import base_trainer, train_data
from official_lite.modeling import hyperparams
from official_lite.modeling.optimization.configs import learning_rate_config
from official_lite.tools import sources

# Overrides for runs of a few steps. They turn off hooks, output, intervals in epochs, and restarts
# after running out of memory. They also turn off the check for non-finite values, because a sweep
# is expected to diverge.
_LEFT_OUT: dict[str, Any] = {
    "train_epochs": None,
    "validate_every_epochs": None,
    "checkpoint_every_epochs": None,
    "steps_per_epoch": 0,
    "hooks": [],
    "writers": [],
    "recovery_max_trials": -1,
    "fit_memory": False,
    "best_checkpoint_export_subdir": "",
    "best_checkpoint_eval_metric": "",
}


# Half width of the window in which a sweep is smoothed, as a fraction of all steps.
_WINDOW = 1 / 20
# The number of steps over which losses are averaged to detect divergence.
_LAST_STEPS = 5
_MIN_RATES = 30
_ROWS = 12

# Duration of a probe's measurement in seconds, after two warm-up steps.
_SECONDS = 1.0
_SECONDS_PER_LOOP = 0.2
_MIN_TIMED_STEPS = 2


def train(
    params: Any,
    run: Callable[[pipeline.ExperimentContext], None],
    *,
    trainer: Mapping[str, Any],
    task: Mapping[str, Any] | None = None,
) -> None:
    """Prepare, build and initialize a training run, then call `run` in place of the training loop.

    Args:
        params: The config. Its hooks and writers are ignored.
        run: Replaces the `run` stage.
        trainer: Overrides of `params.trainer`.
        task: Overrides of `params.task`.

    Raises:
        errors.ConfigValueError: The experiment has phases.
        errors.OfficialLiteError: Training failed.
    """
    if params.phases:
        raise errors.ConfigValueError(
            "The experiment has `phases`. Pass the model directory of one phase, or set "
            "`phases=[]` and the fields of that phase."
        )
    changed = params.replace(trainer={**_LEFT_OUT, **trainer}, task=dict(task or {}))
    changed.validate()
    changed.lock()

    class Trial(pipeline.Run):
        def __call__(self, ctx: pipeline.ExperimentContext) -> str | None:
            run(ctx)
            return None

    stages = {"run": Trial, "finalize": _Silence}
    with tempfile.TemporaryDirectory() as model_dir:
        pipeline.RunPipeline(changed, "train", model_dir, stages=stages).run()


class _Silence(pipeline.Finalize):
    """A `finalize` stage that does nothing: there are no results to show or return."""

    def __call__(self, ctx: pipeline.ExperimentContext) -> str | None:
        return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RateSweep:
    """The result of a learning-rate range test.

    Attributes:
        learning_rates: Learning rate of each step, increasing.
        losses: Loss of each step.
        smoothed: Losses, each averaged with its neighbors.
        has_diverged: Whether the loss diverged, which ended the test.
        suggestion: The rate at which the smoothed loss fell fastest; None if it never fell.
    """

    learning_rates: Sequence[float]
    losses: Sequence[float]
    smoothed: Sequence[float]
    has_diverged: bool
    suggestion: float | None

    def some_points(self) -> list[tuple[float, float]]:
        """Return a few rates with their smoothed losses, for a table."""
        points = list(zip(self.learning_rates, self.smoothed, strict=True))
        count = min(_ROWS, len(points))
        return [points[(len(points) - 1) * n // max(1, count - 1)] for n in range(count)]

    def describe(self) -> str:
        """Describe the result in one or two sentences."""
        end = self.learning_rates[-1]
        limit = (
            f"The loss diverged at {end:.2g}."
            if self.has_diverged
            else f"The sweep ended at {end:.2g}."
        )
        if self.suggestion is None:
            return f"The loss never decreased, so there is no suggestion. {limit}"
        return f"The loss decreased fastest at the learning rate {self.suggestion:.2g}. {limit}"


def run_sweep(params: Any, *, min_rate: float, max_rate: float, num_steps: int) -> RateSweep:
    """Train an experiment from the start with a growing learning rate; leave no files behind.

    Args:
        params: The config. Its schedule, warm-up, hooks and writers are ignored.
        min_rate: Learning rate of the first step.
        max_rate: Learning rate of the last step. Rates grow by a constant factor.
        num_steps: Number of steps.

    Raises:
        errors.ConfigValueError: The rates or the number of steps are invalid, or the task does not
            take its learning rate from the config.
    """
    if not 0 < min_rate < max_rate or num_steps < _MIN_RATES:
        raise errors.ConfigValueError(
            f"A sweep requires 0 < min_rate < max_rate and at least {_MIN_RATES} steps; got "
            f"{min_rate:g}, {max_rate:g} and {num_steps} steps."
        )
    rates: list[float] = []
    losses: list[float] = []

    def sweep(ctx: pipeline.ExperimentContext) -> None:
        _sweep(ctx.require("trainer"), num_steps, rates, losses)

    # Do not load a step count, because the schedule of the sweep would start at that step.
    has_count = hyperparams.get_by_path(params, "task.init_checkpoint_optimizer") == "all"
    # Set all fields, because the experiment's own schedule may have changed any of them.
    schedule = learning_rate_config.ExponentialLrConfig(
        initial_learning_rate=min_rate,
        decay_rate=max_rate / min_rate,
        decay_steps=num_steps - 1,
        staircase=False,
    )
    config = {
        "learning_rate": {"type": "exponential", "exponential": schedule.as_dict()},
        "warmup": {"type": None},
    }
    optimizer = params.trainer.optimizer_config.optimizer
    if hasattr(optimizer.get(), "warmup_steps"):  # A warm-up of the optimizer itself.
        config["optimizer"] = {optimizer.type: {"warmup_steps": 0}}
    train(
        params,
        sweep,
        trainer={"train_steps": num_steps, "optimizer_config": config},
        task={"init_checkpoint_optimizer": "slots"} if has_count else None,
    )
    return analyze(rates, losses)


def analyze(learning_rates: Sequence[float], losses: Sequence[float]) -> RateSweep:
    """Smooth the losses of a sweep and find the suggested rate."""
    # Smooth twice, so that the losses closest to each step have the largest weight.
    smoothed = _smooth(_smooth(losses))
    return RateSweep(
        learning_rates=list(learning_rates),
        losses=list(losses),
        smoothed=smoothed,
        has_diverged=_has_diverged(losses),
        suggestion=_steepest(learning_rates, smoothed),
    )


def draw(sweep: RateSweep, path: str, *, title: str = "") -> None:
    """Plot the losses over the rates and mark the suggestion.

    Args:
        sweep: The sweep.
        path: A file that ends in `.png` or `.svg`.
        title: Title of the plot.

    Raises:
        errors.ConfigValueError: The path has another suffix, or matplotlib is not installed.
    """
    if not path.endswith((".png", ".svg")):
        raise errors.ConfigValueError(f"--plot={path} must end in .png or .svg.")
    try:
        from matplotlib import figure
    except ModuleNotFoundError as error:
        raise errors.ConfigValueError(
            "A plot requires matplotlib, which is not installed: pip install matplotlib"
        ) from error
    # Avoid pyplot, which would look for a display.
    picture = figure.Figure(figsize=(8.0, 5.0), layout="constrained")
    axes = picture.subplots()
    axes.semilogx(sweep.learning_rates, sweep.losses, color="0.75", label="each step")
    axes.semilogx(sweep.learning_rates, sweep.smoothed, color="C0", label="smoothed")
    if sweep.suggestion is not None:
        axes.axvline(sweep.suggestion, color="C3", linestyle="--", label=f"{sweep.suggestion:.2g}")
    # Fit the y axis to the smoothed losses, because the losses of single steps may be far higher.
    top, bottom = max(sweep.smoothed), min(sweep.smoothed)
    margin = 0.1 * (top - bottom) or 1.0
    axes.set_ylim(bottom - margin, top + margin)
    axes.set(xlabel="learning rate", ylabel="training loss", title=title)
    axes.legend()
    os.makedirs(os.path.dirname(path) or os.curdir, exist_ok=True)
    picture.savefig(path, dpi=120)


def _sweep(
    trainer: base_trainer.Trainer, num_steps: int, rates: list[float], losses: list[float]
) -> None:
    """Record the learning rate and the loss of each step until the loss diverges."""
    for _ in range(num_steps):
        preemption.check()
        rate = orbit.utils.current_learning_rate(trainer.optimizer, trainer.global_step)
        logs = trainer.train(tf.constant(1)) or {}
        rates.append(float(rate))
        losses.append(float(logs[trainer.train_loss.name]))
        if _has_diverged(losses):
            break
    if len(rates) > 1 and rates[0] == rates[-1]:
        raise errors.ConfigValueError(
            f"The learning rate is {rates[0]:g} in all steps, because "
            f"{type(trainer.task).__name__} does not read it from `trainer.optimizer_config`. Use "
            "this field in `create_optimizer`."
        )


def _smooth(losses: Sequence[float]) -> list[float]:
    """Return the mean of each loss and its neighbors.

    The window is centered: a trailing window would delay the curve. Non-finite losses are ignored;
    only the last loss may be non-finite.
    """
    reach = max(1, round(_WINDOW * len(losses)))
    windows = [losses[max(0, n - reach) : n + reach + 1] for n in range(len(losses))]
    return [_mean([loss for loss in window if math.isfinite(loss)]) for window in windows]


def _has_diverged(losses: Sequence[float]) -> bool:
    """Return whether the loss has diverged.

    It has diverged if the last loss is not finite, or if the mean loss of the last steps exceeds
    the mean of the first steps by the amount that the loss had fallen, and by at least half of the
    first mean.
    """
    if not math.isfinite(losses[-1]):
        return True
    if len(losses) < 2 * _LAST_STEPS:
        return False
    first, last = _mean(losses[:_LAST_STEPS]), _mean(losses[-_LAST_STEPS:])
    return last > first + max(first - min(losses), 0.5 * abs(first))


def _steepest(learning_rates: Sequence[float], smoothed: Sequence[float]) -> float | None:
    """Return the learning rate where the loss over the log learning rate falls most steeply.

    Rates after the lowest loss are ignored: a fall after the loss has risen is meaningless.
    """
    lowest = int(np.argmin(smoothed))
    if lowest < 1:
        return None
    slopes = np.gradient(np.asarray(smoothed), np.log(np.asarray(learning_rates)))[: lowest + 1]
    steepest = int(np.argmin(slopes))
    return float(learning_rates[steepest]) if slopes[steepest] < 0 else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe:
    """The result for one batch size.

    Attributes:
        examples_per_second: Training speed.
        memory: Peak memory of the process in bytes.
        unit: Batch sizes must be a multiple of this: the number of replicas, real or virtual, times
            the number of micro-batches.
        problem: Why the data or config do not allow the batch size; empty if they do.
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
        args: The command line, with `source` and the arguments of `sources`.
        batch_size: Examples per update.
    """
    params = sources.read_params(args.source, args).params
    found: list[Probe] = []

    def measure(ctx: pipeline.ExperimentContext) -> None:
        found.append(_measure(ctx, batch_size))

    try:
        train(
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
    while steps < _MIN_TIMED_STEPS or time.monotonic() - started < _SECONDS:
        preemption.check()
        _seconds_of(trainer, num_steps)
        steps += num_steps
    rate = steps * batch_size / (time.monotonic() - started)
    unit = train_data.count_replicas(ctx.params) * train_data.count_micro_batches(ctx.params)
    return Probe(examples_per_second=rate, memory=_peak_memory(), unit=unit)


def _seconds_of(trainer: Any, num_steps: int) -> float:
    started = time.monotonic()
    trainer.train(tf.constant(num_steps))
    return time.monotonic() - started


def _peak_memory() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
