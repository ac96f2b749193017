"""The five stages of a run, their shared context, and the lookup of stages in the config."""

import contextlib
import dataclasses
import enum
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import keras
import tensorflow as tf
from absl import logging

from official_lite import orbit
from official_lite.common import cluster, errors, flags, plugins, suggestions, terminal, tf_config
from official_lite.config import parsing
from official_lite.core import (
    base_task,
    base_trainer,
    config_definitions,
    preflight,
    task_factory,
    train_data,
    train_lib,
    trainer_factory,
)
from official_lite.modeling import hyperparams
from official_lite.run import runtime

_ON_A_CLUSTER = ("multi_worker_mirrored", "parameter_server")


class Engine(enum.Enum):
    """The topology of a run: one replica, several replicas in one process, or several processes."""

    SINGLE = "one replica"
    LOCAL_CLUSTER = "several replicas in one process"
    CLUSTER = "several processes"


def engine_of(strategy: tf.distribute.Strategy) -> Engine:
    """Return the engine of a strategy."""
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return Engine.CLUSTER
    resolver = strategy.cluster_resolver
    if resolver is not None:
        jobs = resolver.cluster_spec().as_dict()
        if len(jobs.get("chief", ())) + len(jobs.get("worker", ())) > 1:
            return Engine.CLUSTER
    return _by_replicas(strategy.num_replicas_in_sync)


def expected_engine(config: config_definitions.RuntimeConfig) -> Engine:
    """Return the engine that a config requests, without initializing devices."""
    found = _cluster(config)
    if found is not None and found.num_workers > 1:
        return Engine.CLUSTER
    name = config.distribution_strategy.lower()
    if name == "tpu":
        return Engine.LOCAL_CLUSTER
    if name in ("off", "one_device"):
        return Engine.SINGLE
    if config.devices is not None:
        return _by_replicas(len(config.devices))
    wants_all = name in _ON_A_CLUSTER or config.num_gpus == -1
    gpus = len(tf.config.list_physical_devices("GPU")) if wants_all else config.num_gpus
    return _by_replicas(gpus)


def is_chief(config: config_definitions.RuntimeConfig) -> bool:
    """Return whether this process will write the files of the run. Requires no strategy."""
    found = _cluster(config)
    if found is None or found.task_type in ("chief", "evaluator"):
        return True
    return "chief" not in found.jobs and (found.task_type, found.task_index) == ("worker", 0)


def uses_cluster(config: config_definitions.RuntimeConfig) -> bool:
    """Return whether the strategy uses the cluster in `TF_CONFIG`, if there is one."""
    return config.distribution_strategy.lower() in _ON_A_CLUSTER


def meet_workers(config: config_definitions.RuntimeConfig) -> None:
    """Wait for all workers that the strategy requires; return at once if there are none.

    Raises:
        errors.ClusterError: If a worker is missing.
    """
    found = _cluster(config)
    if found is not None and config.distribution_strategy.lower() == "multi_worker_mirrored":
        cluster.meet(found)


def warn_of_unused_workers(config: config_definitions.RuntimeConfig) -> None:
    """Warn if the strategy of a training ignores the other workers of a cluster."""
    name = config.distribution_strategy.lower()
    if name in (*_ON_A_CLUSTER, "tpu"):
        return
    num_workers = tf_config.configure_cluster(config.worker_hosts, config.task_index)
    found = tf_config.read_tf_config()
    if num_workers > 1 and found is not None and found.task_type != "evaluator":
        logging.warning(
            "`runtime.distribution_strategy` is `%s`, so this process trains alone, although the "
            "cluster in TF_CONFIG or `runtime.worker_hosts` has %d workers. If they share "
            "`model_dir`, only one of them can train at a time. To train together: "
            "--set=runtime.distribution_strategy=multi_worker_mirrored",
            name,
            num_workers,
        )


def _by_replicas(count: int) -> Engine:
    return Engine.LOCAL_CLUSTER if count > 1 else Engine.SINGLE


