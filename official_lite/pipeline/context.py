"""The context that the stages of a run share."""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from official_lite import orbit
from official_lite.common import errors
from official_lite.core import base_task, base_trainer, config_definitions, train_lib
from official_lite.pipeline import engine

__all__ = ["ExperimentContext", "FinishedPhase"]


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
        logs: The metrics of the last evaluation, set by `run`.
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
    def engine(self) -> engine.Engine:
        """The topology of the run; before the strategy is built, the one the config requests."""
        if self.strategy is None:
            return engine.expected_engine(self.params.runtime)
        return engine.engine_of(self.strategy)

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
                f"The stage `{self.stage}` needs `ctx.{field}`, which no stage before it has set. "
                "The default `build` does; was it replaced, or jumped over?"
            )
        return value
