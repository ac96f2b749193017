"""The evaluator of several tasks, one after another, on one state of the weights."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import gin
import keras
import tensorflow as tf

from official_lite import orbit
from official_lite.core import (
    base_task,
    batch_mean,
    best_checkpoint,
    evaluating_trainer,
    metric_group,
    model_building,
)
from official_lite.modeling.multitask import base_trainer
from official_lite.modeling.optimization import ema_optimizer, preparation

__all__ = ["MultiTaskEvaluator"]


@gin.configurable
class MultiTaskEvaluator(orbit.AbstractEvaluator):
    """Evaluates each task on its own data; the results are nested, `{task: {metric: value}}`.

    Create it in the strategy's scope. If the optimizer keeps averages of the weights, these are
    what is evaluated, and what a best checkpoint holds as the model.
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
    ) -> None:
        """Builds what evaluation needs, the model's variables included.

        Args:
            eval_tasks: The tasks; each goes by its `name`.
            model: Their models, or one Keras model for all of them.
            global_step: The step counter of the training, if there is one beside.
            eval_steps: Batches in an evaluation of a task, by its name; None, or left out, is the
                number that `evaluate` is given.
            checkpoint_exporter: An object with `maybe_export_checkpoint`, which is shown every
                evaluation.
            optimizer: The optimizer of the training. Without it a checkpoint's averages of the
                weights are not found.
            evaluator_options: How the loops are executed.
            init_fn: Loads weights when there is no checkpoint; by default the model's `initialize`.

        Raises:
            errors.UnknownKeyError: A task has no model.
        """
        super().__init__()
        self._strategy = tf.distribute.get_strategy()
        self._tasks = list(eval_tasks)
        self._model = model
        self._global_step = orbit.utils.create_global_step() if global_step is None else global_step
        self._checkpoint_exporter = checkpoint_exporter
        self._init_fn = init_fn
        self.eval_steps = dict(eval_steps or {})
        self._evaluators = {
            task.name: _TaskEvaluator(
                task,
                base_trainer.task_model(model, task.name),
                self._global_step,
                evaluator_options,
            )
            for task in self._tasks
        }
        self._optimizer = optimizer and preparation.prepare_optimizer(optimizer, model)
        self._checkpoint = tf.train.Checkpoint(
            **base_trainer.checkpoint_items(model, self._optimizer, self._global_step)
        )

    @property
    def strategy(self) -> tf.distribute.Strategy:
        return self._strategy

    @property
    def tasks(self) -> list[base_task.Task]:
        return self._tasks

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
        return {name: evaluator.loss for name, evaluator in self._evaluators.items()}

    @property
    def validation_metrics(self) -> dict[str, list[keras.metrics.Metric]]:
        """The metrics of each task."""
        return {name: evaluator.metrics for name, evaluator in self._evaluators.items()}

    @property
    def checkpoint(self) -> tf.train.Checkpoint:
        """What is restored before an evaluation, and saved of the best."""
        return self._checkpoint

    def initialize(self) -> None:
        """Called when there is no checkpoint to evaluate: pretrained weights may be loaded."""
        if self._init_fn is not None:
            self._init_fn()
        base_trainer.initialize_model(self.model, self.optimizer)

    def before_training(self, step: int) -> None:
        """Has the checkpoint exporter forget what was best after `step`."""
        evaluating_trainer.tell_exporter(self._checkpoint_exporter, "rewind", step)

    def before_checkpoint(self) -> None:
        """Has the checkpoint exporter keep what is best now."""
        evaluating_trainer.tell_exporter(self._checkpoint_exporter, "protect")

    def after_checkpoint(self, step: int) -> None:
        """Has the checkpoint exporter let go of what only earlier states need."""
        evaluating_trainer.tell_exporter(self._checkpoint_exporter, "settle", step)

    def evaluate(self, num_steps: tf.Tensor) -> dict[str, Any]:
        """Evaluates the tasks in turn. The training weights come back however that ends.

        Args:
            num_steps: Batches of each task that has no number of its own; -1 is all of them.

        Raises:
            errors.DataError: A task has no data at all.
        """
        with ema_optimizer.averaged_weights(self.optimizer):
            results = {name: self._evaluate_task(name, num_steps) for name in self._evaluators}
            if self._checkpoint_exporter:
                self._checkpoint_exporter.maybe_export_checkpoint(
                    self.checkpoint, results, self.global_step.numpy()
                )
        steps_run = [evaluator.steps_run or 0 for evaluator in self._evaluators.values()]
        self.steps_run = sum(steps_run) or None
        return results

    def _evaluate_task(self, name: str, num_steps: tf.Tensor) -> dict[str, Any]:
        own_steps = self.eval_steps.get(name)
        steps = num_steps if own_steps is None else tf.constant(own_steps, tf.int32)
        return self._evaluators[name].evaluate(steps) or {}


class _TaskEvaluator(orbit.StandardEvaluator):
    """Evaluates one task."""

    def __init__(
        self,
        task: base_task.Task,
        model: keras.Model,
        global_step: tf.Variable,
        options: orbit.StandardEvaluatorOptions | None,
    ) -> None:
        self._strategy = tf.distribute.get_strategy()
        self._task = task
        self._model = model
        self._global_step = global_step
        self.loss = batch_mean.BatchMean("validation_loss", dtype="float32")
        self.metrics = list(task.build_metrics(training=False))
        super().__init__(
            orbit.utils.make_distributed_dataset(
                self._strategy, task.build_inputs, task.task_config.validation_data
            ),
            options=options,
        )
        model_building.build_variables(
            model,
            functools.partial(task.validation_step, model=model, metrics=[]),
            self.eval_dataset.element_spec,
        )
        self._reported = metric_group.MetricGroup(
            [*self.metrics, *metric_group.model_metrics(model)]
        )

    def eval_begin(self) -> None:
        self.loss.reset_state()
        self._reported.reset()

    def eval_step(self, iterator: Iterator[Any]) -> dict[str, Any]:
        outputs = self._strategy.run(self._replica_step, args=(next(iterator),))
        return tf.nest.map_structure(self._strategy.experimental_local_results, outputs)

    def eval_reduce(self, state: Any = None, step_outputs: Any = None) -> Any:
        # By position: tasks name the second argument as they like.
        return self._task.aggregate_logs(state, step_outputs)

    def eval_end(self, aggregated_logs: Any = None) -> dict[str, Any]:
        logs = self._reported.results()
        if float(tf.convert_to_tensor(self.loss.count)) > 0:
            logs[self.loss.name] = self.loss.result()
        if aggregated_logs:
            logs |= self._task.reduce_aggregated_logs(
                aggregated_logs, global_step=self._global_step
            )
        return logs

    def _replica_step(self, inputs: Any) -> dict[str, Any]:
        logs = self._task.validation_step(inputs, model=self._model, metrics=self.metrics)
        if self._task.loss in logs:
            self.loss.update_state(logs[self._task.loss], batch=inputs)
        return logs
