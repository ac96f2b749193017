"""The driver of a run: the setup, error handling and cleanup that all entry points share."""

import contextlib
import contextvars
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf
from absl import logging

from official_lite.common import cluster, error_report, errors, goodput, preemption
from official_lite.core import config_definitions
from official_lite.data import input_errors
from official_lite.modeling import model_summary
from official_lite.run import data_schemas, run_record

# The ways in which a run can end before its last step without an error, besides `stop_requested`.
STOPS = ("early stopping", "pruned", "completed")

# A callback at the end of a run. It receives the record, and the error that ended the run or None.
Part: TypeAlias = Callable[[run_record.RunRecord, BaseException | None], None]

_NamingLostPeers: TypeAlias = Callable[[], contextlib.AbstractContextManager[None]]

# The record of the run that this thread is executing.
_current: contextvars.ContextVar[run_record.RunRecord | None] = contextvars.ContextVar(
    "run", default=None
)


def drive(
    work: Callable[[run_record.RunRecord], None],
    *,
    params: config_definitions.ExperimentConfig,
    mode: str,
    model_dir: str,
    is_chief: bool = True,
    allow_config_change: bool = False,
    uses_cluster: bool = True,
    at_the_end: Sequence[Part] = (),
) -> None:
    """Run `work` with the setup, error handling and cleanup of a run.

    ::

        catch SIGTERM and SIGINT
        lock the model directory            if the mode trains; the output directory if it predicts
        compare the config with the config of the checkpoints
        open the record of the run
        measure where the time goes
        work
        at_the_end                          each part, also after an error
        close the record; unlock the directory

    A call inside another call for the same directory only runs `work` and `at_the_end`.

    Args:
        work: The work, which is called with the record.
        params: The config of the experiment.
        mode: The mode.
        model_dir: The model directory.
        is_chief: Whether this process writes the record.
        allow_config_change: Whether training may resume from checkpoints of a different config.
        uses_cluster: Whether the strategy uses the cluster in TF_CONFIG, if there is one.
        at_the_end: The parts to run at the end, in this order.

    Raises:
        BaseException: The first error; later errors are only logged.
    """
    naming_lost_peers = cluster.report_lost_peers if uses_cluster else contextlib.nullcontext
    if (outer := _outer_record(model_dir)) is not None:
        _do(outer, work, at_the_end, naming_lost_peers)
        return

    def work_on_checked_data(record: run_record.RunRecord) -> None:
        data_schemas.enforce(params, mode, model_dir, is_chief=is_chief)
        work(record)

    with (
        error_report.rendered_briefly(),
        error_report.naming_the_resource(),
        preemption.catch_signals(),
        run_record.RunRecord(
            params,
            mode,
            model_dir,
            is_chief=is_chief,
            allow_config_change=allow_config_change,
        ) as record,
        goodput.Goodput(record.path("goodput", "json") if is_chief else None) as clock,
    ):
        token = _current.set(record)
        try:
            _do(record, work_on_checked_data, at_the_end, naming_lost_peers)
        finally:
            _current.reset(token)
            input_errors.forget()
            record.note(goodput=clock.summary())


def is_driven(model_dir: str) -> bool:
    """Return whether this code is running inside `drive` for a directory."""
    return _outer_record(model_dir) is not None


def seal_record(model_dir: str) -> str | None:
    """Complete the record of the run in a directory; see `RunRecord.seal`.

    Returns:
        The checksum of the record's line in the chain; None outside a run, or if the run does not
        train.
    """
    record = _outer_record(model_dir)
    return record.seal() if record is not None else None


def note(model_dir: str, **entries: Any) -> None:
    """Add entries to the record of the run in a directory; outside a run, do nothing."""
    if (record := _outer_record(model_dir)) is not None:
        record.note(**entries)


def _outer_record(model_dir: str) -> run_record.RunRecord | None:
    record = _current.get()
    return record if record is not None and record.model_dir == model_dir else None


def _do(
    record: run_record.RunRecord,
    work: Callable[[run_record.RunRecord], None],
    at_the_end: Sequence[Part],
    naming_lost_peers: _NamingLostPeers,
) -> None:
    """Run `work`, then all callbacks in `at_the_end`, and raise the first error.

    Exceptions of every kind are caught, because an interrupted run must be cleaned up, too.
    """
    try:
        with error_report.naming_the_resource(), naming_lost_peers():
            work(record)
    except BaseException as error:
        # Close the writers while the error is being handled, so that they can detect that the run
        # has failed.
        _end(record, at_the_end, error, naming_lost_peers)
        raise
    _end(record, at_the_end, None, naming_lost_peers)


def _end(
    record: run_record.RunRecord,
    at_the_end: Sequence[Part],
    work_error: BaseException | None,
    naming_lost_peers: _NamingLostPeers,
) -> None:
    """Run all callbacks in `at_the_end`; raise their first error unless the work has failed."""
    first = work_error
    for part in at_the_end:
        try:
            with naming_lost_peers():
                part(record, first)
        except BaseException as error:
            if first is None:
                first = error
            else:
                logging.exception(
                    "Another error occurred while the run was being closed after its first error."
                )
    if work_error is None and first is not None:
        raise first


def note_results(
    record: run_record.RunRecord,
    error: BaseException | None,
    global_step: tf.Variable | None,
    model: keras.Model | None,
    controller: object,
) -> None:
    """Record how far the run has come, why it stopped, and the size of the model.

    Args:
        record: The record.
        error: The error that ended the run; None if there was none.
        global_step: The number of completed steps; None before there is a trainer.
        model: The model, if there is one.
        controller: The controller, or None. If its `stop_reason` starts with one of `STOPS` and a
            colon, it is recorded as the exit reason; any other as `stop_requested: …`.
    """
    # If a worker is lost, the values of its variables can't be read.
    if isinstance(error, errors.ClusterError):
        return
    step = 0 if global_step is None else int(global_step.numpy())
    # A run that fails before it restores its checkpoint is still at step 0. Keep the recorded step.
    if step or error is None:
        record.note(global_step=step)
    if reason := getattr(controller, "stop_reason", None):
        record.note(exit_reason=_exit_reason(reason))
    if model is not None:
        record.note(num_parameters=model_summary.try_count_params(model))


def _exit_reason(stop_reason: str) -> str:
    kind, colon, text = stop_reason.partition(": ")
    if colon and kind in STOPS:
        return f"{kind.replace(' ', '_')}: {text}"
    return f"stop_requested: {stop_reason}"