def _cluster(config: config_definitions.RuntimeConfig) -> tf_config.ClusterConfig | None:
    """Return the cluster config, or None if the strategy does not use a cluster."""
    if not uses_cluster(config):
        return None
    return tf_config.find_cluster(config.worker_hosts, config.task_index)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinishedPhase:
    """The results of an earlier phase.

    Attributes:
        name: The name of the phase.
        mode: The mode of the phase.
        model_dir: The model directory of the phase.
        logs: The metrics of the last evaluation; empty if there was none or the phase ran in
            another process.
        trained_model: The model; None if this process does not have it.
    """

    name: str
    mode: str
    model_dir: str
    logs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    trained_model: keras.Model | None = None

    @property
    def model(self) -> keras.Model:
        """The model of the phase.

        Raises:
            errors.CheckpointError: If the phase ran in another process or ended before it built a
                model.
        """
        if self.trained_model is None:
            raise errors.CheckpointError(
                f"The phase `{self.name}` has no model in this process. Restore its model from a "
                f"checkpoint in {self.model_dir}."
            )
        return self.trained_model


@dataclasses.dataclass(kw_only=True)
class ExperimentContext:
    """The state of a run: its arguments, and the objects that its stages have built so far.

    Stages read and write the context. A field is None until the stage that sets it has run.

    Attributes:
        params: The config. `build` converts epochs to steps, unless the config itself contains the
            length of an epoch; then they are converted before the first stage.
        mode: The mode of the run, such as `train_and_eval`.
        model_dir: The model directory of the run.
        phase: The name of the phase; empty if the run has no phases.
        phases: The earlier phases by name.
        stage: The name of the current stage.
        strategy: The strategy, set by `build` of this or an earlier phase.
        task, model, optimizer, trainer, runner: The objects set by `build`.
        logs: The metrics of the last evaluation, or the counts of a prediction, set by `run`.
        error: The error that ended the run, for `finalize`.
        enable_async_checkpointing: Whether training continues while a checkpoint is written.
        allow_config_change: Whether training may resume from checkpoints of a different config.
        hooks: Hooks that run after the hooks of the trainer and of the config.
        extras: Arbitrary data that custom stages share.
        exit_stack: Context managers to close at the end of the run, after `finalize`.
    """

    params: config_definitions.ExperimentConfig
    mode: str
    model_dir: str
    phase: str = ""
    phases: Mapping[str, FinishedPhase] = dataclasses.field(default_factory=dict)
    stage: str = ""
    strategy: tf.distribute.Strategy | None = None
    task: base_task.Task | None = None
    model: keras.Model | None = None
    optimizer: keras.optimizers.Optimizer | None = None
    trainer: base_trainer.Trainer | None = None
    runner: train_lib.OrbitExperimentRunner | None = None
    logs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    error: BaseException | None = None
    enable_async_checkpointing: bool = True
    allow_config_change: bool = False
    hooks: Sequence[orbit.Hook] = ()
    extras: dict[str, Any] = dataclasses.field(default_factory=dict)
    exit_stack: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)

    @property
    def trains(self) -> bool:
        """Whether the run trains; False without a mode, for example if only the model is built."""
        return bool(self.mode) and flags.Mode(self.mode).trains

    @property
    def evaluates(self) -> bool:
        """Whether the run evaluates."""
        return bool(self.mode) and flags.Mode(self.mode).evaluates

    @property
    def engine(self) -> Engine:
        """The topology of the run. It is taken from the config until the strategy is built."""
        if self.strategy is None:
            return expected_engine(self.params.runtime)
        return engine_of(self.strategy)

    @property
    def controller(self) -> orbit.Controller:
        """The controller, which runs the outer training loop.

        Raises:
            errors.ConfigValueError: If `build` has not set `runner`.
        """
        return self.require("runner").controller

    @property
    def global_step(self) -> int:
        """The number of completed steps; 0 before there is a trainer."""
        return 0 if self.trainer is None else int(self.trainer.global_step.numpy())

    def require(self, field: str) -> Any:
        """Return the value of a field that an earlier stage must have set.

        Raises:
            errors.ConfigValueError: If the field is None.
        """
        value = getattr(self, field)
        if value is None:
            raise errors.ConfigValueError(
                f"The stage `{self.stage}` needs `ctx.{field}`, which no earlier stage has set. "
                "The default `build` stage sets it; check whether that stage was replaced or "
                "skipped."
            )
        return value


