"""Hooks, which run user code between steps.

::

    before_train
    while step < last_step:
        before_step                   of the hooks due at the end of this stretch
        … one compiled call …
        after_step                    of the hooks due here
        after_eval(logs)              if there was an evaluation here
        after_epoch                   if an epoch ends here
        on_checkpoint(path)           if a checkpoint has become complete
    on_exception(error)               if something failed
    after_train(success)              always
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import tensorflow as tf

from official_lite import telemetry
from official_lite.orbit import runner, triggers


class RunningController(Protocol):
    """The part of an `orbit.Controller` that hooks use; see there for the meaning."""

    global_step: tf.Variable
    trainer: runner.AbstractTrainer | None
    evaluator: runner.AbstractEvaluator | None
    strategy: tf.distribute.Strategy
    checkpoint_manager: tf.train.CheckpointManager | None
    storage: telemetry.EventStorage
    train_actions: Sequence[Callable[[runner.Output], None]]
    eval_preparations: list[Callable[[], None]]
    eval_steps: int
    first_step: int
    last_step: int
    steps_per_epoch: int | None
    model_dir: str | None

    @property
    def step(self) -> int: ...
    @property
    def iter(self) -> int: ...
    @property
    def train_logs(self) -> runner.Output: ...
    @property
    def eval_logs(self) -> runner.Output: ...
    @property
    def train_seconds(self) -> float: ...
    def evaluate(self, steps: int = -1) -> runner.Output | None: ...
    def save_checkpoint(self) -> str | None: ...
    def checkpoint_every(self, num_steps: int) -> None: ...
    def request_stop(self, reason: str) -> None: ...


class Hook:
    """Code that runs between steps. All methods are optional.

    A method that is called with an argument (`after_eval`, `on_checkpoint`, `on_exception`,
    `after_train`) may be written without it.

    Hooks run in the order of the list they were given in. An error in one of them does not keep
    the event from the others, but it ends the training.

    Attributes:
      every_n_steps: How often the hook needs the loop: its `before_step` and `after_step` run
        around the stretch of steps that ends at each multiple of this number. The compiled loop
        is cut there, so a large number is cheap. 0 stands for not at all. A hook that overrides
        one of the two methods and leaves this at `None` gets every step, and a warning.
      name: What its state is called in a checkpoint; by default the name of its class.
      controller: The controller that runs the hook, set by it.
      trainer: The trainer of that controller, set by it.
    """

    every_n_steps: int | None = None
    name: str | None = None
    controller: RunningController
    trainer: runner.AbstractTrainer | None

    @property
    def iter(self) -> int:
        """The 0-based number of the step that is under way, or has just ended."""
        return self.controller.iter

    def build_trigger(self) -> triggers.Trigger:
        """When the hook needs the loop. Override it where `every_n_steps` can't say so."""
        return triggers.every(self.every_n_steps)

    def before_train(self) -> None:
        """Before the first step."""

    def before_step(self) -> None:
        """Before a stretch of steps that ends at a step at which this hook is due."""

    def after_step(self) -> None:
        """After a step at which this hook is due."""

    def after_epoch(self) -> None:
        """After each `steps_per_epoch` steps, if the controller knows that number."""

    def after_eval(self, logs: Mapping[str, Any]) -> None:
        """After each evaluation, with its results."""

    def on_checkpoint(self, path: str) -> None:
        """After each checkpoint, when its files are complete.

        It may have been saved some steps ago, if it was written in the background: its step is in
        the path.
        """

    def on_exception(self, error: BaseException) -> None:
        """After training has failed, before `after_train`."""

    def after_train(self, success: bool) -> None:
        """At the end, also of a training that failed; then `success` is false."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the hook for a checkpoint."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""


class GraphHook(Hook):
    """Hook that is traced into the training step, so it runs in every step at graph speed.

    Its two methods run on every replica, once a trace; what they do with Python values is done
    once and for all. Numbers leave through `telemetry.put_scalar`. It may have the methods of a
    `Hook` as well. The trainer has to know of it, as `core.base_trainer.Trainer` does.

    Attributes:
      takes_rows: Whether the gradient of a table whose rows are updated may be `tf.IndexedSlices`,
        with each row once. Otherwise it is made as large as the table.
    """

    takes_rows = False

    def call(self, logs: Mapping[str, Any]) -> None:
        """After the task's train step on a replica.

        Args:
          logs: What that step returned. With gradient accumulation, that of a micro-batch.
        """
        del logs  # AutoGraph can't convert a function of no statements.

    def on_gradients(self, grads_and_vars: Sequence[tuple[Any, Any]]) -> None:
        """Before an update, with the gradients summed over the replicas and not yet clipped."""
        del grads_and_vars
