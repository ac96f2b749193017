"""The trainer, which runs training and evaluation steps on all replicas."""

import contextlib
import contextvars
import operator
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import gin
import keras
import numpy as np
import tensorflow as tf
from absl import logging

from official_lite import orbit
from official_lite.checkpoint import model_state, warm_start
from official_lite.common import errors, files, nests, terminal, user_code
from official_lite.core import (
    base_task,
    checkpoint_state,
    config_definitions,
    eval_outputs,
    exporter_events,
    fit_memory,
    model_building,
    predictor,
    step_checks,
    step_metrics,
    train_data,
)
from official_lite.execution import auto, executors, modes, repeatability
from official_lite.execution.executors import Dataset
from official_lite.modeling import (
    distributed_gradients,
    embedding_lookups,
    hyperparams,
    remat,
    replica_state,
)
from official_lite.modeling.optimization import (
    ema_optimizer,
    gradient_accumulator,
    optimizer_factory,
)
from official_lite.orbit import runner

__all__ = [
    "ExperimentConfig",
    "Trainer",
    "TrainerConfig",
    "building_first",
    "get_runtime_options",
]

ExperimentConfig = config_definitions.ExperimentConfig
TrainerConfig = config_definitions.TrainerConfig
Metrics = list[keras.metrics.Metric]
get_runtime_options = modes.get_runtime_options

# The function passed to the current `building_first` context.
_build_first: contextvars.ContextVar[Callable[[Any], None] | None] = contextvars.ContextVar(
    "build_first", default=None
)


