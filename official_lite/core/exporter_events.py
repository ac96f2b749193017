"""Calls to the checkpoint exporter of an evaluator, which may be a Model Garden class."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from official_lite.modeling.optimization import ema_optimizer
from official_lite.orbit import runner

__all__ = ["export", "notify", "restrict", "without_exporter"]


def export(evaluator: Any, logs: dict[str, Any]) -> Any:
    """Let the exporter save the evaluated state if it is the best so far.

    Args:
        evaluator: A trainer or evaluator, with the averaged weights in place if it keeps any.
        logs: The results of the evaluation.

    Returns:
        The best value of the metric; None if the exporter does not report one.
    """
    exporter = evaluator._checkpoint_exporter
    with ema_optimizer.following_weights(evaluator.optimizer):
        exporter.maybe_export_checkpoint(evaluator.checkpoint, logs, evaluator.global_step.numpy())
    return getattr(exporter, "best_metric_value", None)


def notify(exporter: Any, event: str, *args: Any) -> None:
    """Call a method of a checkpoint exporter, if the exporter has that method."""
    getattr(exporter, event, lambda *_: None)(*args)


def restrict(evaluator: Any, may_export: Callable[[], bool]) -> None:
    """Let the exporter of an evaluator change files only if `may_export` returns True.

    Exporters without an attribute `may_export`, such as those of the Model Garden, are not
    restricted.
    """
    exporter: Any = getattr(evaluator, "_checkpoint_exporter", None)
    if hasattr(exporter, "may_export"):
        exporter.may_export = may_export


@contextlib.contextmanager
def without_exporter(evaluator: Any) -> Iterator[None]:
    """Remove the checkpoint exporter of an evaluator within the context."""
    exporter = evaluator._checkpoint_exporter
    runner.set_untracked(evaluator, _checkpoint_exporter=None)
    try:
        yield
    finally:
        runner.set_untracked(evaluator, _checkpoint_exporter=exporter)
