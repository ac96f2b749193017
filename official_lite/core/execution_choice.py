"""What `runtime.execution: auto` means for a run: what was chosen before, or the fastest mode."""

from typing import Any

import tensorflow as tf

from official_lite.checkpoint import directories
from official_lite.core import execution, execution_record, execution_tuning

__all__ = ["choose"]


def choose(
    trainer: Any, num_steps: int, model_dir: str, *, evaluates: bool
) -> execution_record.ExecutionRecord:
    """Puts a trainer into the mode that was chosen for its directory, or finds out and notes it.

    Args:
        trainer: A `Trainer` that has not begun yet.
        num_steps: The steps that it is going to train.
        model_dir: The directory of the run.
        evaluates: Whether it evaluates on the way.
    """
    train_steps = int(trainer.global_step.numpy()) + num_steps
    known = execution_record.load(model_dir)
    if known is not None and known.holds_for(train_steps) and _is_possible(known, trainer):
        trainer.execution = known.execution
        trainer.eval_execution = known.eval_execution
        return known
    num_eval_steps = _count_eval_steps(trainer, num_steps) if evaluates else 0
    record = execution_tuning.choose_execution(trainer, num_steps, num_eval_steps)
    if record.seconds_per_step and directories.is_chief(trainer.strategy):
        execution_record.save(record, model_dir)
    return record


def _is_possible(record: execution_record.ExecutionRecord, trainer: Any) -> bool:
    """The directory may have come to a machine with more devices, or to several machines."""
    if trainer.has_coordinator:
        return record.execution == "graph"
    return record.execution != "xla_loop" or execution.why_not_xla_loop(trainer) is None


def _count_eval_steps(trainer: Any, num_steps: int) -> int:
    """Of all evaluations during so many steps of training; 0 if nobody knows."""
    config = trainer.config.trainer
    if not trainer.evaluates or not config.validation_interval:
        return 0
    steps = config.validation_steps
    if steps == -1 and isinstance(trainer.eval_dataset, tf.data.Dataset):
        steps = int(trainer.eval_dataset.cardinality())
    return max(0, steps) * (num_steps // config.validation_interval)
