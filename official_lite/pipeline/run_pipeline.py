"""The pipeline, which runs an experiment: a single run, or one run per phase."""

import contextlib
import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite import orbit
from official_lite.checkpoint import latest
from official_lite.common import (
    cluster,
    distribute_utils,
    errors,
    files,
    flags,
    preemption,
    suggestions,
    terminal,
)
from official_lite.config import epochs, parsing, phase_configs
from official_lite.core import config_definitions, fit_memory, preflight, task_factory
from official_lite.data import file_patterns
from official_lite.pipeline.stages import (
    STAGES,
    Engine,
    ExperimentContext,
    FinishedPhase,
    Stage,
    describe,
    expected_engine,
    find_stages,
    is_chief,
    is_default,
    meet_workers,
    uses_cluster,
    warn_of_unused_workers,
)
from official_lite.run import driver, run_record, runtime

_LAST = STAGES[-1]

# The stages that run in the strategy's scope. Earlier stages run before the strategy exists.
_IN_SCOPE = ("initialize", "run", "finalize")


def run_stages(stages: Mapping[str, type[Stage]], ctx: ExperimentContext) -> None:
    """Run the stages on a context, and record the run in its model directory.

    ::

        open the record of the run
        prepare, build, initialize, run     until one of them fails
        close writers and event files
        finalize                            always, exactly once
        close the record

    Raises:
        BaseException: The first error; later errors are only logged. A `sys.exit` without an exit
            code, or with 0, is replaced by one with the exit code 1.
    """
    chief = is_chief(ctx.params.runtime)
    builds_the_strategy = all(is_default(name, stages[name]) for name in ("prepare", "build"))
    if ctx.trains and ctx.strategy is None and builds_the_strategy:
        warn_of_unused_workers(ctx.params.runtime)

    initial = {**vars(ctx), "extras": dict(ctx.extras)}

    def work(record: run_record.RunRecord) -> None:
        for name, stage in stages.items():
            logging.info("%s", describe(name, stage), extra=terminal.DETAIL)
        fit_memory.run(lambda params: attempt(params, record), ctx.params, record)

    def attempt(params: Any, record: run_record.RunRecord) -> None:
        ctx.params = params
        try:
            _run_to_the_last(stages, ctx, record)
        except fit_memory.RESTARTS:
            if not params.trainer.fit_memory:
                raise
            # Release everything that the next attempt builds again, except the strategy.
            _close(ctx)
            ctx.exit_stack.close()
            fit_memory.detach(ctx.hooks)
            fresh = {"strategy": ctx.strategy, "extras": dict(initial["extras"])}
            vars(ctx).update({**initial, **fresh})
            raise

    def finalize(record: run_record.RunRecord, error: BaseException | None) -> None:
        del record
        ctx.error = error
        _call(stages, _LAST, ctx)

    def note_results(record: run_record.RunRecord, error: BaseException | None) -> None:
        controller = ctx.runner.controller if ctx.runner else None
        step = ctx.trainer.global_step if ctx.trainer is not None else None
        driver.note_results(record, error, step, ctx.model, controller)

    driver.drive(
        work,
        params=ctx.params,
        mode=ctx.mode,
        model_dir=ctx.model_dir,
        is_chief=chief,
        allow_config_change=ctx.allow_config_change,
        uses_cluster=uses_cluster(ctx.params.runtime),
        at_the_end=[
            lambda *_: _close(ctx),
            finalize,
            note_results,
            lambda *_: ctx.exit_stack.close(),
        ],
    )


def _run_to_the_last(
    stages: Mapping[str, type[Stage]], ctx: ExperimentContext, record: run_record.RunRecord
) -> None:
    name = next(iter(stages))
    while name != _LAST:
        params = ctx.params
        jump = _call(stages, name, ctx)
        # Do not record the config of a test, in which the test data replace the validation data.
        if ctx.params is not params and ctx.mode != "test":
            record.replace_params(ctx.params)
        name = _next_stage(name, jump)
    if ctx.runner is not None and ctx.runner.lacks_evaluation:
        logging.warning(
            "The mode `%s` evaluated nothing, because the %s replaces the default behavior. To "
            "keep the default evaluation, override only `train` of `pipeline.Run`, or remove the "
            "stage from the config in this mode.",
            ctx.mode,
            describe("run", stages["run"]),
        )


