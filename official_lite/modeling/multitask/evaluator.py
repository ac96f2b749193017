"""Evaluator that evaluates several tasks in turn with the same weights."""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import gin
import keras
import tensorflow as tf

from official_lite import orbit
from official_lite.common import errors
from official_lite.core import (
    base_task,
    best_checkpoint,
    checkpoint_state,
    config_definitions,
    exporter_events,
    model_building,
)
from official_lite.core import base_trainer as core_trainer
from official_lite.data import length
from official_lite.modeling.multitask import base_trainer, multitask
from official_lite.modeling.optimization import ema_optimizer, optimizer_factory

__all__ = ["MultiTaskEvaluator", "build_models"]


@gin.configurable
class MultiTaskEvaluator(orbit.AbstractEvaluator):
    """Evaluator of several tasks, each on its own data; results are `{task: {metric: value}}`.

    Create the evaluator in the strategy's scope; its constructor also builds the model's variables.
    If the optimizer keeps averages of the weights, the averages are evaluated, and a best
    checkpoint stores them as the model.

    Args:
        eval_tasks: The tasks; each is identified by its `name`.
        model: The models of the tasks, or one Keras model for all of them.
        global_step: The step counter of the trainer, if there is one.
        eval_steps: The number of batches in an evaluation of a task, by task name. For None or a
            missing task, the number passed to `evaluate` is used.
        checkpoint_exporter: An object whose `maybe_export_checkpoint` is called after every
            evaluation.
        optimizer: The training optimizer. Without it, weight averages in a checkpoint are not
            restored.
        evaluator_options: How the evaluation loops are executed.
        init_fn: A function that loads weights if there is no checkpoint. The model's `initialize`
            is called in any case.
        checkpoint: The checkpoint of the trainer, if there is one. It is saved as the best
            checkpoint, so that training can resume from it.
        freeze: The field `trainer.freeze`, if there is no trainer, which would freeze the model.
            The optimizer keeps averages only of weights that are not frozen.
        virtual_replicas: The field `trainer.virtual_replicas`.
        multi_task: The tasks of the training run, if `eval_tasks` are the same. Their state is then
            in the checkpoint, too.

    Raises:
        errors.UnknownKeyError: A task has no model.
    """

    def __init__(
        self,
        eval_tasks: Iterable[base_task.Task],
        model: base_trainer.Model,
        global_step: tf.Variable | None = None,
        eval_steps: Mapping[str, int | None] | None = None,
        checkpoint_exporter: best_checkpoint.BestCheckpointExporter | None = None,
        *,
        optimizer: keras.optimizers.Optimizer | None = None,
        evaluator_options: orbit.StandardEvaluatorOptions | None = None,
        init_fn: Callable[[], None] | None = None,
        checkpoint: tf.train.Checkpoint | None = None,
        freeze: Sequence[str] = (),
        virtual_replicas: int = 0,
        multi_task: multitask.MultiTask | None = None,
    ) -> None:
        super().__init__()
        self._strategy = tf.distribute.get_strategy()
        self._tasks = list(eval_tasks)
        self._model = model
        self._global_step = orbit.utils.create_global_step() if global_step is None else global_step
        self._checkpoint_exporter = checkpoint_exporter
        self._init_fn = init_fn
        self._multi_task = multi_task
        self.eval_steps = dict(eval_steps or {})
        self._evaluators = {
            task.name: _TaskEvaluator(
                task,
                base_trainer.task_model(model, task.name),
                self._global_step,
                evaluator_options or orbit.StandardEvaluatorOptions(),
                virtual_replicas,
                # Pass no optimizer if there is a trainer, which has already built all layers that
                # training uses.
                None if checkpoint else optimizer,
            )
            for task in self._tasks
        }
        model_building.freeze(model, freeze)
        self._optimizer = optimizer and optimizer_factory.prepare_optimizer(optimizer, model)
        self._checkpoint = checkpoint or tf.train.Checkpoint(
            **base_trainer.checkpoint_items(model, self._optimizer, self._global_step)
        )

    @property
    def strategy(self) -> tf.distribute.Strategy:
        return self._strategy

    @property
    def tasks(self) -> list[base_task.Task]:
        return self._tasks

    @property
    def multi_task(self) -> multitask.MultiTask | None:
        """The tasks of the training run, if they are the evaluated ones."""
        return self._multi_task

    @property
    def model(self) -> base_trainer.Model:
        return self._model

    @property
    def optimizer(self) -> keras.optimizers.Optimizer | None:
        return self._optimizer

    @property
    def global_step(self) -> tf.Variable:
        return self._global_step

    @property
    def validation_losses(self) -> dict[str, keras.metrics.Metric]:
        """The mean loss of each task."""
        return {name: evaluator.validation_loss for name, evaluator in self._evaluators.items()}

    @property
    def validation_metrics(self) -> dict[str, list[keras.metrics.Metric]]:
        """The metrics of each task and of its model."""
        return {name: one.validation_metrics for name, one in self._evaluators.items()}

    @property
    def checkpoint(self) -> tf.train.Checkpoint:
        """The checkpoint that is restored before an evaluation and saved as the best."""
        return self._checkpoint

    def initialize(self) -> None:
        """Load pretrained weights, if any; called if there is no checkpoint to evaluate."""
        if self._init_fn is not None:
            self._init_fn()
        base_trainer.initialize_model(self.model, self.optimizer)

    def before_training(self, step: int) -> None:
        """Make the checkpoint exporter discard best results recorded after `step`."""
        exporter_events.notify(self._checkpoint_exporter, "rewind", step)

    def before_checkpoint(self) -> None:
        """Make the checkpoint exporter protect the current best checkpoint."""
        exporter_events.notify(self._checkpoint_exporter, "protect")

    def after_checkpoint(self, step: int) -> None:
        """Make the checkpoint exporter release files that only earlier states require."""
        exporter_events.notify(self._checkpoint_exporter, "settle", step)

    def evaluate(self, num_steps: tf.Tensor) -> dict[str, Any]:
        """Evaluate the tasks in turn, and restore the training weights even if one raises.

        Args:
            num_steps: The number of batches for each task without its own number; -1 evaluates all.

        Raises:
            errors.ConfigValueError: A task would be evaluated on all data, but its data repeat
                forever.
            errors.DataError: A task has no data.
        """
        self.check_data(int(num_steps))
        with (
            ema_optimizer.averaged_weights(self.optimizer),
            checkpoint_state.undone_by_stop(self.checkpoint),
        ):
            results = {name: self._evaluate_task(name, num_steps) for name in self._evaluators}
            if self._checkpoint_exporter:
                exporter_events.export(self, results)
        steps_run = [evaluator.steps_run or 0 for evaluator in self._evaluators.values()]
        self.steps_run = sum(steps_run) or None
        return results

    def check_data(self, num_steps: int) -> None:
        """Check that an evaluation can end; `num_steps` is that of `evaluate`.

        Raises:
            errors.ConfigValueError: A task would be evaluated on all data, but its data repeat
                forever.
        """
        for name, one in self._evaluators.items():
            own_steps = self.eval_steps.get(name)
            wanted = num_steps if own_steps is None else own_steps
            if wanted == -1 and length.is_infinite(one.eval_dataset):
                raise errors.ConfigValueError(
                    f"The evaluation data of the task {name!r} repeat forever, but all of the data "
                    "are requested. Remove the `repeat`, or set the `eval_steps` of the task to a "
                    "number of batches."
                )

    def evaluating_apart(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which no evaluation updates the best checkpoint; see `Trainer`."""
        return exporter_events.without_exporter(self)

    def _evaluate_task(self, name: str, num_steps: tf.Tensor) -> dict[str, Any]:
        own_steps = self.eval_steps.get(name)
        steps = num_steps if own_steps is None else tf.constant(own_steps, tf.int32)
        return self._evaluators[name].evaluate(steps) or {}


def build_models(
    tasks: Iterable[base_task.Task], model: base_trainer.Model, virtual_replicas: int = 0
) -> None:
    """Build the layers that the validation steps of the tasks call.

    Call this function in the strategy's scope, before a trainer builds the optimizer, which can't
    train layers that are built later.

    Args:
        tasks: The tasks; each is identified by its `name`.
        model: The models of the tasks, or one Keras model for all of them.
        virtual_replicas: The field `trainer.virtual_replicas`.
    """
    options = orbit.StandardEvaluatorOptions()
    for task in tasks:
        part = base_trainer.task_model(model, task.name)
        if not model_building.has_variables(part):
            step = orbit.utils.create_global_step()
            _TaskEvaluator(task, part, step, options, virtual_replicas, None)


class _TaskEvaluator(core_trainer.Trainer):
    """Evaluator for a single task, without an optimizer and without state in checkpoints.

    `training_optimizer` is used only to trace the training step. It is not built here, because it
    belongs to the models of all tasks.
    """

    def __init__(
        self,
        task: base_task.Task,
        model: keras.Model,
        global_step: tf.Variable,
        options: orbit.StandardEvaluatorOptions,
        virtual_replicas: int,
        training_optimizer: keras.optimizers.Optimizer | None,
    ) -> None:
        self._step = global_step
        self._training_optimizer = training_optimizer
        config = config_definitions.ExperimentConfig(
            task=task.task_config,
            trainer=config_definitions.TrainerConfig(
                eval_tf_function=options.use_tf_function,
                eval_tf_while_loop=options.use_tf_while_loop,
                virtual_replicas=virtual_replicas,
            ),
        )
        super().__init__(config, task, model, cast(keras.optimizers.Optimizer, None), train=False)
        self._eval_options = options

    @property
    def global_step(self) -> tf.Variable:
        return self._step

    def _checkpoint_items(self) -> dict[str, Any]:
        return {}

    def _build_model(self, train: bool) -> None:
        super()._build_model(train)
        self._build_for_training(self._training_optimizer)