@gin.configurable
class Trainer(orbit.StandardTrainer, orbit.StandardEvaluator):
    """Trains and evaluates a task's model on all replicas of the current strategy.

    Create it in the strategy's scope; its constructor builds everything that training or evaluation
    needs, including variables. Each method below can be overridden separately::

        train_loop_begin()                      resets the metrics
          train_step(iterator)                  one update; in the compiled loop
            next_train_inputs(iterator)
            task.train_step(...)                on every replica
        train_loop_end() -> logs                metrics and learning rate, on the host

        eval_begin()
          eval_step(iterator) -> outputs
            next_eval_inputs(iterator) -> inputs, passthrough logs
            task.validation_step(...)           on every replica
          eval_reduce(state, outputs) -> state  on the host
        eval_end(state) -> logs                 metrics; keeps the best checkpoint

        predict(first_batch)                    yields the predictions of each batch
          predict_step(iterator, number)
            next_predict_inputs(iterator)
            task.predict_step(...)              on every replica

    Args:
        config: The config of the experiment, or any object with its `task`, `trainer` and
            `runtime`.
        task: The task.
        model: The model of the task, which may still be unbuilt.
        optimizer: The optimizer.
        train: Whether this trainer will train.
        evaluate: Whether it will evaluate. Any trainer can predict.
        train_dataset: A distributed dataset, used instead of `task.build_inputs`.
        validation_dataset: A distributed dataset for evaluation. Each evaluation reads it from the
            beginning.
        checkpoint_exporter: An object whose `maybe_export_checkpoint` is called after every
            evaluation.

    Attributes:
        divides_data: Whether only one half of the training data trains the weights, and the other
            half an architecture. An epoch given in the config then has half as many steps.
    """

    divides_data: ClassVar[bool] = False
    _executor: executors.GraphExecutor
    _eval_executor: executors.GraphExecutor
    _accumulator: Any = None
    # The function that gathers the outputs of an evaluation step from all workers.
    _gather_outputs: Any = None
    _built_train_dataset: Dataset | None = None
    # Whether the step was searched for ops whose results a resumed run would not reproduce.
    _is_searched = False
    # Whether a reporting interval is in progress.
    _is_reporting = False

    def __init__(
        self,
        config: ExperimentConfig,
        task: base_task.Task,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        train: bool = True,
        evaluate: bool = True,
        train_dataset: Dataset | None = None,
        validation_dataset: Dataset | None = None,
        checkpoint_exporter: Any = None,
    ) -> None:
        self._strategy = tf.distribute.get_strategy()
        self._validate_params(config, train_dataset is None, validation_dataset is None)
        train_data.check(config, self, train_dataset, validation_dataset)
        self._config = config
        self._task = task
        self._model = model
        self._optimizer = optimizer
        self._checkpoint_exporter = checkpoint_exporter
        self._runtime_options = get_runtime_options(config)
        self._train_loss = keras.metrics.Mean("training_loss", dtype="float32")
        self._validation_loss = step_metrics.BatchMean("validation_loss", dtype="float32")
        self._task_metrics: dict[bool, Any] = {}
        modes.check_overrides(config.trainer, type(self), self._divided_cls, train=train)
        if train:
            fit_memory.check(config, self._strategy)
        requested = modes.execution_of(config.runtime)
        self._init_execution("graph" if requested == "auto" else requested)
        self._train_data: Any = self._create_train_data()
        if train:
            self._init_training(train_dataset)
        if evaluate:
            self._init_evaluation(validation_dataset)
        self._build_model(train)
        model_building.freeze(model, config.trainer.freeze)
        if train:
            lazy_rows = distributed_gradients.has_lazy_rows(optimizer)
            remat.rematerialize(model, config.trainer.remat, lazy_rows=lazy_rows)
            step_checks.warn_of_compiled_optimizer(model, optimizer)
        self._optimizer = optimizer_factory.prepare_optimizer(optimizer, model)
        if train and self.execution != "eager":
            step_checks.require_one_replica(optimizer, self.strategy.num_replicas_in_sync)
        seeds = replica_state.StepSeeds(
            model, config.runtime.seed, per_replica=not config.trainer.virtual_replicas
        )
        runner.set_untracked(
            self,
            _metric_groups=step_metrics.MetricGroups(compiles=not config.trainer.virtual_replicas),
            _graph_hooks=[],
            _seeds=seeds,
            _predictor=predictor.Predictor(
                config, task, model, self._optimizer, self._strategy, seeds
            ),
        )
        if train:
            accumulator = train_data.build_accumulator(config, model, self._optimizer)
            runner.set_untracked(self, _accumulator=accumulator)
            distributed_gradients.observe_gradients(self._optimizer, self._show_gradients)
        if self.has_coordinator:
            metrics = [metric for group in self._task_metrics.values() for metric in group]
            owners = (model, self._optimizer, self._train_loss, self._validation_loss, *metrics)
            replica_state.make_atomic([v for o in owners for v in getattr(o, "variables", ())])
            # Reading a whole table would send it from the server to the worker in every step.
            embedding_lookups.read_rows_only(self.model)
        self._global_step = orbit.utils.create_global_step()
        items = self._checkpoint_items()
        if train:
            items |= model_state.recurrent_items(self.model)
        self._checkpoint = tf.train.Checkpoint(**items)
        statistics = replica_state.MovingStatistics(self._checkpoint)
        runner.set_untracked(self, _moving_statistics=statistics)
        if train:
            modes.check(self.execution, self)

    def _validate_params(
        self,
        config: ExperimentConfig,
        check_train_data: bool = True,
        check_validation_data: bool = True,
    ) -> None:
        """Raise an `AttributeError` if the config lacks a block that the trainer reads."""
        fields = ["trainer", "task", "runtime"]
        fields += ["task.train_data"] * check_train_data
        fields += ["task.validation_data"] * check_validation_data
        operator.attrgetter(*fields)(config)

    # Components of the trainer.

    @property
    def _divided_cls(self) -> type["Trainer"]:
        """The class whose step methods must not be overridden if batches are divided.

        Micro-batches and virtual replicas rely on these methods; see `modes.check_overrides`.
        """
        return Trainer

    @property
    def strategy(self) -> tf.distribute.Strategy:
        return self._strategy

    @property
    def config(self) -> ExperimentConfig:
        return self._config

    @property
    def model(self) -> keras.Model:
        return self._model

    @property
    def optimizer(self) -> keras.optimizers.Optimizer:
        return self._optimizer

    @property
    def global_step(self) -> tf.Variable:
        """The number of updates so far, int64. All intervals of a run are counted in updates."""
        return self._global_step

    @property
    def task(self) -> base_task.Task:
        return self._task

    @property
    def checkpoint(self) -> tf.train.Checkpoint:
        """The checkpoint from which a run resumes."""
        return self._checkpoint

    @property
    def checkpoint_exporter(self) -> Any:
        return self._checkpoint_exporter

    @property
    def train_loss(self) -> keras.metrics.Metric:
        return self._train_loss

    @property
    def train_metrics(self) -> Metrics:
        """The metrics of the task and of the model that training reports."""
        return self._task_metrics[True] + step_metrics.model_metrics(self.model)

    @property
    def validation_loss(self) -> step_metrics.BatchMean:
        return self._validation_loss

    @property
    def validation_metrics(self) -> Metrics:
        """The metrics of the task and of the model that evaluation reports."""
        return self._task_metrics[False] + step_metrics.model_metrics(self.model)

    @property
    def global_batch_size(self) -> int | None:
        """The number of examples in an update, over all replicas and micro-batches, if known."""
        return hyperparams.get_by_path(self.config, "task.train_data.global_batch_size") or None

    @property
    def batches_per_step(self) -> int:
        """The number of batches that a step fetches, one for each micro-batch."""
        return train_data.count_micro_batches(self.config)

    @property
    def batch_counts(self) -> Any:
        """The variable that counts the batches read; None if they can't be counted."""
        # Batches can't be counted on parameter-server workers, because they may repeat steps. They
        # can't be counted in a nest of datasets either, because it has several positions.
        is_counted = not self.has_coordinator and not tf.nest.is_nested(self.train_dataset)
        return self._train_data.variables["batches_read"] if is_counted else None

    @property
    def num_batches_read(self) -> int:
        """The number of batches that training has read or skipped."""
        return self._train_data.position(int(self.global_step.numpy()))

    @property
    def num_batches_skipped(self) -> int:
        """The number of batches that training has skipped."""
        return self._train_data.num_skipped

    @property
    def folds_outputs(self) -> bool:
        """Whether the host needs the outputs of each evaluation step."""
        return (
            type(self).eval_reduce is not Trainer.eval_reduce
            or type(self.task).aggregate_logs is not base_task.Task.aggregate_logs
        )

    def check_state(self, state: Any) -> None:
        """Check that an evaluation loses no outputs; see `orbit.StandardEvaluator.check_state`."""
        if not self.has_coordinator or state is not None:
            super().check_state(state)
        elif self.folds_outputs and self.config.trainer.eval_tf_while_loop:
            terminal.warn_once(
                "Parameter-server training evaluates in a compiled loop, which passes no outputs "
                "to `aggregate_logs`. Use metrics to compute the results of `aggregate_logs`."
            )

    # The execution mode of the steps.

    def init_async(self) -> None:
        """Create the executor, which runs the steps and distributes the data."""
        self._init_execution("graph")

    def _init_execution(self, mode: str) -> None:
        executor = self._create_executor(mode)
        runner.set_untracked(self, _executor=executor, _eval_executor=executor)

    @property
    def evaluates(self) -> bool:
        """Whether the trainer was built to evaluate."""
        return False in self._task_metrics

    @property
    def execution(self) -> str:
        """How steps are executed: `eager`, `graph`, `xla` or `xla_loop`. See docs/performance.md.

        Set it before training, because setting it restarts the training data.
        """
        return self._executor.mode

    @execution.setter
    def execution(self, mode: str) -> None:
        modes.check(mode, self)
        if not self.has_coordinator:
            runner.set_untracked(self, _executor=self._create_executor(mode))
        self.use_train_loop(None)

    def choose_execution(self, num_steps: int | None = None) -> str:
        """Benchmark the execution modes and use the fastest one, as `run_experiment` does.

        Without this call, a trainer that you call yourself uses `graph` if `runtime.execution` is
        `auto`. Call this method in the strategy's scope, before training and after a checkpoint is
        restored. It changes neither the state nor the data. A mode set in the config is kept.

        Args:
            num_steps: The number of steps to train; by default the rest of `trainer.train_steps`. A
                mode is benchmarked only if the training is long enough to benefit.

        Returns:
            The mode.

        Raises:
            errors.ConfigValueError: If this trainer was not built to train, or has trained already.
        """
        if True not in self._task_metrics:
            raise errors.ConfigValueError(
                "This trainer was created with `train=False`, so it has no training steps to "
                "benchmark. Create it with `train=True`."
            )
        if self._train_loop is not None:
            raise errors.ConfigValueError(
                "This trainer has already trained, and another execution mode would restart its "
                "training data. Call `choose_execution` before training."
            )
        if modes.execution_of(self.config.runtime) == "auto":
            if num_steps is None:
                num_steps = self.config.trainer.train_steps - int(self.global_step.numpy())
            record = auto.choose_execution(self, num_steps)
            logging.info("Execution mode: %s", record.describe())
        return self.execution

    @property
    def eval_execution(self) -> str:
        """How evaluation steps are executed."""
        return self._eval_executor.mode

    @eval_execution.setter
    def eval_execution(self, mode: str) -> None:
        if not self.has_coordinator:
            runner.set_untracked(self, _eval_executor=self._create_executor(mode))
        self._eval_loop_fn = None

    @property
    def num_batch_sizes(self) -> int:
        """The number of different batch sizes for which XLA has compiled the step."""
        return self._executor.num_sizes

    @property
    def has_coordinator(self) -> bool:
        """Whether steps are scheduled to workers that run asynchronously."""
        return self._coordinator is not None

    @property
    def _coordinator(self) -> tf.distribute.coordinator.ClusterCoordinator | None:
        # Model Garden trainers read this attribute.
        return self._executor.coordinator

    def coordinator_for_async(self) -> tf.distribute.coordinator.ClusterCoordinator:
        """Return the coordinator.

        Raises:
            ValueError: If the strategy is not a `ParameterServerStrategy`.
        """
        return self._executor.require_coordinator()

    def join(self) -> None:
        """Wait for all scheduled steps, which only parameter-server training has."""
        self._executor.join()

    def distribute_dataset(
        self, dataset_or_fn: Dataset | Callable[..., Dataset], *args: Any, **kwargs: Any
    ) -> Dataset:
        """Distribute a training dataset, or the result of a dataset function, over the replicas."""
        return self._executor.distribute(dataset_or_fn, *args, **kwargs)

    def distribute_eval_dataset(
        self, dataset_or_fn: Dataset | Callable[..., Dataset], *args: Any, **kwargs: Any
    ) -> Dataset:
        """Distribute a dataset for evaluation; with async workers, only the chief evaluates."""
        return self._eval_executor.distribute_eval(dataset_or_fn, *args, **kwargs)

    def create_train_loop(self, dataset: Dataset) -> orbit.TrainLoop:
        """Create the training loop over a dataset."""
        if self.execution != "xla_loop":
            return super().create_train_loop(dataset)
        return executors.create_xla_loop(self, dataset, self.config.trainer.steps_per_loop)

    def create_train_loop_fn(self) -> Callable[..., Any]:
        """Create the function `(iterator, num_steps)` that the training loop calls."""
        return executors.create_train_loop_fn(self, self._executor)

    def create_eval_loop_fn(self, has_state: bool) -> Callable[..., Any]:
        """Create the function that evaluates; see `orbit.StandardEvaluator`."""
        return executors.create_eval_loop_fn(self, self._eval_executor, has_state)

    @user_code.not_converted
    def run_step(self, step_fn: Callable[..., Any], *inputs: nests.Nest) -> Any:
        """Run a function on all replicas, as a part of a training step."""
        return self._executor.run_step(step_fn, *inputs)

    def run_steps(self, num_steps: tf.Tensor) -> None:
        """Run steps; see `orbit.StandardTrainer.run_steps`."""
        if self.has_coordinator:
            executors.run_and_count(super().run_steps, num_steps, self.global_step, self.optimizer)
        else:
            num_replicas = train_data.count_replicas(self.config)
            with fit_memory.raising_for_smaller_batches(self.config, num_replicas):
                super().run_steps(num_steps)
        self._train_data.settle()
        if not self._is_searched:
            self._is_searched = True
            functions = self.train_loop.trace()
            repeatability.warn_of_step(functions, self.model, self.checkpoint, self.execution)
            self._train_data.warn_of_lost_position(0, is_given=self._is_given_data)
            self._moving_statistics.warn_of_differences()

    # Training.

    def build_hooks(self) -> list[orbit.Hook]:
        """Return the hooks that this trainer adds before the hooks of the config."""
        return []

    def set_graph_hooks(self, graph_hooks: Sequence[orbit.GraphHook]) -> None:
        """Set the hooks that are traced into the step, and retrace the step if they changed."""
        if self._graph_hooks != list(graph_hooks):
            runner.set_untracked(self, _graph_hooks=list(graph_hooks))
            self._retrace_train_step()

    def initialize(self) -> None:
        """Let the task load pretrained weights; called if the run has no checkpoint yet."""
        self._choose_init_checkpoint()
        self.task.initialize(self.model)
        optimizer_factory.follow_weights(self.optimizer)
        base_task.load_optimizer(self.config.task, self.optimizer, self.model, task=self.task)
        if True not in self._task_metrics:
            # Training restarts the averages at the loaded weights. Without training, the averages
            # of the checkpoint are the weights to evaluate.
            base_task.load_averages(self.task, self.config.task, self.optimizer, self.model)

    def _choose_init_checkpoint(self) -> None:
        """Choose the latest checkpoint if `task.init_checkpoint` is a directory.

        All workers that train load the chief's choice. Otherwise, their replicas would start from
        different weights if a running pretraining saves a checkpoint at this moment.
        """
        path = hyperparams.get_by_path(self.config.task, "init_checkpoint", "")
        if not path:
            return
        found = None
        # If the path is not a directory, the task must interpret it, so choose no checkpoint here.
        if tf.io.gfile.isdir(files.expand_home(path)):
            found = warm_start.find_checkpoint(path)
            if True in self._task_metrics:
                name = os.path.basename(found or "")
                exchange = predictor.create_exchange(self.strategy)
                told = exchange([{"name": np.array([name.encode()], object)}])
                # The chief is the first worker.
                name = told[0]["name"][0].decode()
                found = os.path.join(files.expand_home(path), name) if name else None
        base_task.choose_init_checkpoint(self.task, path, found)

    def train_loop_begin(self) -> None:
        """Reset the metrics; called before the first step of a reporting interval."""
        self._is_reporting = True
        for group in self._train_groups().values():
            group.reset()

    def next_train_inputs(self, iterator: Iterator[Any]) -> Any:
        """Fetch a batch. This runs on the host, usually in graph mode."""
        return user_code.next_batch(iterator)

    def task_inputs(self, inputs: nests.Nest) -> nests.Nest:
        """Return the part of a training batch that the task's `train_step` receives: all of it."""
        return inputs

    @user_code.not_converted
    def train_step(self, iterator: Iterator[Any]) -> None:
        """Make one update from the next batch, or from the next `grad_accum_steps` batches."""
        next_inputs = user_code.converted(self.next_train_inputs)
        run_step = user_code.converted(self.run_step)
        if self._accumulator is None:
            run_step(self.replica_train_step, next_inputs(iterator))
            return

        def micro_step(iterator: Iterator[Any]) -> None:
            run_step(self._micro_step, next_inputs(iterator))

        def count_micro_step(count: tf.Tensor) -> tuple[tf.Tensor]:
            orbit.utils.guard_step(micro_step)(iterator)
            return (count + 1,)

        count_wanted = self.config.trainer.grad_accum_steps
        run_step(self.begin_replica_step)
        tf.while_loop(lambda count: count < count_wanted, count_micro_step, (tf.constant(0),))
        run_step(self._flush)

    def train_loop_end(self) -> dict[str, Any]:
        """Return the training metrics at the end of a reporting interval."""
        self.join()
        groups = self._train_groups()
        logs = self._training_logs(groups)
        # Reset the metrics at the end of the interval, too, so that neither a checkpoint nor an
        # evaluation contains their values.
        for group in groups.values():
            group.reset()
        self._is_reporting = False
        return logs | orbit.utils.learning_rates(self.optimizer, self.global_step)

    def _train_groups(self) -> dict[str, step_metrics.MetricGroup]:
        """Return the training metric groups by name."""
        return {"": self._metric_groups.get("train", [self.train_loss, *self.train_metrics])}

    def _training_logs(self, groups: Mapping[str, step_metrics.MetricGroup]) -> dict[str, Any]:
        return groups[""].results()

    # The part of a training step that each replica computes.

    def begin_replica_step(self) -> None:
        """Prepare an update on a replica: set the random seeds of the step."""
        self._seeds.set(self.global_step.read_value())

    def replica_train_step(self, inputs: nests.Nest) -> None:
        """Make an update from a replica's part of a batch."""
        self.begin_replica_step()
        self._learn(inputs, self.optimizer)
        self._end_replica_step()

    def _micro_step(self, inputs: nests.Nest) -> None:
        """Accumulate the gradients of a micro-batch."""
        num_examples, num_replicas = self._executor.count_examples(inputs)
        num_parts = self.batches_per_step * num_replicas
        weight = step_metrics.weight_of_part(num_examples, num_parts, self.global_batch_size)
        with (
            gradient_accumulator.weighing(self._accumulator, weight),
            distributed_gradients.refusing_updates(
                "but `trainer.grad_accum_steps` is above 1, and `train_step` is called for each "
                "micro-batch. Only the gradients of the optimizer that it is given are "
                "accumulated. Set `trainer.grad_accum_steps` to 1 and `trainer.fit_memory` to "
                "false."
            ),
        ):
            self._learn(inputs, self._accumulator)

    def _flush(self) -> None:
        """Update the weights with the accumulated gradients."""
        self._accumulator.flush()
        self._end_replica_step()

    def _learn(self, inputs: nests.Nest, optimizer: Any) -> None:
        metrics = self._task_metrics[True]
        self._call_step(self._checked_step, inputs, metrics, model=self.model, optimizer=optimizer)

    def _call_step(
        self, step: executors.TrainStep, inputs: nests.Nest, metrics: Any, **kwargs: Any
    ) -> None:
        """Call a step in the current execution mode and pass its logs to the graph hooks."""
        step = self._executor.replica_step(step, metrics)
        logs = step(inputs, metrics=metrics, **kwargs)
        for hook in self._graph_hooks:
            user_code.converted(hook.call)(logs)

    @user_code.not_converted
    def _checked_step(
        self, inputs: nests.Nest, model: keras.Model, optimizer: Any, metrics: Metrics
    ) -> Mapping[str, Any]:
        """Call the task's step, and update the metric `train_loss` with the returned loss."""
        logs = step_checks.call_train_step(self.task, inputs, model, optimizer, metrics)
        loss = step_checks.training_loss(self.task, logs)
        step_checks.warn_of_unreported_logs(self.task, logs, metrics, model, self._graph_hooks)
        weight = self._weight_of_part(inputs, self.global_batch_size)
        step_metrics.add_loss(self.train_loss, loss, weight)
        return logs

    def _weight_of_part(self, inputs: nests.Nest, size: int | None) -> tf.Tensor | None:
        """Return the weight of a replica's part of a batch; see `step_metrics.weight_of_part`."""
        num_parts = self.batches_per_step * self.strategy.num_replicas_in_sync
        return step_metrics.weight_of_part(step_metrics.num_examples(inputs), num_parts, size)

    def _end_replica_step(self) -> None:
        if not self.config.trainer.virtual_replicas:
            self._moving_statistics.average()
        self.global_step.assign_add(1)

    def _show_gradients(self, grads_and_vars: Sequence[tuple[Any, Any]]) -> None:
        """Pass the gradients of an update, summed over the replicas, to the graph hooks."""
        for hook in self._graph_hooks:
            shown = grads_and_vars
            if not getattr(hook, "takes_rows", False):
                shown = [(tf.convert_to_tensor(g), v) for g, v in grads_and_vars]
            user_code.converted(hook.on_gradients)(shown)

    # Evaluation.

    def evaluate(self, num_steps: tf.Tensor) -> dict[str, Any] | None:
        """Evaluate, with the averaged weights if the optimizer keeps averages.

        The training weights are restored even if the evaluation fails. If a hook evaluates within a
        reporting interval, the training metrics are also restored, because training and evaluation
        may share metrics.

        Raises:
            errors.ConfigValueError: If the trainer was built with `evaluate=False`.
        """
        if not self.evaluates:
            raise errors.ConfigValueError(
                "This trainer was created with `evaluate=False`, so it can't evaluate. Use the "
                "mode `train_and_eval` or `train_and_post_eval`."
            )
        with (
            ema_optimizer.averaged_weights(self.optimizer),
            self.keeping_metrics(),
            checkpoint_state.undone_by_stop(self.checkpoint),
        ):
            return super().evaluate(num_steps)

    def keeping_metrics(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which an evaluation does not change what training reports."""
        groups = self._train_groups().values() if self._is_reporting else ()
        return step_metrics.kept([metric for group in groups for metric in group.metrics])

    def evaluating_apart(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which no evaluation is passed to the checkpoint exporter.

        Use it to evaluate weights other than the current ones of the trainer.
        """
        return exporter_events.without_exporter(self)

    def eval_begin(self) -> None:
        """Reset the validation metrics."""
        self._metric_groups.get("loss", [self.validation_loss]).reset()
        self._metric_groups.get("validation", self.validation_metrics).reset()

    def next_eval_inputs(self, iterator: Iterator[Any]) -> tuple[Any, dict[str, Any]]:
        """Fetch a batch, and logs that bypass the devices.

        The second value is merged into the step's outputs on the host. Use it to pass strings, or
        anything else that a device can't hold, to `aggregate_logs`. With several workers, each
        worker gets only its own values.
        """
        return user_code.next_batch(iterator), {}

    @user_code.not_converted
    def eval_step(self, iterator: Iterator[Any]) -> dict[str, Any]:
        """Evaluate the next batch. Each output is a tuple with one element per replica."""
        inputs, passthrough_logs = user_code.converted(self.next_eval_inputs)(iterator)
        eval_step = user_code.converted(self._replica_eval_step)
        logs = self._eval_executor.run_eval_step(eval_step, inputs)
        if clashes := sorted(logs.keys() & passthrough_logs.keys()):
            logging.warning(
                "`next_eval_inputs` and the task both report %s. The task's values are used. Use "
                "other names in `next_eval_inputs`.",
                ", ".join(clashes),
            )
        return {**passthrough_logs, **logs}

    def eval_reduce(self, state: Any = None, step_outputs: nests.Nest = None) -> Any:
        """Fold a step's outputs into the evaluation's state, on the host.

        With several workers, `aggregate_logs` gets the outputs of the replicas of all workers.
        There are two exceptions: in a compiled loop, and if `next_eval_inputs` is overridden, each
        worker folds only its own outputs. The values that `next_eval_inputs` adds exist only on
        this worker.
        """
        is_gathered = (
            tf.executing_eagerly()
            and type(self.task).aggregate_logs is not base_task.Task.aggregate_logs
            and type(self).next_eval_inputs is Trainer.next_eval_inputs
        )
        if is_gathered:
            if self._gather_outputs is None:
                gather = eval_outputs.create_gather(self.strategy)
                runner.set_untracked(self, _gather_outputs=gather)
            step_outputs = self._gather_outputs(step_outputs)
        # Pass `step_outputs` by position, because tasks may give the parameter another name.
        return self.task.aggregate_logs(state, step_outputs)

    def eval_end(self, aggregated_logs: Any = None) -> dict[str, Any]:
        """Return the results of the evaluation, after passing them to the checkpoint exporter."""
        self.join()
        logs = self._metric_groups.get("validation", self.validation_metrics).results()
        if float(tf.convert_to_tensor(self.validation_loss.count)) > 0:
            logs[self.validation_loss.name] = self.validation_loss.result()
        else:
            logging.info("The task reports no validation loss.")
        if aggregated_logs is not None:
            logs |= self.task.reduce_aggregated_logs(aggregated_logs, global_step=self.global_step)
        if self._checkpoint_exporter:
            if (best := exporter_events.export(self, logs)) is not None:
                logs["best_" + self.config.trainer.best_checkpoint_eval_metric] = best
        return logs

    def _replica_eval_step(self, inputs: nests.Nest) -> dict[str, Any]:
        """Evaluate a replica's part of a batch, which may be empty."""
        with step_checks.explaining_the_step(self.task, self.task.validation_step, inputs):
            logs = user_code.converted(self.task.validation_step)(
                inputs, model=self.model, metrics=self._task_metrics[False]
            )
        logs = step_checks.returned(self.task.validation_step, logs, "a dictionary of logs")
        if self.task.loss in logs:
            self.validation_loss.update_state(logs[self.task.loss], batch=inputs)
        return logs

    # Prediction.

    def predict(self, first_batch: int = 0) -> Generator[predictor.Prediction, None, None]:
        """Yield the predictions for each global batch, in the order of the input.

        Several workers get the same predictions, and each of them must read them to the end.

        The model predicts with the averaged weights if the optimizer keeps averages. Call this
        method in the strategy's scope. Close the iterator if you do not read it to its end, so that
        the training weights are restored.

        Args:
            first_batch: The number of global batches to skip. The other predictions are identical
                to those of a full pass: if they may depend on the skipped batches, the skipped
                batches are computed as well.

        Yields:
            One array per column, with one row per example of the batch. If replicas predict rows of
            different shapes, a list of such parts of the batch, in order.
        """
        return self._predictor.predict(self.predict_step, self.execution, first_batch)

    def next_predict_inputs(self, iterator: Iterator[Any]) -> Any:
        """Fetch a batch. This runs on the host, usually in graph mode."""
        return user_code.next_batch(iterator)

    @user_code.not_converted
    def predict_step(
        self, iterator: Iterator[Any], number: tf.Tensor
    ) -> tuple[dict[str, tuple[tf.Tensor, ...]], tuple[tf.Tensor, ...]]:
        """Predict the next batch; its number in the input seeds random numbers.

        Returns:
            The predictions by column, and the number of examples, each as a tuple with one element
            per replica.
        """
        inputs = user_code.converted(self.next_predict_inputs)(iterator)
        return self._predictor.run_step(inputs, number, self.execution)

    # Checkpoints.

    def after_restore(self) -> None:
        """Resume the training data at the restored position; called after a checkpoint is restored.

        A dataset that was passed to the trainer starts from the beginning.
        """
        model_state.follow_statistics(self.model)
        step = int(self.global_step.numpy())
        if True not in self._task_metrics:
            return
        # If training has already read from a given dataset or through asynchronous workers, it
        # continues with the next unread batch.
        if self._train_loop is not None and (self._is_given_data or self.has_coordinator):
            return
        if not self._is_given_data:
            with self.strategy.scope():
                self._built_train_dataset = self._train_data.build_at(
                    step, is_counted=self.batch_counts is not None
                )
            self.train_dataset = self._built_train_dataset
        if step:
            self._train_data.warn_of_lost_position(step, is_given=self._is_given_data)

    def before_training(self, step: int) -> None:
        """Make the checkpoint exporter discard best results recorded after `step`."""
        self._notify_exporter("rewind", step)

    def before_checkpoint(self) -> None:
        """Make the checkpoint exporter protect the current best checkpoint."""
        self._notify_exporter("protect")

    def after_checkpoint(self, step: int) -> None:
        """Make the checkpoint exporter release files that only earlier states require."""
        self._notify_exporter("settle", step)

    def _notify_exporter(self, event: str, *args: Any) -> None:
        # If this job only trains, another job may evaluate and export to the same directory, so do
        # not change the exported files.
        if self.evaluates:
            exporter_events.notify(self._checkpoint_exporter, event, *args)

    def _checkpoint_items(self) -> dict[str, Any]:
        return {
            "global_step": self.global_step,
            "model": self.model,
            "optimizer": self.optimizer,
            **self._train_data.variables,
            **model_state.hidden_items(self.model),
            **model_state.checkpoint_items(self.model),
        }

    # Data.

    def build_train_dataset(self) -> Dataset:
        """Rebuild the training data from the beginning; return a given dataset unchanged."""
        if self._is_given_data:
            return self.train_dataset
        with self.strategy.scope():
            return self._train_data.build()

    def skip_batches(self, count: int) -> None:
        """Skip the next batches of the training data, also in a resumed run."""
        self._train_data.skip(count)
        self.after_restore()

    def keeping_position(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which a restore does not change which batches are read next."""
        kept: contextlib.AbstractContextManager[None] = self._train_data.keeping_position(
            lambda: int(self.global_step.numpy())
        )
        return kept

    @property
    def _is_given_data(self) -> bool:
        """Whether the training data were passed to the trainer."""
        built = self._built_train_dataset
        return built is None or self.train_dataset is not built

    # Construction.

    def _create_executor(self, mode: str) -> executors.GraphExecutor:
        return modes.create_executor(
            mode,
            self._strategy,
            self._runtime_options,
            self.config.runtime.dataset_num_private_threads,
            self.config.trainer.virtual_replicas,
        )

    def _create_train_data(self) -> train_data.TrainData | train_data.TrainDataByTask:
        return train_data.TrainData(self.config, self.task.build_inputs, self.distribute_dataset)

    def _prepare_step(self) -> None:
        """Check the task's training step, and build the task's training metrics."""
        self._require_step("train_step", "_learn", model="", optimizer="", metrics="")
        self._task_metrics[True] = step_checks.build_metrics(self.task, training=True)

    def _init_training(self, dataset: Dataset | None) -> None:
        config, compiles = self.config.trainer, self.execution != "eager"
        self._prepare_step()
        if dataset is None:
            self._built_train_dataset = self._train_data.build()
        options = orbit.StandardTrainerOptions(
            use_tf_function=config.train_tf_function and compiles,
            use_tf_while_loop=config.train_tf_while_loop and compiles,
        )
        orbit.StandardTrainer.__init__(self, dataset or self._built_train_dataset, options)

    def _init_evaluation(self, dataset: Dataset | None) -> None:
        config, compiles = self.config.trainer, self.eval_execution != "eager"
        self._require_step("validation_step", "_replica_eval_step", model="", metrics="")
        self._task_metrics[False] = step_checks.build_metrics(self.task, training=False)
        options = orbit.StandardEvaluatorOptions(
            use_tf_function=config.eval_tf_function and compiles,
            use_tf_while_loop=config.eval_tf_while_loop and compiles,
        )
        if dataset is None:
            dataset = train_data.build_evaluation(
                self.config, self.task.build_inputs, self.distribute_eval_dataset
            )
        orbit.StandardEvaluator.__init__(self, dataset, options)
        if type(self).eval_begin is Trainer.eval_begin:
            self.check_state(None)

    def _require_step(self, name: str, caller: str, **kwargs: str) -> None:
        """Check a step of the task, unless the trainer overrides the method that calls the step."""
        callers = ("train_step" if name == "train_step" else "eval_step", caller)
        if not all(getattr(type(self), one) is getattr(Trainer, one) for one in callers):
            return
        step_checks.require_signature(getattr(self.task, name), "inputs", **kwargs)
        base_task.warn_of_overridden_step(self.model, self.task, name)
        step_checks.require_losses(self.task, base_task.Task, name)

    def _build_model(self, train: bool) -> None:
        build = _build_first.get()
        if build is not None:
            # The function may create trainers itself.
            with building_first(None):
                build(self.model)
        if train or self.evaluates:
            specs = self._replica_spec
            model_building.build_for_steps(
                self.model, self.task, self._task_metrics, specs, self.optimizer
            )
            if train:
                model_building.warn_of_wrong_gradients(self.model)
        elif build is None and not model_building.has_variables(self.model):
            spec = predictor.build_dataset(self.config, self.task, self._strategy).element_spec
            model_building.build_for_prediction(self.model, self.task, spec)
        if not train:
            self._build_for_training(self.optimizer)

    def _build_for_training(self, optimizer: keras.optimizers.Optimizer | None) -> None:
        """Build the layers that only the training step calls, if there are training data."""
        if getattr(self.config.task, "train_data", None) is not None:
            model_building.build_for_training(
                self.model,
                self.task,
                lambda: self._executor.replica_spec(self._train_data.build()),
                optimizer,
            )

    def _replica_spec(self, training: bool) -> nests.Nest:
        """Return the input specs of the task's training or validation step."""
        return self._executor.replica_spec(self.train_dataset if training else self.eval_dataset)


@contextlib.contextmanager
def building_first(build: Callable[[Any], None] | None) -> Iterator[None]:
    """Enter a context in which a new trainer calls `build(model)` before it builds the model.

    Use it to build layers that the trainer's own steps do not call. The constructor of the trainer
    calls the function, because a trainer class may have to prepare the model before any step can be
    traced; an architecture search, for example, sets its choices. A trainer that neither trains nor
    evaluates then does not read the prediction data, which may not exist.

    Args:
        build: A function that takes a model and builds layers of it; None for no function.
    """
    token = _build_first.set(build)
    try:
        yield
    finally:
        _build_first.reset(token)


class _AsyncTrainer(orbit.StandardTrainer, orbit.StandardEvaluator):
    """The Model Garden's base class for trainers whose steps may run on parameter servers.

    A subclass sets `_strategy` and then calls `init_async`.
    """

    _strategy: tf.distribute.Strategy
    _coordinator = Trainer._coordinator
    init_async: Any = Trainer.init_async
    _init_execution: Any = Trainer._init_execution
    coordinator_for_async: Any = Trainer.coordinator_for_async
    join: Any = Trainer.join
    distribute_dataset: Any = Trainer.distribute_dataset
    create_train_loop_fn: Any = Trainer.create_train_loop_fn
    create_eval_loop_fn: Any = Trainer.create_eval_loop_fn

    def _create_executor(self, mode: str) -> executors.GraphExecutor:
        return modes.create_executor(mode, self._strategy)

    def run_steps(self, num_steps: tf.Tensor) -> None:
        """Run steps; see `orbit.StandardTrainer.run_steps`."""
        global_step = getattr(self, "global_step", None)
        if self._coordinator is None or global_step is None:
            super().run_steps(num_steps)
        else:
            optimizer = getattr(self, "optimizer", None)
            executors.run_and_count(super().run_steps, num_steps, global_step, optimizer)