def _call(stages: Mapping[str, type[Stage]], name: str, ctx: ExperimentContext) -> str | None:
    ctx.stage = name
    strategy = ctx.strategy if name in _IN_SCOPE else None
    with distribute_utils.get_strategy_scope(strategy):
        view = stages[name].view(ctx)
        try:
            return stages[name](view)(view)
        except SystemExit as error:
            if error.code:
                raise
            # The run is recorded as failed, so the exit code must not report success.
            raise SystemExit(
                f"The stage `{name}` called `sys.exit`. To end a run early, return 'finalize'."
            ) from error


def _next_stage(name: str, jump: str | None) -> str:
    later = STAGES[STAGES.index(name) + 1 :]
    if jump is None:
        return later[0]
    if jump not in later:
        raise errors.UnknownNameError(
            f"The stage `{name}` returned {jump!r}; expected None, or the name of a later "
            f"stage. {suggestions.did_you_mean(str(jump), later)}"
        )
    logging.info("Stage %s: continuing with the stage %s.", name, jump)
    return jump


def _close(ctx: ExperimentContext) -> None:
    if ctx.runner is not None:
        ctx.runner.close()


# The fields of `runtime` that determine the strategy and its threads. They must be equal in all
# phases; other fields may differ.
_STRATEGY_FIELDS = (
    "distribution_strategy",
    "num_gpus",
    "devices",
    "all_reduce_alg",
    "num_packs",
    "tpu",
    "worker_hosts",
    "task_index",
    "intra_op_parallelism_threads",
)

_BRING_WEIGHTS = ("prepare", "build", "initialize")


