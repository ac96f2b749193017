"""The interfaces of trainers and evaluators that a controller runs."""

import abc
from collections.abc import Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from official_lite import telemetry
from official_lite.common import errors

# By name: a tensor, a number, an array, or a dictionary of the same kind.
Output: TypeAlias = dict[str, Any]


def set_untracked(module: tf.Module, **attributes: Any) -> None:
    """Set attributes that `tf.Module` must not wrap, track, or search for variables."""
    module.__dict__.update(attributes)


class _OfController:
    """An attribute of the controller, by the name of LiBai's and detectron2's trainers.

    A subclass may assign an attribute of its own to the name.
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
                f"`{type(trainer).__name__}.{self._own_name}` is known only to a trainer that a "
                "controller runs; this one has none yet."
            )
        return getattr(trainer._orbit_controller, self._name)


class AbstractTrainer(tf.Module, metaclass=abc.ABCMeta):
    """Trainer that runs a number of steps at a time.

    A hook finds the names of LiBai's and detectron2's trainers here: `iter`, `start_iter`,
    `max_iter` and `storage`.

    Attributes:
      event_storage: What the numbers go to that code puts anywhere in the step; set by the first
        controller, and kept, since a traced step goes on putting them there.
    """

    # The controller that runs this trainer, set by it; a search has controllers, too.
    _orbit_controller: Any = None
    event_storage: telemetry.EventStorage | None = None
    iter = _OfController("iter")
    start_iter = _OfController("first_step")
    max_iter = _OfController("last_step")
    storage = _OfController("storage")

    def set_graph_hooks(self, graph_hooks: Sequence[Any]) -> None:
        """Set the hooks that are traced into the step; a later call replaces them.

        Args:
          graph_hooks: Of the class `hooks.GraphHook`.

        Raises:
          errors.ConfigTypeError: This trainer can't run any.
        """
        if graph_hooks:
            raise errors.ConfigTypeError(
                f"{type(self).__name__} can't run the graph hook "
                f"{type(graph_hooks[0]).__name__}: it has no `set_graph_hooks`. Derive the trainer "
                "from `core.base_trainer.Trainer`."
            )

    def after_restore(self) -> None:
        """Update derived state; called after a checkpoint was restored."""

    @abc.abstractmethod
    def train(self, num_steps: tf.Tensor) -> Output | None:
        """Trains `num_steps` steps, and adds as many to the global step.

        Args:
          num_steps: An int32 scalar.

        Returns:
          What there is to report of these steps; nested names become folders of summaries.
        """


class AbstractEvaluator(tf.Module, metaclass=abc.ABCMeta):
    """Evaluator that runs a number of steps at a time.

    Attributes:
      steps_run: The steps that the last evaluation really took, which are fewer than it was asked
        for if the data ended; `None` if this evaluator does not count them.
    """

    steps_run: int | None = None

    def before_training(self, step: int) -> None:
        """Prepare for training that starts from, or returns to, the state of `step`.

        Whatever has been kept of evaluations after `step` belongs to a training that was broken
        off.
        """

    def before_checkpoint(self) -> None:
        """Prepare for a save of the training state, from which training may restart."""

    def after_checkpoint(self, step: int) -> None:
        """Release what only states before `step` need; called when its checkpoint is complete."""

    @abc.abstractmethod
    def evaluate(self, num_steps: tf.Tensor) -> Output | None:
        """Evaluate `num_steps` steps.

        Args:
          num_steps: An int32 scalar; -1 stands for all the data there are.

        Returns:
          What there is to report; nested names become folders of summaries.
        """
