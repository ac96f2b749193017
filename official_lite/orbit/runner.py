"""The interfaces through which a controller calls trainers and evaluators."""

import abc
import contextlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from official_lite import telemetry
from official_lite.common import errors

# Maps names to tensors, numbers, arrays, or nested dictionaries of them.
Output: TypeAlias = dict[str, Any]


def set_untracked(module: tf.Module, **attributes: Any) -> None:
    """Set attributes that `tf.Module` must not wrap, track, or search for variables."""
    module.__dict__.update(attributes)


def model_of(runner: object) -> keras.Model | None:
    """Return the model of a trainer or evaluator, which need not have one."""
    return getattr(runner, "model", None)


def optimizer_of(trainer: object) -> keras.optimizers.Optimizer | None:
    """Return the optimizer of a trainer, which need not have one."""
    return getattr(trainer, "optimizer", None)


class _OfController:
    """A descriptor that makes a controller attribute available on the trainer.

    Trainers in LiBai and detectron2 have attributes with the same names. Trainer subclasses may
    override the attribute.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __set_name__(self, owner: type, name: str) -> None:
        self._own_name = name

    def __get__(self, trainer: Any, owner: type) -> Any:
        if trainer is None:
            return self
        if trainer._orbit_controller is None:
            raise AttributeError(
                f"`{type(trainer).__name__}.{self._own_name}` is only available while a "
                "controller runs the trainer; this trainer has no controller yet. Pass it to "
                "`orbit.Controller` first."
            )
        return getattr(trainer._orbit_controller, self._name)


class AbstractTrainer(tf.Module, metaclass=abc.ABCMeta):
    """Trains a number of steps at a time.

    For hooks written for LiBai or detectron2, trainers provide the attributes `iter`, `start_iter`,
    `max_iter` and `storage`.

    Attributes:
        event_storage: The storage for numbers logged by code inside the step. The first controller
            sets it. It is never replaced, because a traced step keeps logging to it.
    """

    # The `orbit.Controller` that runs this trainer and sets this attribute. The attribute is not
    # called `controller`, because an architecture search has controllers of another kind.
    _orbit_controller: Any = None
    event_storage: telemetry.EventStorage | None = None
    iter = _OfController("iter")
    start_iter = _OfController("first_step")
    max_iter = _OfController("last_step")
    storage = _OfController("storage")

    def set_graph_hooks(self, graph_hooks: Sequence[Any]) -> None:
        """Set the hooks to trace into the step. A later call replaces them.

        Args:
            graph_hooks: Instances of `hooks.GraphHook`.

        Raises:
            errors.ConfigTypeError: This trainer does not support graph hooks.
        """
        if graph_hooks:
            raise errors.ConfigTypeError(
                f"{type(self).__name__} does not override `set_graph_hooks`, so it can't run the "
                f"graph hook {type(graph_hooks[0]).__name__}. Derive the trainer from "
                "`core.base_trainer.Trainer`."
            )

    def keeping_metrics(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which an evaluation does not change what training reports."""
        return contextlib.nullcontext()

    def after_restore(self) -> None:
        """Update whatever depends on the state, after a checkpoint has been restored."""

    @abc.abstractmethod
    def train(self, num_steps: tf.Tensor) -> Output | None:
        """Train for `num_steps` steps and add `num_steps` to the global step.

        Args:
            num_steps: An int32 scalar.

        Returns:
            The values to report for these steps. Nested names become nested summary folders.
        """


class AbstractEvaluator(tf.Module, metaclass=abc.ABCMeta):
    """Evaluates a number of steps at a time.

    Attributes:
        steps_run: The number of steps that the last evaluation ran, which is smaller than requested
            if the data ended. `None` if this evaluator does not count its steps.
    """

    steps_run: int | None = None

    def before_training(self, step: int) -> None:
        """Prepare for training that starts from, or rewinds to, the state of `step`.

        Discard any results of evaluations after `step`: they belong to a training run that was
        interrupted.
        """

    def before_checkpoint(self) -> None:
        """Prepare for a save of the training state, from which training may later resume."""

    def after_checkpoint(self, step: int) -> None:
        """Handle a complete checkpoint of `step`; training never rewinds to an earlier step."""

    @abc.abstractmethod
    def evaluate(self, num_steps: tf.Tensor) -> Output | None:
        """Evaluate `num_steps` steps.

        Args:
            num_steps: An int32 scalar; -1 means all the data.

        Returns:
            The values to report. Nested names become nested summary folders.
        """