class Stage:
    """The base class of stages. A stage is created right before it is called.

    Args:
        ctx: The context, also passed to `__call__`. The base class does not store it, so subclasses
            need not call `super().__init__`.
    """

    def __init__(self, ctx: ExperimentContext) -> None:
        """Accept the context without storing it."""

    def __call__(self, ctx: ExperimentContext) -> str | None:
        """Run the stage.

        Returns:
            The name of a later stage to run next; None for the following stage.
        """
        # Raise an error that names the incomplete class, instead of making this method abstract.
        # `view` does not need this method.
        raise NotImplementedError(f"{type(self).__name__} has no `__call__`. Define this method.")

    @classmethod
    def view(cls, ctx: ExperimentContext) -> Any:
        """Return the context in the form that this stage receives."""
        return ctx


class Prepare(Stage):
    """The stage that runs before the strategy, precision and task are set. It is empty by default.

    Override it to download data, set environment variables or change `ctx.params`. If the config
    gives the length of an epoch, epochs have already been converted to steps; `build` converts them
    again if this stage changes the data.
    """

    def __call__(self, ctx: ExperimentContext) -> str | None:
        return None


class Build(Stage):
    """The stage that builds the parts of a run. Each part has a method that can be overridden.

    The methods are called in this order::

        make_strategy; all workers compare their configs and code
        with the strategy's scope:
            make_task
            epochs in the config become steps; seed and precision are set
            make_model  make_optimizer  make_trainer
        make_runner
    """

    def __call__(self, ctx: ExperimentContext) -> str | None:
        self.build(ctx)
        return None

    def build(self, ctx: ExperimentContext) -> None:
        """Build all parts in order and store them in the context."""
        if ctx.mode == flags.Mode.TEST:
            ctx.params = config_definitions.for_test(ctx.params)
        ctx.strategy = self.make_strategy(ctx)
        # Compare the workers before the data are read and variables are created: workers that
        # differ may fail there one by one. The runner compares them again, with the final config.
        # Leave the files of the training data to the runner if `make_task` may download them first.
        mode = ctx.mode if is_default("build", type(self)) else flags.Mode.EVAL
        preflight.require_agreement(ctx.params, ctx.strategy, mode)
        with ctx.strategy.scope():
            # Set the seed before the task is built, because setting the seed deletes the resources
            # of ops such as tokenizers.
            ctx.exit_stack.enter_context(runtime.seed_and_precision(ctx.params.runtime))
            # Read the model files only after the stage `prepare`, which may have created them.
            ctx.params = parsing.read_model_files(ctx.params)
            ctx.task = self.make_task(ctx)
            ctx.params = train_data.resolve_epochs(
                ctx.params,
                ctx.task,
                ctx.mode,
                ctx.model_dir,
                divides_data=trainer_factory.divides_data(ctx.params),
            )
            ctx.model = self.make_model(ctx)
            ctx.optimizer = self.make_optimizer(ctx)
            ctx.trainer = self.make_trainer(ctx)
        # Use the trainer's model and optimizer, because a custom trainer may replace or wrap them.
        ctx.model = getattr(ctx.trainer, "model", ctx.model)
        ctx.optimizer = getattr(ctx.trainer, "optimizer", ctx.optimizer)
        ctx.runner = self.make_runner(ctx)

    def make_strategy(self, ctx: ExperimentContext) -> tf.distribute.Strategy:
        """Build the strategy that `runtime` describes; later phases reuse the first strategy."""
        if ctx.strategy is None:
            return runtime.build_strategy(ctx.params.runtime)
        runtime.set_intra_op_threads(ctx.params.runtime.intra_op_parallelism_threads)
        return ctx.strategy

    def make_task(self, ctx: ExperimentContext) -> base_task.Task:
        """Build the task that `task` describes."""
        task: base_task.Task = task_factory.get_task(ctx.params.task, logging_dir=ctx.model_dir)
        return task

    def make_model(self, ctx: ExperimentContext) -> keras.Model:
        """Let the task create its model. The model may not be built yet."""
        task: base_task.Task = ctx.require("task")
        return trainer_factory.build_model(task)

    def make_optimizer(self, ctx: ExperimentContext) -> keras.optimizers.Optimizer:
        """Let the task create its optimizer."""
        return trainer_factory.create_optimizer(ctx.require("task"), ctx.params)

    def make_trainer(self, ctx: ExperimentContext) -> base_trainer.Trainer:
        """Build the trainer that `trainer.name` or gin names."""
        return trainer_factory.create_trainer(
            ctx.params,
            ctx.require("task"),
            train=ctx.trains,
            evaluate=ctx.evaluates,
            checkpoint_exporter=train_lib.maybe_create_best_ckpt_exporter(
                ctx.params, ctx.model_dir
            ),
            model=ctx.model,
            optimizer=ctx.optimizer,
        )

    def make_runner(self, ctx: ExperimentContext) -> train_lib.OrbitExperimentRunner:
        """Build the controller, checkpoint manager, hooks and writers without restoring."""
        return train_lib.OrbitExperimentRunner(
            distribution_strategy=ctx.strategy,
            task=ctx.require("task"),
            mode=ctx.mode,
            params=ctx.params,
            model_dir=ctx.model_dir,
            trainer=ctx.trainer,
            enable_async_checkpointing=ctx.enable_async_checkpointing,
            hooks=ctx.hooks,
            restore=False,
        )


