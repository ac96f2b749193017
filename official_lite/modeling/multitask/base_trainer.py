"""Trainer that trains all tasks jointly in each step."""

import collections
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, TypeAlias, cast

import gin
import keras
import tensorflow as tf

from official_lite import orbit
from official_lite.checkpoint import model_state
from official_lite.common import errors, nests, suggestions, user_code
from official_lite.core import (
    base_task,
    base_trainer,
    config_definitions,
    model_building,
    step_checks,
    step_metrics,
    train_data,
)
from official_lite.modeling.multitask import base_model, multitask
from official_lite.modeling.optimization import optimizer_factory

__all__ = [
    "MultiTaskBaseTrainer",
    "checkpoint_items",
    "initialize_model",
    "task_model",
]

Model: TypeAlias = keras.Model | base_model.MultiTaskBaseModel

# The group of the metrics that belong to the models of several tasks; no task has this name.
_SHARED = ""


@gin.configurable
class MultiTaskBaseTrainer(base_trainer.Trainer):
    """Trainer for joint training: a step takes a batch of each task and makes one update.

    Create the trainer in the strategy's scope; its constructor also builds the models' variables.
    The training logs are nested, `{task: {metric: value}}`, with additional entries:
    `learning_rate`, `training_loss` for the minimized loss, and the metrics that belong to the
    models of several tasks, which cover the examples of all these tasks. It does not evaluate or
    predict; see `MultiTaskEvaluator`.

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
        steps_per_loop: The usual number of steps per call of the loop.

    Raises:
        errors.ConfigTypeError: The model is not a `MultiTaskBaseModel`, as the joint step requires.
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
        steps_per_loop: int = 1000,
    ) -> None:
        self._multi_task = multi_task
        self._multi_task_model = multi_task_model
        options = trainer_options or orbit.StandardTrainerOptions()
        config = config_definitions.ExperimentConfig(
            trainer=config_definitions.TrainerConfig(
                train_tf_function=options.use_tf_function,
                train_tf_while_loop=options.use_tf_while_loop,
                steps_per_loop=steps_per_loop,
            ),
            runtime=config_definitions.RuntimeConfig(seed=seed, execution=execution),
        )
        super().__init__(
            config,
            # Pass no task, because this class overrides the methods that would read it.
            cast(base_task.Task, None),
            multi_task_model,
            optimizer,
            evaluate=False,
            train_dataset=dict(train_datasets) if train_datasets else None,
        )

    @property
    def task(self) -> NoReturn:
        raise AttributeError(
            f"{type(self).__name__} has several tasks. Use `multi_task` instead of `task`."
        )

    @property
    def multi_task(self) -> multitask.MultiTask:
        return self._multi_task

    @property
    def multi_task_model(self) -> Model:
        """Same as `model`."""
        return self._multi_task_model

    @property
    def training_losses(self) -> dict[str, keras.metrics.Metric]:
        """The mean loss of each task, and the mean of the minimized loss under `total_loss`."""
        return self._training_losses

    @property
    def training_metrics(self) -> dict[str, list[keras.metrics.Metric]]:
        """The metrics of each task."""
        return self._task_metrics[True]

    @property
    def train_metrics(self) -> list[keras.metrics.Metric]:
        """The metrics of all tasks and of their models."""
        own = [metric for name in self.multi_task.tasks for metric in self._metrics_of(name)]
        return own + self._shared_metrics()

    @property
    def batch_counts(self) -> dict[str, tf.Variable]:
        """The variables that count the batches read from each task's data."""
        return self._train_data.variables["batches_read"]

    def initialize(self) -> None:
        """Let the model load pretrained weights; called if the run has no checkpoint yet."""
        initialize_model(self.multi_task_model, self.optimizer)

    def create_train_loop(self, dataset: Mapping[str, Any]) -> orbit.TrainLoop:
        """Create the training loop over the data of all tasks."""
        if self.execution == "xla_loop":
            # The loop reads a single dataset, whose elements contain a batch of each task.
            return super().create_train_loop(tf.data.Dataset.zip(dict(dataset)))
        return super().create_train_loop(dataset)

    def next_train_inputs(self, iterator: Iterator[Any] | Mapping[str, Iterator[Any]]) -> Any:
        """Fetch a batch of each task."""
        if not isinstance(iterator, Mapping):
            return super().next_train_inputs(iterator)
        return {name: user_code.next_batch(each) for name, each in iterator.items()}

    def _create_train_data(self) -> train_data.TrainDataByTask:
        tasks = self.multi_task.tasks
        return train_data.TrainDataByTask(tasks, self.config, self.distribute_dataset)

    def _check_step(self) -> None:
        """Raise if the model or a task does not support the joint step."""
        if type(self.multi_task).joint_train_step is not multitask.MultiTask.joint_train_step:
            return
        if not hasattr(self.multi_task_model, "sub_tasks"):
            raise errors.ConfigTypeError(
                f"The joint trainer got a {type(self.multi_task_model).__name__}; expected a "
                "`MultiTaskBaseModel`, which has a model for each task. To train one Keras model "
                "on all tasks, set `trainer.trainer_type: interleaving`."
            )
        for task in self.multi_task.tasks.values():
            step_checks.require_losses(task, base_task.Task, "train_step")

    def _prepare_step(self) -> None:
        self._check_step()
        tasks = self.multi_task.tasks
        self._training_losses = {"total_loss": self.train_loss} | {
            name: keras.metrics.Mean("training_loss", dtype="float32") for name in tasks
        }
        self._task_metrics[True] = {
            name: step_checks.build_metrics(task, training=True) for name, task in tasks.items()
        }
        self._batch_sizes = {
            name: getattr(task.task_config.train_data, "global_batch_size", 0)
            for name, task in tasks.items()
        }

    def _build_model(self, train: bool) -> None:
        if isinstance(self.multi_task_model, base_model.MultiTaskBaseModel):
            self.multi_task_model.build()
        for name, task in self.multi_task.tasks.items():
            metrics = self.training_metrics[name]
            model = task_model(self.multi_task_model, name)
            spec = self._executor.replica_spec(self.train_dataset[name])
            self._build_task_model(task, model, spec, metrics)
            step_checks.name_metrics(task, metrics, model)
        for model in self._models():
            model_building.warn_of_wrong_gradients(model)

    def _build_task_model(
        self, task: base_task.Task, model: keras.Model, spec: nests.Nest, metrics: Any
    ) -> None:
        """Create the variables of a task's model by tracing its part of the joint step."""

        def compute(inputs: nests.Nest) -> None:
            features, labels, weights = base_task.split_batch(inputs, model)
            outputs = model(features, training=True)
            if getattr(model, "compiled", False):
                task.step_loss(model, features, labels, outputs, sample_weight=weights)
            task.update_metrics(model, metrics, labels, outputs, sample_weight=weights)

        model_building.build_variables(model, compute, spec, metrics)

    def _metrics_of(self, name: str) -> list[keras.metrics.Metric]:
        """Return the metrics of a task, and those that belong only to its model."""
        model = task_model(self.multi_task_model, name)
        shared = {id(metric) for metric in self._shared_metrics()}
        of_model = [each for each in step_metrics.model_metrics(model) if id(each) not in shared]
        return [*self.training_metrics[name], *of_model]

    def _shared_metrics(self) -> list[keras.metrics.Metric]:
        """Return the metrics that belong to the models of several tasks."""
        metrics = [
            metric
            for name in self.multi_task.tasks
            for metric in step_metrics.model_metrics(task_model(self.multi_task_model, name))
        ]
        counts = collections.Counter(map(id, metrics))
        by_id = {id(metric): metric for metric in metrics}
        return [metric for key, metric in by_id.items() if counts[key] > 1]

    def _models(self) -> list[keras.Model]:
        """Return the models of the tasks, each once."""
        models = [task_model(self.multi_task_model, name) for name in self.multi_task.tasks]
        return list({id(model): model for model in models}.values())

    def _train_groups(self) -> dict[str, step_metrics.MetricGroup]:
        groups = {
            name: self._metric_groups.get(
                f"train/{name}",
                [loss, *(self._metrics_of(name) if name in self.training_metrics else ())],
            )
            for name, loss in self.training_losses.items()
        }
        shared = self._metric_groups.get(f"train/{_SHARED}", self._shared_metrics())
        return groups | {_SHARED: shared}

    def _training_logs(self, groups: Mapping[str, step_metrics.MetricGroup]) -> dict[str, Any]:
        """Return losses and metrics; omit tasks that ran no step in this interval."""
        logs: dict[str, Any] = {
            name: groups[name].results()
            for name, loss in self.training_losses.items()
            if float(tf.convert_to_tensor(loss.count)) > 0
        }
        # Add `training_loss` at the top level, as in the logs of a single task. Code that supports
        # both kinds of runs, such as the recovery from divergence, reads this entry.
        logs["training_loss"] = self.train_loss.result()
        shared = groups[_SHARED].results()
        if repeated := sorted(shared.keys() & logs.keys()):
            raise errors.ConfigValueError(
                f"A metric that belongs to the models of several tasks reports a value named "
                f"`{repeated[0]}`, which is also the name of a task or of a loss, so one of the "
                "two would be lost. Use a different name for the metric."
            )
        return shared | logs

    @user_code.not_converted
    def _checked_step(
        self, inputs: Mapping[str, Any], model: Any, optimizer: Any, metrics: Any
    ) -> Mapping[str, Any]:
        """Call the joint step, and add the losses that it returns to the training losses."""
        losses: dict[str, tf.Tensor] = user_code.converted(self.multi_task.joint_train_step)(
            inputs, multi_task_model=model, optimizer=optimizer, task_metrics=metrics
        )
        weights = {name: self._weight_in(name, batch) for name, batch in inputs.items()}
        weights["total_loss"] = sum(weights.values())
        for name, loss in losses.items():
            step_metrics.add_loss(self.training_losses[name], loss, weights[name])
        return losses

    def _weight_in(self, name: str, batch: nests.Nest) -> Any:
        """Return the weight of a replica's batch of one task in the mean training losses.

        The weight is the product of two factors: the task's batch size as a fraction of the largest
        batch size among all tasks, or 1 if a batch size is not configured; and the weight of this
        replica's part of the batch.
        """
        sizes = self._batch_sizes
        weight = self._weight_of_part(batch, sizes[name])
        share = sizes[name] / max(sizes.values()) if all(sizes.values()) else 1.0
        return share * (1.0 if weight is None else weight)


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
    """Let a model load pretrained weights, then reset the weight averages to these weights."""
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
    return items | model_state.hidden_items(model) | model_state.checkpoint_items(model)
