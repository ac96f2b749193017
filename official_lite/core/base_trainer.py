"""The trainer: one step of training and of evaluation, over all replicas."""

from collections.abc import Iterator, Sequence
from typing import Any

import gin
import keras
import tensorflow as tf

from official_lite import orbit
from official_lite.checkpoint import adapted_layers, model_state
from official_lite.common import errors, user_code
from official_lite.core import (
    base_task,
    config_definitions,
    evaluating_trainer,
    model_building,
    replica_steps,
    step_metrics,
    train_data,
)
from official_lite.execution import modes, parameter_server
from official_lite.execution.parameter_server import Dataset
from official_lite.modeling import atomic_sums, distributed_gradients, embedding_lookups, freezing
from official_lite.modeling.optimization import (
    ema_optimizer,
    gradient_accumulator,
    optimizer_factory,
)

__all__ = ["ExperimentConfig", "Trainer", "TrainerConfig", "get_runtime_options"]

ExperimentConfig = config_definitions.ExperimentConfig
TrainerConfig = config_definitions.TrainerConfig

# The Model Garden's name.
_AsyncTrainer = parameter_server.AsyncTrainer


@gin.configurable
class Trainer(evaluating_trainer.EvaluatingTrainer):
    """Trains and evaluates a task's model, on all replicas of the current strategy.

    Create it in the strategy's scope. Each method below can be overridden by itself::

        train_loop_begin()                      metrics start anew
          train_step(iterator)                  one update; in the compiled loop
            next_train_inputs(iterator)
            task.train_step(...)                on every replica
        train_loop_end() -> logs                metrics and learning rate, on the host

        eval_begin()
          eval_step(iterator) -> outputs
            next_eval_inputs(iterator) -> inputs, passthrough logs
            task.validation_step(...)           on every replica
          eval_reduce(state, outputs) -> state  on the host
        eval_end(state) -> logs                 metrics; the best checkpoint is kept here
    """

    _built_train_dataset: Dataset | None = None

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
        """Builds what training or evaluation needs, variables included.

        Args:
            config: The experiment's config, or anything with its `task`, `trainer` and `runtime`.
            task: The task.
            model: The task's model; it may still be unbuilt.
            optimizer: The optimizer.
            train: Whether this trainer will train.
            evaluate: Whether it will evaluate.
            train_dataset: A distributed dataset, in place of `task.build_inputs`.
            validation_dataset: The same for evaluation. It is read anew in every evaluation.
            checkpoint_exporter: An object with `maybe_export_checkpoint`, which is shown every
                evaluation.
        """
        self._strategy = tf.distribute.get_strategy()
        self._validate_params(
            config,
            check_train_data=train_dataset is None,
            check_validation_data=validation_dataset is None,
        )
        train_data.check_given_data(config, train_dataset, validation_dataset)
        self._config = config
        self._task = task
        self._model = model
        self._checkpoint_exporter = checkpoint_exporter
        self._runtime_options = get_runtime_options(config)
        self._train_loss = keras.metrics.Mean("training_loss", dtype="float32")
        self._validation_loss = step_metrics.BatchMean("validation_loss", dtype="float32")
        self._task_metrics: dict[bool, evaluating_trainer.Metrics] = {}
        self.init_async()
        self.init_execution()
        self._train_data = train_data.TrainData(config, task.build_inputs, self.distribute_dataset)
        if train:
            self._init_training(train_dataset)
        if evaluate:
            self._init_evaluation(validation_dataset)
        self._build_model(train)
        freezing.freeze(model, getattr(config.trainer, "freeze", []))
        self._optimizer = optimizer_factory.prepare_optimizer(optimizer, model)
        # Past `tf.Module`, which would make a dictionary of its own of it.
        self.__dict__["_metric_groups"] = {}
        self._replica = replica_steps.ReplicaSteps(
            self, self._task_metrics, self._build_accumulator() if train else None
        )
        distributed_gradients.observe_gradients(self._optimizer, self._replica.show_gradients)
        if self.has_coordinator:
            atomic_sums.make_atomic(self._all_variables())
            # What is read whole travels whole.
            embedding_lookups.read_rows_only(self.model)
        self._global_step = orbit.utils.create_global_step()
        self._checkpoint = tf.train.Checkpoint(**self._checkpoint_items())
        if train:
            modes.check(self.execution, self)

    def _validate_params(
        self,
        config: Any,
        check_train_data: bool = True,
        check_validation_data: bool = True,
    ) -> None:
        """Looks for the parts of the config that the trainer reads.

        Raises:
            AttributeError: If one is missing.
        """
        for block in ("trainer", "task", "runtime"):
            if not hasattr(config, block):
                raise AttributeError(f"The trainer needs a config with a `{block}` field.")
        if check_train_data and not hasattr(config.task, "train_data"):
            raise AttributeError("The trainer needs a config with a `task.train_data` field.")
        if check_validation_data and not hasattr(config.task, "validation_data"):
            raise AttributeError("The trainer needs a config with a `task.validation_data` field.")

    @property
    def strategy(self) -> tf.distribute.Strategy:
        return self._strategy

    @property
    def config(self) -> ExperimentConfig:
        return self._config

    @property
    def task(self) -> base_task.Task:
        return self._task

    @property
    def model(self) -> keras.Model:
        return self._model

    @property
    def optimizer(self) -> keras.optimizers.Optimizer:
        return self._optimizer

    @property
    def global_step(self) -> tf.Variable:
        """The number of updates, int64. It is the only clock of a run."""
        return self._global_step

    @property
    def global_batch_size(self) -> int | None:
        """Examples in an update, over all replicas and micro-batches; None if nobody knows."""
        data = getattr(self.config.task, "train_data", None)
        return getattr(data, "global_batch_size", None) or None

    @property
    def batches_per_step(self) -> int:
        """Batches that a step draws: its micro-batches."""
        return train_data.count_micro_batches(self.config)

    @property
    def train_loss(self) -> keras.metrics.Metric:
        return self._train_loss

    @property
    def train_metrics(self) -> evaluating_trainer.Metrics:
        """What training reports: the task's metrics and the model's own."""
        return self._task_metrics[True] + self._model_metrics()

    @property
    def checkpoint(self) -> tf.train.Checkpoint:
        """What a run resumes from."""
        return self._checkpoint

    @property
    def checkpoint_exporter(self) -> Any:
        return self._checkpoint_exporter

    def build_train_dataset(self) -> Dataset:
        """The training data anew, from their beginning: reading them moves no other iterator.

        Only a trainer that was given its dataset has none but this one.
        """
        if self.train_dataset is not self._built_train_dataset:
            return self.train_dataset
        with self.strategy.scope():
            return self._train_data.build()

    def after_restore(self) -> None:
        """Called when a checkpoint has been restored: the data go on where it was saved.

        Not those of a trainer that was given its dataset.
        """
        adapted_layers.follow_statistics(self.model)
        built = self._built_train_dataset
        if built is None or self.train_dataset is not built:
            return
        if self.has_coordinator and self._train_loop is not None:
            # Workers that run on their own go on with what they have not read.
            return
        with self.strategy.scope():
            self._built_train_dataset = self._train_data.build_at(int(self.global_step.numpy()))
        self.train_dataset = self._built_train_dataset

    def skip_batches(self, count: int) -> None:
        """Leaves out the next batches of the training data, also after an interruption."""
        self._train_data.skipped.assign_add(count)
        self.after_restore()

    def initialize(self) -> None:
        """Called when the run has no checkpoint yet: the task may load pretrained weights."""
        self.task.initialize(self.model)
        if average := ema_optimizer.get_moving_average(self.optimizer):
            average.follow_weights()

    def build_hooks(self) -> list[orbit.Hook]:
        """The hooks that this trainer brings; those of the config come after them."""
        return []

    def set_graph_hooks(self, graph_hooks: Sequence[orbit.GraphHook]) -> None:
        """Takes the hooks that are traced into the step; a step traced before is traced anew."""
        if self._replica.graph_hooks != list(graph_hooks):
            self._replica.graph_hooks = list(graph_hooks)
            self._retrace_train_step()

    def train_loop_begin(self) -> None:
        """Called before the first step of a reporting interval: metrics start anew."""
        self._metric_group("train", [self.train_loss, *self.train_metrics]).reset()

    def next_train_inputs(self, iterator: Iterator[Any]) -> Any:
        """Fetches a batch. Runs on the host, usually in graph mode."""
        return user_code.next_batch(iterator)

    @user_code.not_converted
    def train_step(self, iterator: Iterator[Any]) -> None:
        """Makes one update from the next batch, or from the next `grad_accum_steps` ones."""
        next_inputs = user_code.converted(self.next_train_inputs)
        run_step = user_code.converted(self.run_step)
        if not self._replica.accumulates:
            run_step(self._replica.train_step, next_inputs(iterator))
            return

        def micro_step(iterator: Iterator[Any]) -> None:
            run_step(self._replica.micro_step, next_inputs(iterator))

        def count_micro_step(count: tf.Tensor) -> tuple[tf.Tensor]:
            orbit.utils.guard_step(micro_step)(iterator)
            return (count + 1,)

        count_wanted = self.config.trainer.grad_accum_steps
        run_step(self._replica.begin_step)
        tf.while_loop(lambda count: count < count_wanted, count_micro_step, (tf.constant(0),))
        run_step(self._replica.flush)

    def train_loop_end(self) -> dict[str, Any]:
        """Reads the training metrics at the end of a reporting interval."""
        self.join()
        group = self._metric_group("train", [self.train_loss, *self.train_metrics])
        logs = group.results()
        # Here too: metrics that a checkpoint or an evaluation finds full would leak.
        group.reset()
        logs["learning_rate"] = orbit.utils.current_learning_rate(self.optimizer, self.global_step)
        return logs

    def _init_training(self, dataset: Dataset | None) -> None:
        trainer_config = self.config.trainer
        self._task_metrics[True] = list(self.task.build_metrics(training=True))
        if dataset is None:
            self._built_train_dataset = self._train_data.build()
        eagerly = self.execution == "eager"
        orbit.StandardTrainer.__init__(
            self,
            dataset or self._built_train_dataset,
            options=orbit.StandardTrainerOptions(
                use_tf_function=trainer_config.train_tf_function and not eagerly,
                use_tf_while_loop=trainer_config.train_tf_while_loop and not eagerly,
                use_tpu_summary_optimization=trainer_config.allow_tpu_summary,
            ),
        )

    def _build_model(self, train: bool) -> None:
        if model_building.has_variables(self.model):
            return
        dataset = self.train_dataset if train else self.eval_dataset
        model_building.build_by_task(self.model, self.task, dataset.element_spec, training=train)

    def _all_variables(self) -> list[Any]:
        """Of the model, the optimizer and the metrics."""
        metrics = [metric for group in self._task_metrics.values() for metric in group]
        owners = (self.model, self.optimizer, self._train_loss, self._validation_loss, *metrics)
        return [v for owner in owners for v in getattr(owner, "variables", ())]

    def _build_accumulator(self) -> gradient_accumulator.GradientAccumulator | None:
        count = train_data.count_micro_batches(self.config)
        if count == 1:
            return None
        if type(self).train_step is not Trainer.train_step:
            raise errors.ConfigValueError(
                f"`trainer.grad_accum_steps` is {count}, but {type(self).__name__} has a "
                "`train_step` of its own, which would make an update for every micro-batch. Set it "
                "to 1, or override the task's `train_step` instead."
            )
        tables: list[Any] = []
        if distributed_gradients.has_lazy_rows(self.optimizer):
            tables = embedding_lookups.tables(self.model)
        return gradient_accumulator.GradientAccumulator(
            self.optimizer, self.model.trainable_variables, count, tables
        )

    def _checkpoint_items(self) -> dict[str, Any]:
        return {
            "global_step": self.global_step,
            "model": self.model,
            "optimizer": self.optimizer,
            "skipped_batches": self._train_data.skipped,
            **model_state.hidden_items(self.model),
            **getattr(self.model, "checkpoint_items", {}),
        }


def get_runtime_options(config: ExperimentConfig) -> tf.distribute.RunOptions:
    """What `strategy.run` is told about a training step."""
    padder = config.runtime.tpu_enable_xla_dynamic_padder
    options = {} if padder is None else {"enable_xla_dynamic_padder": padder}
    return tf.distribute.RunOptions(experimental_xla_options=tf.tpu.XLAOptions(**options))
