"""What an evaluator does with its checkpoint exporter, which may be that of the Model Garden."""

import contextlib
from collections.abc import Iterator
from typing import Any

from official_lite.modeling.optimization import ema_optimizer
from official_lite.orbit import runner

__all__ = ["export", "notify", "without_exporter"]


def export(evaluator: Any, logs: dict[str, Any]) -> Any:
    """Let the exporter save the state that was evaluated, if it is the best so far.

    Args:
        evaluator: A trainer or evaluator, whose averaged weights are in place.
        logs: The results of the evaluation.

    Returns:
        The best value of the metric, if the exporter knows it.
    """
    exporter = evaluator._checkpoint_exporter
    with ema_optimizer.following_weights(evaluator.optimizer):
        exporter.maybe_export_checkpoint(evaluator.checkpoint, logs, evaluator.global_step.numpy())
    return getattr(exporter, "best_metric_value", None)


def notify(exporter: Any, event: str, *args: Any) -> None:
    """Call a method of a checkpoint exporter; exporters of the Model Garden may not have it."""
    getattr(exporter, event, lambda *_: None)(*args)


@contextlib.contextmanager
def without_exporter(evaluator: Any) -> Iterator[None]:
    """Take the checkpoint exporter from an evaluator within the context."""
    exporter = evaluator._checkpoint_exporter
    runner.set_untracked(evaluator, _checkpoint_exporter=None)
    try:
        yield
    finally:
        runner.set_untracked(evaluator, _checkpoint_exporter=exporter)