class RunPipeline:
    """The run of an experiment, in stages that its config may replace.

    ::

        model, logs = RunPipeline(params, "train_and_eval", "/tmp/digits").run()

    If `params.phases` is set, each phase runs in `model_dir/<name>`. Phases whose training an
    earlier process has finished are skipped. A phase that has a checkpoint resumes from it, even if
    the phase from which it started has been trained again since; this is logged as a warning.

    The constructor looks up and checks everything that the config names, and builds or writes
    nothing.

    Args:
        params: The experiment's config.
        mode: `train`, `eval`, `train_and_eval`, `continuous_eval`, `train_and_post_eval`, `test` or
            `predict`.
        model_dir: The model directory of the run.
        stages: Stages that override those in the config, by stage name (`prepare`, `build`,
            `initialize`, `run`, `finalize`). The values are classes or names of classes.
        enable_async_checkpointing: Whether training continues while a checkpoint is written.
        allow_config_change: Whether training may resume from checkpoints of a different config.
        hooks: Hooks that run after the hooks of the trainer and of the config. The last phase that
            trains gets these objects, and each other phase gets deep copies.

    Raises:
        errors.OfficialLiteError: If the config is invalid.
    """

    def __init__(
        self,
        params: config_definitions.ExperimentConfig,
        mode: str,
        model_dir: str,
        stages: Mapping[str, Any] | None = None,
        enable_async_checkpointing: bool = True,
        allow_config_change: bool = False,
        hooks: Sequence[orbit.Hook] = (),
    ) -> None:
        self._hooks = hooks
        self._enable_async_checkpointing = enable_async_checkpointing
        self._allow_config_change = allow_config_change
        params, model_dir = parsing.expand_home(params), files.expand_home(model_dir)
        self._plans = list(_plans(params, mode, model_dir, stages))
        # Set up the XLA cache before the checks. They may make TensorFlow look for devices, and
        # the cache can't be set up after that.
        runtime.use_xla_cache(self._plans[0].params.runtime)
        for index, plan in enumerate(self._plans):
            # The record of a phase must not list the input files of other phases.
            with phase_configs.in_phase(plan.phase), file_patterns.forgetting():
                _check(plan, self._plans[:index])
        _check_that_one_strategy_serves_all(self._plans)

    def run(self) -> tuple[keras.Model | None, Mapping[str, Any]]:
        """Run the experiment. A server process of `parameter_server` serves its chief instead.

        Returns:
            A tuple of the model and the metrics of the last evaluation. With phases, both come from
            the last phase. The tuple is None and an empty mapping if an earlier process has
            finished the last phase, and in server processes.

        Raises:
            BaseException: The error that ended the run, after `finalize` has run.
        """
        if cluster.is_server(self._plans[0].params.runtime.distribution_strategy):
            cluster.serve()
            return None, {}
        finished: dict[str, FinishedPhase] = {}
        strategy: tf.distribute.Strategy | None = None
        trained: list[_Plan] = []
        last_to_train = next(
            (plan for plan in reversed(self._plans) if plan.trains), self._plans[-1]
        )
        # Copy the hooks before the first phase starts and changes their state.
        hooks = [
            self._hooks if plan is last_to_train else _copy_hooks(self._hooks)
            for plan in self._plans
        ]
        with contextlib.ExitStack() as signals:
            for planned, own_hooks in zip(self._plans, hooks, strict=True):
                # Read the model files at the start of each phase, because earlier phases may have
                # written them.
                plan = dataclasses.replace(planned, params=parsing.read_model_files(planned.params))
                if plan.phase:
                    logging.info("Phase `%s` in %s.", plan.phase, plan.model_dir)
                _warn_of_an_old_start(plan, trained)
                if plan.phase and run_record.is_finished(
                    plan.params,
                    plan.mode,
                    plan.model_dir,
                    allow_config_change=self._allow_config_change,
                    accepts_stops=True,
                ):
                    finished[plan.phase] = plan.finished()
                    continue
                if finished:
                    runtime.forget_last_run()
                ctx = plan.context(dict(finished), strategy)
                ctx.enable_async_checkpointing = self._enable_async_checkpointing
                ctx.allow_config_change = self._allow_config_change
                ctx.hooks = own_hooks
                # Wait for the workers before signals are handled, so that a signal ends this
                # process immediately: there is nothing to save yet.
                meet_workers(plan.params.runtime)
                # Catch signals until the last phase ends: a request that arrives when a phase is
                # nearly over stops the next one.
                signals.enter_context(preemption.catch_signals())
                run_stages(plan.stages, ctx)
                finished[plan.phase] = plan.finished(ctx)
                strategy = ctx.strategy
                if plan.trains:
                    trained.append(plan)
        last = finished[self._plans[-1].phase]
        return last.trained_model, last.logs


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Plan:
    """The arguments and stages of one planned run."""

    params: Any
    mode: str
    model_dir: str
    stages: Mapping[str, type[Stage]]
    phase: str = ""

    @property
    def trains(self) -> bool:
        return flags.Mode(self.mode).trains

    @property
    def output_dir(self) -> str | None:
        """The directory of the files that later phases may read; None if there are none."""
        if flags.Mode(self.mode).predicts:
            return run_record.predictions_dir(self.params, self.model_dir)
        return self.model_dir if self.trains else None

    def context(
        self, phases: Mapping[str, FinishedPhase], strategy: tf.distribute.Strategy | None
    ) -> ExperimentContext:
        return ExperimentContext(
            params=self.params,
            mode=self.mode,
            model_dir=self.model_dir,
            phase=self.phase,
            phases=phases,
            strategy=strategy,
        )

    def finished(self, ctx: ExperimentContext | None = None) -> FinishedPhase:
        return FinishedPhase(
            name=self.phase,
            mode=self.mode,
            model_dir=self.model_dir,
            logs=ctx.logs if ctx else {},
            trained_model=ctx.model if ctx else None,
        )