class Initialize(Stage):
    """The stage that initializes the weights: from the run's checkpoint, pretrained, or randomly.

    Afterwards the global step is that of the run's checkpoint, or 0.
    """

    def __call__(self, ctx: ExperimentContext) -> str | None:
        self.load(ctx)
        return None

    def load(self, ctx: ExperimentContext) -> str | None:
        """Restore the latest checkpoint in `model_dir`, or else `task.init_checkpoint`.

        The source of the weights is logged.

        Returns:
            The path of the run's own checkpoint; None if there is none.
        """
        path: str | None = ctx.require("runner").restore()
        self._log(ctx, path)
        return path

    def _log(self, ctx: ExperimentContext, path: str | None) -> None:
        pretrained = ctx.params.task.init_checkpoint
        if path is not None and ctx.trains:
            total = ctx.params.trainer.train_steps
            logging.info("Stage initialize: resumed at step %d of %d.", ctx.global_step, total)
        elif path is not None:
            logging.info("Stage initialize: restored the weights of step %d.", ctx.global_step)
        elif pretrained:
            field = "task.init_checkpoint_optimizer"
            is_hot = hyperparams.get_by_path(ctx.params, field, "none") != "none"
            kind = "hot start, with the optimizer," if is_hot else "warm start"
            logging.info("Stage initialize: %s from %s.", kind, pretrained)
        else:
            logging.info("Stage initialize: cold start.", extra=terminal.DETAIL)


