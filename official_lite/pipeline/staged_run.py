"""The execution of the stages of one run, including after a failure."""

from collections.abc import Callable, Mapping

from absl import logging

from official_lite.common import distribute_utils, errors, reachability, suggestions
from official_lite.core import run_record, train_lib
from official_lite.orbit import preemption
from official_lite.pipeline import engine, stage_factory
from official_lite.pipeline.context import ExperimentContext
from official_lite.pipeline.stage import Stage

__all__ = ["run_stages"]

_LAST = stage_factory.STAGES[-1]
# These stages run in the strategy's scope. The earlier stages run before the strategy exists.
_IN_SCOPE = ("initialize", "run", "finalize")


def run_stages(stages: Mapping[str, type[Stage]], ctx: ExperimentContext) -> None:
    """Run the stages on a context, and record the run in its model directory.

    ::

        wait for all workers                if there are several
        open the record of the run
        prepare, build, initialize, run     until one of them fails
        close writers and event files
        finalize                            always, exactly once
        close the record

    Raises:
        BaseException: The first error; later errors are only logged. A `sys.exit()` without an exit
            code becomes one with the exit code 1.
    """
    chief = engine.is_chief(ctx.params.runtime)
    # Wait before catching signals: there is nothing to save yet.
    engine.meet_workers(ctx.params.runtime)
    with (
        preemption.catch_signals(),
        run_record.RunRecord(
            ctx.params,
            ctx.mode,
            ctx.model_dir,
            is_chief=chief,
            allow_config_change=ctx.allow_config_change,
        ) as record,
    ):
        for name, stage in stages.items():
            logging.info("%s", stage_factory.describe(name, stage))
        acts: list[Callable[[], None]] = [
            lambda: _run_to_the_last(stages, ctx, record),
            lambda: _close(ctx),
            lambda: _run_last(stages, ctx),
            lambda: _note_results(ctx, record),
            ctx.exit_stack.close,
        ]
        error = None
        for act in acts:
            error = _attempt(act, error)
            ctx.error = error
        if error is not None:
            raise error


def _attempt(act: Callable[[], None], first_error: BaseException | None) -> BaseException | None:
    """Call `act` and return the first error so far.

    Catch all exceptions, because an interrupted run must be cleaned up, too.
    """
    try:
        act()
    except BaseException as error:
        if first_error is None:
            return error
        logging.exception("This failed as well, after the error that ended the run.")
    return first_error


def _run_to_the_last(
    stages: Mapping[str, type[Stage]], ctx: ExperimentContext, record: run_record.RunRecord
) -> None:
    name = next(iter(stages))
    while name != _LAST:
        params = ctx.params
        jump = _call(stages, name, ctx)
        if ctx.params is not params:
            record.replace_params(ctx.params)
        name = _next_stage(name, jump)


def _run_last(stages: Mapping[str, type[Stage]], ctx: ExperimentContext) -> None:
    _call(stages, _LAST, ctx)


def _call(stages: Mapping[str, type[Stage]], name: str, ctx: ExperimentContext) -> str | None:
    ctx.stage = name
    strategy = ctx.strategy if name in _IN_SCOPE else None
    with distribute_utils.get_strategy_scope(strategy):
        view = stages[name].view(ctx)
        try:
            with reachability.name_the_lost():
                return stages[name](view)(view)
        except SystemExit as error:
            if error.code:
                raise
            # The record says that the run failed, so the exit code must not report a success.
            raise SystemExit(
                f"The stage `{name}` called `sys.exit`. To end a run early and in order, return "
                "'finalize'."
            ) from error


def _next_stage(name: str, jump: str | None) -> str:
    later = stage_factory.STAGES[stage_factory.STAGES.index(name) + 1 :]
    if jump is None:
        return later[0]
    if jump not in later:
        raise errors.UnknownNameError(
            f"The stage `{name}` returned {jump!r}; wanted nothing, or the name of a later stage. "
            f"{suggestions.did_you_mean(str(jump), later)}"
        )
    logging.info("stage %s: goes on with %s", name, jump)
    return jump


def _close(ctx: ExperimentContext) -> None:
    if ctx.runner is not None:
        ctx.runner.close()


def _note_results(ctx: ExperimentContext, record: run_record.RunRecord) -> None:
    if isinstance(ctx.error, errors.ClusterError):
        # A worker is lost, and with it the values of its variables.
        return
    train_lib.note_results(record, ctx.global_step, ctx.model)
