"""The context that the stages of a run share."""

import contextlib
import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from official_lite import orbit
from official_lite.common import cluster, errors, flags, tf_config
from official_lite.core import base_task, base_trainer, config_definitions, train_lib

__all__ = [
    "Engine",
    "engine_of",
    "expected_engine",
    "is_chief",
    "meet_workers",
    "ExperimentContext",
    "FinishedPhase",
]


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
    """Return whether this process will be the one that writes. Requires no strategy."""
    found = _cluster(config)
    if found is None or found.task_type in ("chief", "evaluator"):
        return True
    return "chief" not in found.jobs and (found.task_type, found.task_index) == ("worker", 0)


def meet_workers(config: config_definitions.RuntimeConfig) -> None:
    """Wait for all workers that the strategy requires; return at once if there are none.

    Raises:
        errors.ClusterError: If a worker is missing.
    """
    found = _cluster(config)
    if found is not None and config.distribution_strategy.lower() == "multi_worker_mirrored":
        cluster.meet(found)


def _by_replicas(count: int) -> Engine:
    return Engine.LOCAL_CLUSTER if count > 1 else Engine.SINGLE


def _cluster(config: config_definitions.RuntimeConfig) -> tf_config.ClusterConfig | None:
    """Return the cluster, or None if the strategy does not use one."""
    if config.distribution_strategy.lower() not in _ON_A_CLUSTER:
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
                f"The phase `{self.name}` has no model in this process. Its checkpoints are in "
                f"{self.model_dir}."
            )
        return self.trained_model


@dataclasses.dataclass(kw_only=True)
class ExperimentContext:
    """The state of a run: its arguments, and the objects that its stages have built so far.

    Stages read and write the context. A field is None until the stage that sets it has run.

    Attributes:
        params: The config. `build` converts epochs to steps. If the config itself gives the length
            of an epoch, the conversion has happened before the first stage.
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
    extras: dict[str, Any] = dataclasses.field(default_factory=dict)
    exit_stack: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)

    @property
    def trains(self) -> bool:
        """Whether the run trains; False if there is no mode, as when only the model is built."""
        return bool(self.mode) and flags.Mode(self.mode).trains

    @property
    def evaluates(self) -> bool:
        """Whether the run evaluates."""
        return bool(self.mode) and flags.Mode(self.mode).evaluates

    @property
    def engine(self) -> Engine:
        """The topology of the run; before the strategy is built, the one the config requests."""
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
                "The default `build` sets it; check whether it was replaced or skipped."
            )
        return value
