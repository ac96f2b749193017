"""What the stages of a run hand on to one another."""

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
    """What is left of an earlier phase.

    Attributes:
        name: Its name.
        mode: Its mode.
        model_dir: Its directory.
        logs: The metrics of its last evaluation; empty if it had none, or ran in another process.
        trained_model: Its model; None if it has none in this process.
    """

    name: str
    mode: str
    model_dir: str
    logs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    trained_model: keras.Model | None = None

    @property
    def model(self) -> keras.Model:
        """Its model.

        Raises:
            errors.CheckpointError: It ran in another process, or ended before it made one.
        """
        if self.trained_model is None:
            raise errors.CheckpointError(
                f"The phase `{self.name}` has no model in this process. Its checkpoints are in "
                f"{self.model_dir}."
            )
        return self.trained_model


@dataclasses.dataclass(kw_only=True)
class ExperimentContext:
    """One run: what it was asked for, and what its stages have made so far.

    Stages read and write it. A field is None before the stage that makes it.

    Attributes:
        params: The config. `build` puts steps in the place of its epochs, unless the config
            itself says how long an epoch is: then they are there from the beginning.
        mode: What to run, such as `train_and_eval`.
        model_dir: The directory of the run.
        phase: The name of the phase; empty if the run has none.
        phases: The phases before this one, by name.
        stage: The name of the stage under way.
        strategy: Made by `build`, or by that of an earlier phase.
        task, model, optimizer, trainer, runner: Made by `build`.
        logs: The metrics of the last evaluation, set by `run`.
        error: What ended the run, for `finalize`.
        enable_async_checkpointing: Whether training goes on while a checkpoint is being written.
        allow_config_change: Whether training may go on with the checkpoints of another config.
        extras: Whatever stages of one's own want to tell one another.
        exit_stack: Closed when the run is over, after `finalize`.
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
        """How many replicas and processes there are, or will be once there is a strategy."""
        if self.strategy is None:
            return engine.expected_engine(self.params.runtime)
        return engine.engine_of(self.strategy)

    @property
    def controller(self) -> orbit.Controller:
        """The outer loop.

        Raises:
            errors.ConfigValueError: `build` has made no runner.
        """
        return self.require("runner").controller

    @property
    def global_step(self) -> int:
        """The number of updates so far; 0 before there is a trainer."""
        return 0 if self.trainer is None else int(self.trainer.global_step.numpy())

    def require(self, field: str) -> Any:
        """The value of a field that an earlier stage has to have made.

        Raises:
            errors.ConfigValueError: It has not.
        """
        value = getattr(self, field)
        if value is None:
            raise errors.ConfigValueError(
                f"The stage `{self.stage}` needs `ctx.{field}`, which no stage before it has set. "
                "The default `build` does; was it replaced, or jumped over?"
            )
        return value
