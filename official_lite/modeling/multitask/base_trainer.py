"""Trainer that trains all tasks jointly in each step."""

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import gin
import keras
import tensorflow as tf

from official_lite import orbit
from official_lite.checkpoint import adapted_layers, model_state
from official_lite.common import errors, suggestions, types
from official_lite.core import (
    base_task,
    model_building,
    step_checks,
    step_metrics,
    train_data,
)
from official_lite.data import length, position, replicas
from official_lite.execution import modes
from official_lite.modeling import distributed_gradients, moving_statistics, step_seeds
from official_lite.modeling.multitask import base_model, multitask
from official_lite.modeling.optimization import optimizer_factory
from official_lite.orbit import runner, xla_loops

__all__ = [
    "MultiTaskBaseTrainer",
    "checkpoint_items",
    "initialize_model",
    "task_model",
]

Model: TypeAlias = keras.Model | base_model.MultiTaskBaseModel


@gin.configurable
class MultiTaskBaseTrainer(orbit.StandardTrainer):
    """Trainer for joint training: a step takes a batch of each task and makes one update.

    Create the trainer in the strategy's scope; its constructor also builds the models' variables.
    The training logs are nested, `{task: {metric: value}}`, with two additional entries:
    `learning_rate`, and `training_loss` for the minimized loss.

    Args:
        multi_task: The tasks.
        multi_task_model: The models of the tasks, which may still be unbuilt.
        optimizer: The optimizer of all tasks.
        trainer_options: How the training loop is executed.
        train_datasets: A distributed dataset for each task, used instead of `task.build_inputs`. A
            resumed run reads these datasets from the beginning.
        seed: The seed of the run. It is used for dropout, and for the order of data that has no
            seed of its own.
        execution: How steps are executed: `graph`, `xla`, or `xla_loop`, which needs the trainer to
            read a batch of every task in each step.

    Raises:
        errors.ConfigTypeError: The model is no `MultiTaskBaseModel`, which the joint step needs.
        errors.UnknownKeyError: A task has no model.
    """

    def __init__(
        self,
        multi_task: multitask.MultiTask,
        multi_task_model: Model,
        optimizer: keras.optimizers.Optimizer,
        trainer_options: orbit.StandardTrainerOptions | None = None,
        train_datasets: Mapping[str, Any] | None = None,
        seed: int = 0,
        execution: str = "graph",
    ) -> None:
        self._strategy = tf.distribute.get_strategy()
        executor = modes.create_executor(execution, self._strategy)
        runner.set_untracked(self, execution=execution, _executor=executor, _graph_hooks=[])
        self._multi_task = multi_task
        self._multi_task_model = multi_task_model
        self._seed = seed
        self._require_models()
        self._builds_datasets = not train_datasets
        counters = {
            name: train_data.BatchCounter(f"{name}/batches_read") for name in multi_task.tasks
        }
        is_kept = dict.fromkeys(multi_task.tasks, False)
        runner.set_untracked(self, _counters=counters, _is_kept=is_kept)
        super().__init__(
            train_dataset=dict(
                train_datasets or {name: self._build_dataset(name) for name in multi_task.tasks}
            ),
            options=trainer_options,
        )
        self._global_step = orbit.utils.create_global_step()
        self._training_losses = {
            name: keras.metrics.Mean("training_loss", dtype="float32")
            for name in ("total_loss", *self.multi_task.tasks)
        }
        self._training_metrics = {
            name: step_checks.build_metrics(task, training=True)
            for name, task in self.multi_task.tasks.items()
        }
        if type(multi_task).joint_train_step is multitask.MultiTask.joint_train_step:
            for task in multi_task.tasks.values():
                step_checks.require_losses(task, base_task.Task, "train_step")
        self._build_models()
        for name, task in self.multi_task.tasks.items():
            model = task_model(multi_task_model, name)
            step_checks.name_metrics(task, self._training_metrics[name], model)
        runner.set_untracked(self, _metric_groups={})
        self._step_seeds = step_seeds.StepSeeds(multi_task_model, seed)
        self._optimizer = optimizer_factory.prepare_optimizer(optimizer, multi_task_model)
        distributed_gradients.observe_gradients(self._optimizer, self._show_gradients)
        self._checkpoint = tf.train.Checkpoint(**self._checkpoint_items())
        statistics = moving_statistics.MovingStatistics(self._checkpoint)
        runner.set_untracked(self, _moving_statistics=statistics, _has_run=False)
        if execution != "graph":
            modes.check(execution, self)

    @property
    def strategy(self) -> tf.distribute.Strategy:
        return self._strategy

    @property
    def multi_task(self) -> multitask.MultiTask:
        return self._multi_task

    @property
    def multi_task_model(self) -> Model:
        return self._multi_task_model

    @property
    def model(self) -> Model:
        """Same as `multi_task_model`, under the name used by single-task trainers."""
        return self._multi_task_model

    @property
    def optimizer(self) -> keras.optimizers.Optimizer:
        return self._optimizer

    @property
    def global_step(self) -> tf.Variable:
        """The number of updates, int64."""
        return self._global_step

    @property
    def training_losses(self) -> dict[str, keras.metrics.Metric]:
        """The mean loss of each task, and the mean of the minimized loss under `total_loss`."""
        return self._training_losses

    @property
    def training_metrics(self) -> dict[str, list[keras.metrics.Metric]]:
        """The metrics of each task."""
        return self._training_metrics

    @property
    def checkpoint(self) -> tf.train.Checkpoint:
        """The checkpoint with everything that a resumed run requires."""
        return self._checkpoint

    def initialize(self) -> None:
        """Let the model load pretrained weights; called if the run has no checkpoint yet."""
        initialize_model(self.multi_task_model, self.optimizer)

    def after_restore(self) -> None:
        """Resume the data of each task at its position; called after a checkpoint is restored."""
        for name in self.multi_task.tasks:
            adapted_layers.follow_statistics(task_model(self.multi_task_model, name))
        if self._builds_datasets:
            with self.strategy.scope():
                self.train_dataset = {
                    name: self._build_dataset(name, self._resume(name))
                    for name in self.multi_task.tasks
                }
        elif self._train_loop is not None:
            # The data continue with what has not been read yet.
            return
        if step := int(self.global_step.numpy()):
            self._warn_of_lost_positions(step)

    @property
    def has_coordinator(self) -> bool:
        """Whether workers run asynchronously, which trainers of several tasks do not support."""
        return False

    def set_graph_hooks(self, graph_hooks: Sequence[orbit.GraphHook]) -> None:
        """Set the hooks that are traced into the step, and retrace the step if they changed."""
        if self._graph_hooks != list(graph_hooks):
            runner.set_untracked(self, _graph_hooks=list(graph_hooks))
            self._retrace_train_step()

    def run_steps(self, num_steps: tf.Tensor) -> None:
        """Run steps; see `orbit.StandardTrainer.run_steps`."""
        self._executor.run_steps(self, num_steps)
        for counter in self._counters.values():
            counter.settle()
        self._warn_of_lost_positions(step=0)
        if not self._has_run:
            runner.set_untracked(self, _has_run=True)
            self._moving_statistics.warn_of_differences()

    @property
    def batch_counts(self) -> dict[str, tf.Variable]:
        """The variables that count the batches read from each task's data."""
        return {name: counter.variable for name, counter in self._counters.items()}

    def create_train_loop(self, dataset: Mapping[str, Any]) -> orbit.TrainLoop:
        """Create the training loop over the data of all tasks."""
        if self.execution != "xla_loop":
            return super().create_train_loop(dataset)
        # The loop draws from a single dataset, whose elements hold a batch of each task.
        batches = tf.data.Dataset.zip(dict(dataset))
        return orbit.StackedLoop(
            lambda iterator: self._train_on(next(iterator)),
            batches,
            steps=xla_loops.most_steps(batches.element_spec),
            wrap_fetch=self.wrap_step,
            counts=self.batch_counts,
        )

    def train_loop_begin(self) -> None:
        """Reset losses and metrics."""
        for metric in self.training_losses.values():
            metric.reset_state()
        for name in self.multi_task.tasks:
            self._metric_group(name).reset()

    def train_step(self, iterator_map: Mapping[str, Iterator[Any]]) -> None:
        """Make one update from the next batch of each task."""
        self._train_on({name: next(iterator) for name, iterator in iterator_map.items()})

    def train_loop_end(self) -> dict[str, Any]:
        """Return losses and metrics; a task without a step in this interval is omitted."""
        results: dict[str, Any] = {
            name: {loss.name: loss.result()}
            for name, loss in self.training_losses.items()
            if float(tf.convert_to_tensor(loss.count)) > 0
        }
        for name in results.keys() & self.training_metrics.keys():
            results[name] |= self._metric_group(name).results()
        # Code that checks the loss of any run, such as recovery from divergence, reads this key.
        results["training_loss"] = self.training_losses["total_loss"].result()
        # Schedules count the updates of all tasks.
        results["learning_rate"] = self.optimizer.learning_rate
        return results

    def keeping_metrics(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which an evaluation does not change what training reports."""
        metrics: list[Any] = list(self.training_losses.values())
        for name in self.multi_task.tasks:
            metrics += self._metric_group(name).metrics
        return step_metrics.kept(metrics)

    def _require_models(self) -> None:
        """Check that the model has the models that the step reads."""
        is_default = type(self.multi_task).joint_train_step is multitask.MultiTask.joint_train_step
        if is_default and not hasattr(self.multi_task_model, "sub_tasks"):
            raise errors.ConfigTypeError(
                f"The joint trainer got a {type(self.multi_task_model).__name__}; expected a "
                "`MultiTaskBaseModel`, which has a model for each task. One Keras model for all "
                "tasks can be trained with `trainer.trainer_type: interleaving`."
            )

    def _train_on(self, inputs: Mapping[str, Any]) -> None:
        self._executor.run_step(self._replica_train_step, inputs)

    def _metric_group(self, task_name: str) -> step_metrics.MetricGroup:
        """Return the metrics of a task and of its model."""
        if task_name not in self._metric_groups:
            metrics = step_metrics.model_metrics(task_model(self.multi_task_model, task_name))
            self._metric_groups[task_name] = step_metrics.MetricGroup(
                [*self.training_metrics[task_name], *metrics]
            )
        return self._metric_groups[task_name]

    def _num_batches(self, task_name: str) -> tf.Variable:
        """Return the number of batches read from a task's data, if there is no count of them."""
        return self.global_step

    def _resume(self, task_name: str) -> int:
        """Return the number of batches read from a task's data before the restored checkpoint."""
        return self._counters[task_name].resume(int(self._num_batches(task_name).numpy()))

    def _warn_of_lost_positions(self, step: int) -> None:
        """Warn once of each task whose data do not continue where they were in a resumed run."""
        for name, is_kept in self._is_kept.items():
            if not is_kept:
                what = f"training data of the task {name}"
                train_data.warn_of_lost_position(
                    step, is_given=not self._builds_datasets, what=what
                )
        # Once is enough.
        self._is_kept.clear()

    def _build_dataset(self, task_name: str, batch: int = 0) -> Any:
        task = self.multi_task.tasks[task_name]
        build_inputs = length.repeat(position.keep(task.build_inputs))
        if not batch:
            build_inputs = train_data.search_inputs(build_inputs)
        num_replicas = self.strategy.num_replicas_in_sync
        build_inputs = replicas.watch_batch_size(build_inputs, num_replicas)
        with position.begin_at(batch, self._seed) as begin:
            dataset = orbit.utils.make_distributed_dataset(
                self.strategy, build_inputs, task.task_config.train_data
            )
        self._is_kept[task_name] = begin.is_kept
        return dataset

    def _build_models(self) -> None:
        if isinstance(self.multi_task_model, base_model.MultiTaskBaseModel):
            self.multi_task_model.build()
        for name in self.multi_task.tasks:
            model_building.build_variables(
                task_model(self.multi_task_model, name),
                functools.partial(self._building_step, name),
                self.train_dataset[name].element_spec,
                self.training_metrics[name],
            )

    def _building_step(self, task_name: str, inputs: types.Nest) -> None:
        """Run the computation that is traced to create a model's variables."""
        task, model = self.multi_task.tasks[task_name], task_model(self.multi_task_model, task_name)
        features, labels, weights = base_task.split_batch(inputs, model)
        outputs = model(features, training=True)
        if getattr(model, "compiled", False):
            task.step_loss(model, features, labels, outputs, sample_weight=weights)
        metrics = self.training_metrics[task_name]
        task.update_metrics(model, metrics, labels, outputs, sample_weight=weights)

    def _checkpoint_items(self) -> dict[str, Any]:
        items = checkpoint_items(self.multi_task_model, self.optimizer, self.global_step)
        return items | {"batches_read": self.batch_counts}

    def _replica_train_step(self, inputs: Mapping[str, Any]) -> None:
        self._step_seeds.set(self.global_step.read_value())
        step = self._executor.replica_step(self._joint_step, self.training_metrics)
        losses = step(
            inputs,
            model=self.multi_task_model,
            optimizer=self.optimizer,
            metrics=self.training_metrics,
        )
        for name, loss in losses.items():
            self.training_losses[name].update_state(loss)
        for hook in self._graph_hooks:
            hook.call(losses)
        self._end_replica_step()

    def _end_replica_step(self) -> None:
        self._moving_statistics.average()
        self.global_step.assign_add(1)

    def _joint_step(
        self, inputs: Mapping[str, Any], *, model: Model, optimizer: Any, metrics: Any
    ) -> dict[str, tf.Tensor]:
        return self.multi_task.joint_train_step(
            inputs, multi_task_model=model, optimizer=optimizer, task_metrics=metrics
        )

    def _show_gradients(self, grads_and_vars: Sequence[tuple[Any, Any]]) -> None:
        for hook in self._graph_hooks:
            hook.on_gradients([(tf.convert_to_tensor(g), v) for g, v in grads_and_vars])


def task_model(model: Model, task_name: str) -> keras.Model:
    """Return the model of one task; a plain Keras model is used for all tasks.

    Raises:
        errors.UnknownKeyError: The task has no model.
    """
    if not isinstance(model, base_model.MultiTaskBaseModel):
        return model
    if task_name not in model.sub_tasks:
        raise errors.UnknownKeyError(
            f"{type(model).__name__} has no model for the task {task_name!r}. "
            f"{suggestions.did_you_mean(task_name, model.sub_tasks)}"
        )
    return model.sub_tasks[task_name]


def initialize_model(model: Model, optimizer: keras.optimizers.Optimizer | None) -> None:
    """Let a model load pretrained weights, then set the averages of the weights to the weights."""
    if isinstance(model, base_model.MultiTaskBaseModel):
        model.initialize()
    optimizer_factory.follow_weights(optimizer)


def checkpoint_items(
    model: Model, optimizer: keras.optimizers.Optimizer | None, global_step: tf.Variable
) -> dict[str, Any]:
    """Return the items of a checkpoint, including model parts that TensorFlow does not track."""
    items: dict[str, Any] = {"model": model, "global_step": global_step}
    if optimizer is not None:
        items["optimizer"] = optimizer
    return items | _hidden_items(model) | model_state.checkpoint_items(model)


def _hidden_items(model: Model) -> dict[str, Any]:
    if not isinstance(model, base_model.MultiTaskBaseModel):
        return model_state.hidden_items(model)
    by_task = {name: model_state.hidden_items(sub) for name, sub in model.sub_tasks.items()}
    by_task = {name: items for name, items in by_task.items() if items}
    return {"hidden_items": by_task} if by_task else {}
