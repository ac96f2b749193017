"""Trainer that trains one of several tasks in each step."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gin
import keras
import tensorflow as tf

from official_lite import orbit
from official_lite.common import errors, nests, user_code
from official_lite.core import (
    base_task,
    model_building,
    step_checks,
    step_metrics,
    train_data,
)
from official_lite.modeling.multitask import base_trainer, multitask
from official_lite.modeling.multitask import task_sampler as task_sampler_lib
from official_lite.orbit import runner

__all__ = ["MultiTaskInterleavingTrainer"]


@gin.configurable
class MultiTaskInterleavingTrainer(base_trainer.MultiTaskBaseTrainer):
    """Trainer that draws a task in each step and trains it with the task's own `train_step`.

    The draw depends only on the global step, so a resumed run draws the same tasks as an
    uninterrupted one. The constructor also builds the models' variables.

    Args:
        multi_task: The tasks.
        multi_task_model: The models of the tasks, or one Keras model for all of them.
        optimizer: The optimizer of all tasks.
        task_sampler: The sampler that provides the probability of each task.
        trainer_options: How the training loop is executed.
        train_datasets: A distributed dataset for each task, used instead of `task.build_inputs`.
        seed: The seed of the run.
        execution: How steps are executed: `graph` or `xla`.

    Raises:
        errors.ConfigValueError: The sampler's tasks differ from `multi_task.tasks`, or have a
            different order.
        errors.UnknownKeyError: A task has no model.
    """

    def __init__(
        self,
        multi_task: multitask.MultiTask,
        multi_task_model: base_trainer.Model,
        optimizer: keras.optimizers.Optimizer,
        task_sampler: task_sampler_lib.TaskSampler,
        trainer_options: orbit.StandardTrainerOptions | None = None,
        train_datasets: Mapping[str, Any] | None = None,
        seed: int = 0,
        execution: str = "graph",
    ) -> None:
        names = list(multi_task.tasks)
        if list(task_sampler.task_weights) != names:
            raise errors.ConfigValueError(
                f"The sampler has the tasks {list(task_sampler.task_weights)}, but `multi_task` "
                f"has {names}. Create the sampler from `multi_task.task_weights`."
            )
        if execution == "xla_loop":
            raise errors.ConfigValueError(
                "`runtime.execution` is `xla_loop`, which requires that all steps read the same "
                "datasets, but a step of the interleaving trainer reads the data of one task only. "
                "Use `xla` or `graph`."
            )
        self._task_sampler = task_sampler
        self._task_step_counters = {name: orbit.utils.create_global_step() for name in names}
        # Create the step function of each task only once, so that it is compiled only once.
        steps = {name: self._create_step(name, task) for name, task in multi_task.tasks.items()}
        runner.set_untracked(self, _replica_task_steps=steps)
        super().__init__(
            multi_task=multi_task,
            multi_task_model=multi_task_model,
            optimizer=optimizer,
            trainer_options=trainer_options,
            train_datasets=train_datasets,
            seed=seed,
            execution=execution,
        )

    def task_step_counter(self, name: str) -> tf.Variable:
        """Return the number of updates of a task, int64."""
        return self._task_step_counters[name]

    def train_step(self, iterator_map: Any) -> None:
        """Draw a task and make one update from its next batch."""
        tf.switch_case(
            self._draw_task(),
            [
                functools.partial(self._train_task, name, iterator_map)
                for name in self.multi_task.tasks
            ],
        )

    def train_loop_end(self) -> dict[str, Any]:
        """Return losses and metrics; `training_loss` is the mean over the examples of all steps."""
        results = super().train_loop_end()
        # Remove the total loss, because each step trains only one task.
        results.pop("total_loss", None)
        return results

    def _check_step(self) -> None:
        # Accept a single Keras model for all tasks, too, because each task has its own train step.
        for task in self.multi_task.tasks.values():
            step_checks.require_signature(
                task.train_step, "inputs", model="", optimizer="", metrics=""
            )
            step_checks.require_losses(task, base_task.Task, "train_step")

    def _create_train_data(self) -> train_data.TrainDataByTask:
        return train_data.TrainDataByTask(
            self.multi_task.tasks, self.config, self.distribute_dataset, self._task_step_counters
        )

    def _build_task_model(
        self, task: base_task.Task, model: keras.Model, spec: nests.Nest, metrics: Any
    ) -> None:
        model_building.build_by_task(model, task, spec, metrics, optimizer=self.optimizer)

    def _checkpoint_items(self) -> dict[str, Any]:
        return super()._checkpoint_items() | {"task_step_counters": self._task_step_counters}

    def _draw_task(self) -> tf.Tensor:
        number = tf.random.stateless_uniform(shape=[], seed=(0, self.global_step))
        cumulative = self._task_sampler.task_cumulative_distribution(self.global_step)
        # The last task gets the remaining probability, so that every random number selects a task.
        return tf.reduce_sum(tf.cast(number >= cumulative[:-1], tf.int32))

    def _train_task(self, name: str, iterator_map: Mapping[str, Iterator[Any]]) -> None:
        def train(iterator: Iterator[Any]) -> None:
            self.run_step(self._replica_task_steps[name], user_code.next_batch(iterator))

        orbit.utils.guard_step(train)(iterator_map[name])

    def _create_step(self, name: str, task: base_task.Task) -> Callable[[Any], None]:
        """Return the function that each replica runs in a step of one task."""

        def checked_step(
            inputs: nests.Nest, model: keras.Model, optimizer: Any, metrics: Any
        ) -> Mapping[str, Any]:
            logs = step_checks.call_train_step(task, inputs, model, optimizer, metrics)
            loss = step_checks.training_loss(task, logs)
            step_checks.warn_of_unreported_logs(task, logs, metrics, model, self._graph_hooks)
            weight = self._weight_in(name, inputs)
            step_metrics.add_loss(self.training_losses[name], loss, weight)
            step_metrics.add_loss(self.train_loss, loss, weight)
            return logs

        def step_fn(inputs: nests.Nest) -> None:
            self.begin_replica_step()
            model = base_trainer.task_model(self.multi_task_model, name)
            self._call_step(
                checked_step,
                inputs,
                self.training_metrics[name],
                model=model,
                optimizer=self.optimizer,
            )
            self._end_replica_step()
            self.task_step_counter(name).assign_add(1)

        return step_fn