def _plans(
    params: Any, mode: str, model_dir: str, stages: Mapping[str, Any] | None
) -> Iterator[_Plan]:
    phases = params.phases
    if not phases:
        params = epochs.resolve(params)
        found = find_stages(params, stages)
        yield _Plan(params=params, mode=mode, model_dir=model_dir, stages=found)
    for index, phase in enumerate(phases):
        resolved = phase_configs.resolve(params, index, model_dir)
        with phase_configs.in_phase(phase.name):
            own = epochs.resolve(resolved)
            found = find_stages(own, stages)
        yield _Plan(
            params=own,
            mode=phase.mode or mode,
            model_dir=phase_configs.directory(params, index, model_dir),
            stages=found,
            phase=phase.name,
        )


def _copy_hooks(hooks: Sequence[orbit.Hook]) -> Sequence[orbit.Hook]:
    """Copy hooks for one phase, because they keep state of their run, such as its directory."""
    copies: list[orbit.Hook] = []
    # The copies of the objects so far, because hooks may share objects.
    memo: dict[int, Any] = {}
    for hook in hooks:
        before = set(memo)
        try:
            copies.append(copy.deepcopy(hook, memo))
        # A hook may contain objects that can't be copied, such as a lock or a connection.
        except Exception as error:
            logging.warning(
                "A hook of the pipeline, %s, can't be copied for each phase (%s), so all phases "
                "share it. If it keeps state of a run, such as its directory or best metric, name "
                "it in `trainer.hooks`, or implement `__deepcopy__`.",
                type(hook).__name__,
                error,
            )
            copies.append(hook)
            # Discard the copies made for this hook, some of which are incomplete.
            for key in memo.keys() - before:
                del memo[key]
    return copies


def _check(plan: _Plan, earlier: Sequence[_Plan]) -> None:
    """Check everything about a run that can be checked before the first phase starts."""
    if is_default("build", plan.stages["build"]):
        task_factory.find_task_cls(plan.params.task)
    is_alone = expected_engine(plan.params.runtime) is not Engine.CLUSTER
    preflight.check_run(
        plan.params,
        plan.mode,
        plan.model_dir,
        earlier_phases={other.phase: path for other in earlier if (path := other.output_dir)},
        # Custom stages may download weights and files, so these may not exist yet.
        reads_weights=all(is_default(name, plan.stages[name]) for name in _BRING_WEIGHTS),
        # Skip the check of input files in a cluster: if only one process failed, the other
        # processes would wait for it.
        reads_files=is_alone
        and all(is_default(name, plan.stages[name]) for name in ("prepare", "build")),
    )


def _warn_of_an_old_start(plan: _Plan, trained: Sequence[_Plan]) -> None:
    """Warn if a phase resumes although the phase from which it started has been trained further."""
    path = plan.params.task.init_checkpoint
    if not path or not plan.trains or not latest.latest_checkpoint(plan.model_dir):
        return
    for source in trained:
        if phase_configs.lies_in(path, source.model_dir):
            logging.warning(
                "The phase `%s` resumes from its own checkpoint, although `%s`, from which it "
                "started, has been trained further. Remove %s to restart the phase.",
                plan.phase,
                source.phase,
                plan.model_dir,
            )


def _check_that_one_strategy_serves_all(plans: Sequence[_Plan]) -> None:
    """Raise an error if the phases require different strategies.

    A process can't use a second strategy, because the first one has already set up the devices.
    """
    first, *others = plans
    for plan in others:
        for field in _STRATEGY_FIELDS:
            wanted, got = getattr(first.params.runtime, field), getattr(plan.params.runtime, field)
            if wanted != got:
                raise errors.ConfigValueError(
                    f"The phases `{first.phase}` and `{plan.phase}` differ in `runtime.{field}`: "
                    f"{wanted!r} and {got!r}. All phases use the strategy of the first phase. To "
                    "use another strategy for a phase, run that phase with a separate command."
                )
