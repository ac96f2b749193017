"""A learning-rate range test (Smith, 2015): the loss while the rate grows from step to step."""

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from official_lite import orbit, pipeline
from official_lite.common import errors
from official_lite.core import base_trainer
from official_lite.orbit import preemption
from official_lite.tools.tuning import trial_training

__all__ = ["RateSweep", "analyze", "draw", "run_sweep"]

# Steps on either side with which a loss is averaged, as a part of all steps.
_WINDOW = 1 / 20
# The last steps that say whether it has blown up.
_LAST_STEPS = 5
_FEWEST_STEPS = 30
_ROWS = 12


@dataclasses.dataclass(frozen=True, kw_only=True)
class RateSweep:
    """What was seen.

    Attributes:
        learning_rates: One a step, growing.
        losses: What each step has reported.
        smoothed: The same, each averaged with those before and after it.
        has_diverged: Whether the loss blew up, which has ended the test.
        suggestion: Where the smoothed loss fell the fastest; None if it fell nowhere.
    """

    learning_rates: Sequence[float]
    losses: Sequence[float]
    smoothed: Sequence[float]
    has_diverged: bool
    suggestion: float | None

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return dataclasses.asdict(self)

    def some_points(self) -> list[tuple[float, float]]:
        """A few rates and their smoothed losses, for a table."""
        points = list(zip(self.learning_rates, self.smoothed, strict=True))
        count = min(_ROWS, len(points))
        return [points[(len(points) - 1) * n // max(1, count - 1)] for n in range(count)]

    def describe(self) -> str:
        """What came of it, in a sentence or two."""
        end = self.learning_rates[-1]
        limit = f"At {end:.2g} it blew up." if self.has_diverged else f"It went up to {end:.2g}."
        if self.suggestion is None:
            return f"The loss fell nowhere, so there is no suggestion. {limit}"
        return f"The loss fell the fastest at a learning rate of {self.suggestion:.2g}. {limit}"


def run_sweep(params: Any, *, min_rate: float, max_rate: float, num_steps: int) -> RateSweep:
    """Trains an experiment from its beginning with a learning rate that grows; leaves nothing.

    Args:
        params: The config. Its schedule, warm-up, hooks and writers are left out.
        min_rate: The learning rate of the first step.
        max_rate: That of the last one, by equal factors.
        num_steps: How many.

    Raises:
        errors.ConfigValueError: Such a sweep is none, or the task does not take its learning rate
            from the config.
    """
    if not 0 < min_rate < max_rate or num_steps < _FEWEST_STEPS:
        raise errors.ConfigValueError(
            f"A sweep from {min_rate:g} to {max_rate:g} in {num_steps} steps is none; wanted two "
            f"positive rates, the larger one last, and {_FEWEST_STEPS} steps at least."
        )
    rates: list[float] = []
    losses: list[float] = []

    def sweep(ctx: pipeline.ExperimentContext) -> None:
        _measure(ctx.require("trainer"), num_steps, rates, losses)

    schedule = {
        "initial_learning_rate": min_rate,
        "decay_rate": max_rate / min_rate,
        "decay_steps": num_steps - 1,
    }
    trial_training.train(
        params,
        sweep,
        trainer={
            "train_steps": num_steps,
            "train_epochs": None,
            "optimizer_config": {
                "learning_rate": {"type": "exponential", "exponential": schedule},
                "warmup": {"type": None},
            },
        },
    )
    return analyze(rates, losses)


def analyze(learning_rates: Sequence[float], losses: Sequence[float]) -> RateSweep:
    """What the losses of a sweep say."""
    # Twice, so that those nearest count most.
    smoothed = _smooth(_smooth(losses))
    return RateSweep(
        learning_rates=list(learning_rates),
        losses=list(losses),
        smoothed=smoothed,
        has_diverged=_has_diverged(losses),
        suggestion=_steepest(learning_rates, smoothed),
    )


def draw(sweep: RateSweep, path: str, *, title: str = "") -> None:
    """Draws the losses over the rates, and marks the suggestion.

    Args:
        sweep: The sweep.
        path: A file that ends in `.png` or `.svg`.
        title: Above the picture.

    Raises:
        errors.ConfigValueError: It ends otherwise, or matplotlib is not installed.
    """
    if not path.endswith((".png", ".svg")):
        raise errors.ConfigValueError(f"--plot={path} has to end in .png or .svg.")
    try:
        from matplotlib import figure
    except ModuleNotFoundError as error:
        raise errors.ConfigValueError(
            "A plot needs matplotlib, which is not installed: pip install matplotlib"
        ) from error
    # Without pyplot, which would look for a screen.
    picture = figure.Figure(figsize=(8.0, 5.0), layout="constrained")
    axes = picture.subplots()
    axes.semilogx(sweep.learning_rates, sweep.losses, color="0.75", label="each step")
    axes.semilogx(sweep.learning_rates, sweep.smoothed, color="C0", label="smoothed")
    if sweep.suggestion is not None:
        axes.axvline(sweep.suggestion, color="C3", linestyle="--", label=f"{sweep.suggestion:.2g}")
    # Single steps may go far beyond what there is to see.
    top, bottom = max(sweep.smoothed), min(sweep.smoothed)
    margin = 0.1 * (top - bottom) or 1.0
    axes.set_ylim(bottom - margin, top + margin)
    axes.set(xlabel="learning rate", ylabel="training loss", title=title)
    axes.legend()
    os.makedirs(os.path.dirname(path) or os.curdir, exist_ok=True)
    picture.savefig(path, dpi=120)


def _measure(
    trainer: base_trainer.Trainer, num_steps: int, rates: list[float], losses: list[float]
) -> None:
    """Notes the rate and the loss of each step, until the loss blows up."""
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
            f"The learning rate is {rates[0]:g} in all steps: {type(trainer.task).__name__} does "
            "not take it from `trainer.optimizer_config`."
        )


def _smooth(losses: Sequence[float]) -> list[float]:
    """The mean of each loss and those around it: one of those before it only would come too late.

    What is not finite, as the last one may be, is left out.
    """
    reach = max(1, round(_WINDOW * len(losses)))
    windows = [losses[max(0, n - reach) : n + reach + 1] for n in range(len(losses))]
    return [_mean([loss for loss in window if math.isfinite(loss)]) for window in windows]


def _has_diverged(losses: Sequence[float]) -> bool:
    """Whether the loss is above its beginning by as much as it had come below it, or by half."""
    if not math.isfinite(losses[-1]):
        return True
    if len(losses) < 2 * _LAST_STEPS:
        return False
    first, last = _mean(losses[:_LAST_STEPS]), _mean(losses[-_LAST_STEPS:])
    return last > first + max(first - min(losses), 0.5 * abs(first))


def _steepest(learning_rates: Sequence[float], smoothed: Sequence[float]) -> float | None:
    """The rate at which the loss falls the fastest, by the logarithm of the rate.

    Only until it is at its lowest: what falls after it has risen says nothing.
    """
    lowest = int(np.argmin(smoothed))
    if lowest < 1:
        return None
    slopes = np.gradient(np.asarray(smoothed), np.log(np.asarray(learning_rates)))[: lowest + 1]
    steepest = int(np.argmin(slopes))
    return float(learning_rates[steepest]) if slopes[steepest] < 0 else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
