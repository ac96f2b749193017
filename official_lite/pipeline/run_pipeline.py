"""From a config to what came of it: one run, or one after the other if it has phases."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite.checkpoint import latest
from official_lite.common import errors, task_server
from official_lite.core import (
    config_definitions,
    epochs,
    phase_configs,
    run_checks,
    run_record,
    runtime,
    task_factory,
)
from official_lite.pipeline import engine, stage_factory
from official_lite.pipeline.context import ExperimentContext, FinishedPhase
from official_lite.pipeline.stage import Stage
from official_lite.pipeline.staged_run import run_stages

__all__ = ["RunPipeline"]

# What decides which strategy is made, and on how many threads. The rest of the block may differ
# from phase to phase.
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
    """Runs an experiment in stages that its config may replace.

    ::

        model, logs = RunPipeline(params, "train_and_eval", "/tmp/digits").run()

    With `params.phases` it runs each of them in `model_dir/<name>`, and leaves out the trainings
    that an earlier process has finished. What a phase has learnt before stays: if the phase that it
    started from has been trained anew or further since, there is a warning and nothing else.
    """

    def __init__(
        self,
        params: config_definitions.ExperimentConfig,
        mode: str,
        model_dir: str,
        stages: Mapping[str, Any] | None = None,
        enable_async_checkpointing: bool = True,
        allow_config_change: bool = False,
    ) -> None:
        """Looks up everything that the config names. Builds nothing and writes nothing.

        Args:
            params: The experiment's config.
            mode: `train`, `eval`, `train_and_eval`, `continuous_eval` or `train_and_post_eval`.
            model_dir: The directory of the run.
            stages: Stages by the name of their place (`prepare`, `build`, `initialize`, `run`,
                `finalize`), as classes or as names, in place of those that the config names.
            enable_async_checkpointing: Whether training goes on while a checkpoint is being
                written.
            allow_config_change: Whether training may go on with the checkpoints of another config.

        Raises:
            errors.OfficialLiteError: If something in it can't be.
        """
        self._enable_async_checkpointing = enable_async_checkpointing
        self._allow_config_change = allow_config_change
        self._plans = list(_plans(params, mode, model_dir, stages))
        for index, plan in enumerate(self._plans):
            with phase_configs.in_phase(plan.phase):
                _check(plan, self._plans[:index])
        _check_that_one_strategy_serves_all(self._plans)

    def run(self) -> tuple[keras.Model | None, Mapping[str, Any]]:
        """Runs it; in a process that is a server of `parameter_server`, serves its chief.

        Returns:
            The model, and the metrics of the last evaluation; with phases those of the last one,
            which are None and empty if it was finished before, as they are of a server.

        Raises:
            BaseException: What ended the run, after `finalize` has run.
        """
        if task_server.is_server(self._plans[0].params.runtime.distribution_strategy):
            task_server.serve()
            return None, {}
        finished: dict[str, FinishedPhase] = {}
        strategy: tf.distribute.Strategy | None = None
        trained: list[_Plan] = []
        for plan in self._plans:
            if plan.phase:
                logging.info("Phase `%s` in %s.", plan.phase, plan.model_dir)
            _warn_of_an_old_start(plan, trained)
            if plan.phase and run_record.is_finished(plan.params, plan.mode, plan.model_dir):
                finished[plan.phase] = plan.finished()
                continue
            if finished:
                runtime.forget_last_run()
            ctx = plan.context(dict(finished), strategy)
            ctx.enable_async_checkpointing = self._enable_async_checkpointing
            ctx.allow_config_change = self._allow_config_change
            run_stages(plan.stages, ctx)
            finished[plan.phase] = plan.finished(ctx)
            strategy = ctx.strategy
            if plan.trains:
                trained.append(plan)
        last = finished[self._plans[-1].phase]
        return last.trained_model, last.logs


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Plan:
    """One run that is to be."""

    params: Any
    mode: str
    model_dir: str
    stages: Mapping[str, type[Stage]]
    phase: str = ""

    @property
    def trains(self) -> bool:
        return "train" in self.mode

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
    phases = getattr(params, "phases", [])
    if not phases:
        found = stage_factory.find_stages(params, stages)
        yield _Plan(params=params, mode=mode, model_dir=model_dir, stages=found)
    for index, phase in enumerate(phases):
        resolved = phase_configs.resolve(params, index, model_dir)
        with phase_configs.in_phase(phase.name):
            own = epochs.resolve(resolved)
            found = stage_factory.find_stages(own, stages)
        yield _Plan(
            params=own,
            mode=phase.mode or mode,
            model_dir=phase_configs.directory(params, index, model_dir),
            stages=found,
            phase=phase.name,
        )


def _check(plan: _Plan, earlier: Sequence[_Plan]) -> None:
    """Finds whatever can be known to fail, before the first phase has cost anything."""
    run_checks.check(plan.params, plan.mode)
    run_record.check_model_dir(plan.model_dir)
    _check_task(plan, earlier)
    # Stages of one's own may fetch the weights, or have their own idea of where they are.
    if all(stage_factory.is_default(name, plan.stages[name]) for name in _BRING_WEIGHTS):
        run_checks.check_evaluation(plan.params, plan.mode, plan.model_dir)
        run_checks.check_own_checkpoint(plan.model_dir)
        sources = {other.phase: other.model_dir for other in earlier if other.trains}
        run_checks.check_init_checkpoint(plan.params, plan.model_dir, sources)


def _check_task(plan: _Plan, earlier: Sequence[_Plan]) -> None:
    """Looks for the task and its files, as far as no stage of one's own may bring them."""
    if stage_factory.is_default("build", plan.stages["build"]):
        task_factory.find_task_cls(plan.params.task)
    is_alone = engine.expected_engine(plan.params.runtime) is not engine.Engine.CLUSTER
    # Of several processes one alone must not end: the others would wait for it.
    if is_alone and stage_factory.is_default("prepare", plan.stages["prepare"]):
        run_checks.check_input_files(plan.params, plan.mode, [other.model_dir for other in earlier])


def _warn_of_an_old_start(plan: _Plan, trained: Sequence[_Plan]) -> None:
    """A phase's own checkpoint comes before the weights that it would start from today."""
    path = getattr(plan.params.task, "init_checkpoint", "")
    if not path or not plan.trains or not latest.latest_checkpoint(plan.model_dir):
        return
    for source in trained:
        if phase_configs.lies_in(path, source.model_dir):
            logging.warning(
                "The phase `%s` has a checkpoint of its own and keeps to it, though `%s`, from "
                "which it started, has been trained since. Remove %s to start it anew.",
                plan.phase,
                source.phase,
                plan.model_dir,
            )


def _check_that_one_strategy_serves_all(plans: Sequence[_Plan]) -> None:
    """A second strategy in one process would meet what the first has set up."""
    first, *others = plans
    for plan in others:
        for field in _STRATEGY_FIELDS:
            wanted, got = getattr(first.params.runtime, field), getattr(plan.params.runtime, field)
            if wanted != got:
                raise errors.ConfigValueError(
                    f"The phases `{first.phase}` and `{plan.phase}` differ in `runtime.{field}`: "
                    f"{wanted!r} and {got!r}. All phases run under the strategy of the first; give "
                    "a command of its own to what needs another one."
                )
