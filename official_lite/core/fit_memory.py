"""`trainer.fit_memory`: a run whose step runs out of memory restarts with smaller micro-batches."""

import contextlib
from collections.abc import Callable, Iterable, Iterator

import tensorflow as tf
from absl import logging

from official_lite import orbit
from official_lite.common import error_report, errors
from official_lite.core import config_definitions, train_data
from official_lite.modeling import hyperparams
from official_lite.run import run_record, runtime

__all__ = [
    "RESTARTS",
    "MicroBatchTooLargeError",
    "check",
    "detach",
    "raising_for_smaller_batches",
    "run",
]

# The entry of `run.json` that records the number of micro-batches that fits in memory.
_ENTRY = "fit_memory"
_FIELD = "grad_accum_steps"


class MicroBatchTooLargeError(errors.OutOfMemoryError):
    """Raised if a micro-batch does not fit in memory but can be divided.

    Attributes:
        grad_accum_steps: The next number of micro-batches to try.
    """

    grad_accum_steps: int = 1


# The errors after which `run` may call `attempt` again.
RESTARTS = (MicroBatchTooLargeError, train_data.UnevenMicroBatchesError)


def check(config: config_definitions.ExperimentConfig, strategy: tf.distribute.Strategy) -> None:
    """Check that a run with `trainer.fit_memory` can restart in its process.

    Raises:
        errors.ConfigValueError: If the run may have several processes.
    """
    if config.trainer.fit_memory and strategy.cluster_resolver is not None:
        raise errors.ConfigValueError(
            "`trainer.fit_memory` is true, but with this strategy, a run may have several "
            "processes, which can't restart together. Set it to false, and set "
            "`trainer.grad_accum_steps` to a number of micro-batches that fits in memory."
        )


@contextlib.contextmanager
def raising_for_smaller_batches(
    config: config_definitions.ExperimentConfig, num_replicas: int
) -> Iterator[None]:
    """Within this context, replace the error of a step that runs out of memory.

    The error is not replaced if `trainer.fit_memory` is off or if the micro-batches can't be
    halved.

    Raises:
        MicroBatchTooLargeError: The micro-batches can be halved.
    """
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        if not config.trainer.fit_memory or not error_report.is_out_of_memory(error):
            raise
        count, size = train_data.count_micro_batches(config), _batch_size(config)
        if not size or size % (2 * count * num_replicas):
            logging.warning(
                "The training step ran out of memory. `trainer.fit_memory` can't halve its "
                "micro-batches, because `task.train_data.global_batch_size` (%d) is not a multiple "
                "of %d, twice the number of micro-batches times the number of replicas.",
                size,
                2 * count * num_replicas,
            )
            raise
        smaller = MicroBatchTooLargeError(
            f"Training ran out of memory with micro-batches of {size // count} examples: "
            f"{error_report.first_line(str(error))}. Set `trainer.grad_accum_steps` to {2 * count}."
        )
        smaller.grad_accum_steps = 2 * count
        raise smaller from error


def run(
    attempt: Callable[[config_definitions.ExperimentConfig], None],
    params: config_definitions.ExperimentConfig,
    record: run_record.RunRecord,
) -> None:
    """Run an experiment, and restart it with smaller micro-batches while they do not fit.

    A resumed run starts with the number of micro-batches that fit in memory before, or with the
    next smaller number that divides its batches evenly.

    Args:
        attempt: Builds and executes the run of a config. It is called again with a changed config.
        params: The config of the experiment.
        record: The record of the run.
    """
    smallest = params.trainer.grad_accum_steps
    known = record.earlier(_ENTRY).get(_FIELD) if params.trainer.fit_memory else None
    if isinstance(known, int) and known > smallest:
        logging.info(
            "`trainer.fit_memory` sets `trainer.grad_accum_steps` to %d, as in the earlier run.",
            known,
        )
        params = _divided(params, known, record)
    while True:
        try:
            attempt(params)
            return
        except train_data.UnevenMicroBatchesError as error:
            # The batch size or the number of replicas may have changed since the earlier run. This
            # is not checked earlier, because the number of replicas is known only after the
            # strategy is created.
            known = params.trainer.grad_accum_steps
            if known == smallest:
                raise
            count = _next_smaller(known, smallest, _batch_size(params), error.num_replicas)
            change = (
                "the batches can't be divided into as many parts as in the earlier run, so "
                f"`trainer.grad_accum_steps` changes from {known} to {count}. {error}"
            )
        except MicroBatchTooLargeError as error:
            # The error requests more micro-batches than `params` has, unless a custom stage changed
            # the number that the trainer uses.
            if error.grad_accum_steps <= params.trainer.grad_accum_steps:
                raise
            count = error.grad_accum_steps
            reason = error_report.first_line(str(error.__cause__))
            change = (
                f"the training step ran out of memory ({reason}), so "
                f"`trainer.grad_accum_steps` changes from {params.trainer.grad_accum_steps} to "
                f"{count}. The run restarts from its latest checkpoint."
            )
        except (tf.errors.ResourceExhaustedError, errors.OutOfMemoryError):
            # Forget the recorded number of micro-batches. No number fits now, but the next run may
            # have more memory.
            record.note(**{_ENTRY: {}})
            raise
        logging.warning("`trainer.fit_memory`: %s", change)
        # Python has deleted the error, and with it the last reference to the failed attempt, so
        # its memory can be freed.
        runtime.forget_last_run()
        params = _divided(params, count, record)


def detach(hooks: Iterable[orbit.Hook]) -> None:
    """Remove the references of hooks to a failed attempt, so that its memory can be freed."""
    for hook in hooks:
        hook.detach()


def _batch_size(params: config_definitions.ExperimentConfig) -> int:
    """Return the number of examples in an update; 0 if it is unknown."""
    return hyperparams.get_by_path(params, "task.train_data.global_batch_size") or 0


def _next_smaller(known: int, smallest: int, size: int, num_replicas: int) -> int:
    """Return the largest number of micro-batches below `known` that divides the batch evenly."""
    counts = range(known - 1, smallest, -1)
    return next((count for count in counts if size % (count * num_replicas) == 0), smallest)


def _divided(
    params: config_definitions.ExperimentConfig, count: int, record: run_record.RunRecord
) -> config_definitions.ExperimentConfig:
    """Return the config with `count` micro-batches per update; record the count and the config."""
    divided = params.replace(trainer={_FIELD: count})
    record.note(**{_ENTRY: {_FIELD: count}})
    record.replace_params(divided)
    return divided