class Run(Stage):
    """The stage that trains, evaluates or predicts, depending on the mode, in the strategy's scope.

    `train`, `evaluate` and `predict` can be overridden separately. To change only the inner loop,
    override `train_step` or `run_steps` of the trainer instead.
    """

    def __call__(self, ctx: ExperimentContext) -> str | None:
        runner = ctx.require("runner")
        ctx.logs = runner.run_mode(
            lambda: self.train(ctx), lambda: self.evaluate(ctx), lambda: self.predict(ctx)
        )
        ctx.params = runner.params
        return None

    def train(self, ctx: ExperimentContext) -> Mapping[str, Any] | None:
        """Train to the end, with the evaluations that the mode requires.

        Returns:
            The metrics of the last evaluation; None if there was none.
        """
        logs: Mapping[str, Any] | None = ctx.require("runner").train()
        return logs

    def evaluate(self, ctx: ExperimentContext) -> Mapping[str, Any] | None:
        """Evaluate the current state, or every checkpoint in the mode `continuous_eval`.

        Returns:
            The metrics of the last evaluation.
        """
        logs: Mapping[str, Any] | None = ctx.require("runner").evaluate()
        return logs

    def predict(self, ctx: ExperimentContext) -> Mapping[str, Any] | None:
        """Write the predictions of the current weights.

        Returns:
            The counts of rows and shards.
        """
        logs: Mapping[str, Any] | None = ctx.require("runner").predict()
        return logs


class Finalize(Stage):
    """The stage that always runs once at the end. By default it prints a summary after a success.

    When it runs, all files of the run except the log and `run.json` are complete and closed.
    `ctx.error` is the error that ended the run. Fields of the context that the run has not set are
    None.
    """

    def __call__(self, ctx: ExperimentContext) -> str | None:
        if ctx.error is None and ctx.runner is not None:
            ctx.runner.show_summary()
        return None


_DEFAULTS: dict[str, type[Stage]] = {
    "prepare": Prepare,
    "build": Build,
    "initialize": Initialize,
    "run": Run,
    "finalize": Finalize,
}

STAGES = tuple(_DEFAULTS)

_REGISTERED_STAGES: plugins.Collection = {}

_StageClass = TypeVar("_StageClass", bound=type[Stage])


def register_stage(name: str) -> Callable[[_StageClass], _StageClass]:
    """Return a decorator that registers a stage under a name for the config's `pipeline`.

    Raises:
        errors.ConfigError: If the name belongs to another stage.
    """
    return plugins.register(_REGISTERED_STAGES, name)


def find_stages(params: Any, stages: Mapping[str, Any] | None = None) -> dict[str, type[Stage]]:
    """Return the class of each stage by name, in the order in which they run.

    Args:
        params: The experiment's config.
        stages: Classes, or names of classes, that override those in the config.

    Raises:
        errors.ConfigError: If a stage is unknown or not a subclass of the default stage.
    """
    chosen = dict(stages or {})
    for name in chosen:
        if name not in STAGES:
            raise errors.UnknownNameError(
                f"Unknown stage {name!r}. {suggestions.did_you_mean(name, STAGES)}"
            )
    config = params.pipeline
    workspace = params.workspace or None
    return {
        name: _find(name, chosen.get(name) or hyperparams.get_by_path(config, name, ""), workspace)
        for name in STAGES
    }


def is_default(name: str, stage: type[Stage]) -> bool:
    """Return whether the class is the default class of the stage `name`."""
    return stage is _DEFAULTS[name]


def describe(name: str, stage: type[Stage]) -> str:
    """Return one line with the stage's name, its class, and the file or module of the class."""
    try:
        place = inspect.getsourcefile(stage)
    except (TypeError, OSError):
        # A class that was defined interactively has no source file.
        place = stage.__module__
    return f"stage {name}: {stage.__qualname__} ({place})"


def _find(name: str, spec: Any, workspace: str | None) -> type[Stage]:
    if not spec:
        return _DEFAULTS[name]
    base = _DEFAULTS[name]
    found = plugins.resolve(
        spec, registry=_REGISTERED_STAGES, base=base, workspace=workspace, kind=f"`{name}` stage"
    )
    if not inspect.isclass(found) or not issubclass(found, base):
        raise errors.ConfigTypeError(
            f"The `{name}` stage {spec!r} must be a subclass of `{base.__name__}`; got {found!r}."
        )
    return found
