"""The half of a trainer that evaluates."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite import orbit
from official_lite.common import errors, user_code
from official_lite.core import base_task, compiled_trainer, replica_steps, step_metrics, train_data
from official_lite.data import length
from official_lite.execution.parameter_server import Dataset
from official_lite.modeling.optimization import ema_optimizer

__all__ = ["EvaluatingTrainer", "Metrics", "tell_exporter"]

Metrics = list[keras.metrics.Metric]


class EvaluatingTrainer(compiled_trainer.CompiledTrainer):
    """Evaluates a task's model on all replicas; see `base_trainer.Trainer`, which brings the rest.

    A subclass sets what is declared here, and calls `_init_evaluation`.
    """

    strategy: Any
    task: Any
    optimizer: Any
    global_step: Any
    checkpoint: Any
    _replica: replica_steps.ReplicaSteps
    _checkpoint_exporter: Any
    _validation_loss: step_metrics.BatchMean
    # By whether they are those of training, and by name.
    _task_metrics: dict[bool, Metrics]
    _metric_groups: dict[str, step_metrics.MetricGroup]

    @property
    def folds_outputs(self) -> bool:
        """Whether the outputs of each step of an evaluation are wanted on the host."""
        return (
            type(self).eval_reduce is not EvaluatingTrainer.eval_reduce
            or type(self.task).aggregate_logs is not base_task.Task.aggregate_logs
        )

    @property
    def evaluates(self) -> bool:
        """Whether it was built to evaluate."""
        return False in self._task_metrics

    @property
    def validation_loss(self) -> step_metrics.BatchMean:
        return self._validation_loss

    @property
    def validation_metrics(self) -> Metrics:
        """What evaluation reports: the task's metrics and the model's own."""
        return self._task_metrics[False] + self._model_metrics()

    def evaluate(self, num_steps: tf.Tensor) -> dict[str, Any] | None:
        """Evaluates, with the averaged weights if the optimizer keeps an average.

        The training weights come back however the evaluation ends.

        Raises:
            errors.ConfigValueError: The trainer was made with `evaluate=False`.
        """
        if not hasattr(self, "_eval_options"):
            raise errors.ConfigValueError(
                "This trainer was made to train only (`evaluate=False`), as in the mode `train`; "
                "use `train_and_eval` or `train_and_post_eval`."
            )
        with ema_optimizer.averaged_weights(self.optimizer):
            return super().evaluate(num_steps)

    def before_training(self, step: int) -> None:
        """Has the checkpoint exporter forget what was best after `step`."""
        self._tell_exporter("rewind", step)

    def before_checkpoint(self) -> None:
        """Has the checkpoint exporter keep what is best now."""
        self._tell_exporter("protect")

    def after_checkpoint(self, step: int) -> None:
        """Has the checkpoint exporter let go of what only earlier states need."""
        self._tell_exporter("settle", step)

    def eval_begin(self) -> None:
        """Resets the validation metrics."""
        self._metric_group("loss", [self.validation_loss]).reset()
        self._metric_group("validation", self.validation_metrics).reset()

    def next_eval_inputs(self, iterator: Iterator[Any]) -> tuple[Any, dict[str, Any]]:
        """Fetches a batch, and logs that go round the devices.

        The second value is merged into the step's outputs on the host; it is the way to bring
        strings, or anything else that a device can't hold, to `aggregate_logs`.
        """
        return user_code.next_batch(iterator), {}

    @user_code.not_converted
    def eval_step(self, iterator: Iterator[Any]) -> dict[str, Any]:
        """Evaluates the next batch. Each output is a tuple with one element per replica."""
        inputs, passthrough_logs = user_code.converted(self.next_eval_inputs)(iterator)
        eval_step = user_code.converted(self._replica.eval_step)
        outputs = self.strategy.run(eval_step, args=(inputs,))
        logs = tf.nest.map_structure(self.strategy.experimental_local_results, outputs)
        clashes = sorted(logs.keys() & passthrough_logs.keys())
        if clashes:
            logging.warning(
                "`next_eval_inputs` and the model both log %s; the model's values are kept.",
                ", ".join(clashes),
            )
        return {**passthrough_logs, **logs}

    def eval_reduce(self, state: Any = None, step_outputs: Any = None) -> Any:
        """Folds a step's outputs into the evaluation's state, on the host."""
        # By position: tasks name the second argument as they like.
        return self.task.aggregate_logs(state, step_outputs)

    def eval_end(self, aggregated_logs: Any = None) -> dict[str, Any]:
        """Gathers the results of the evaluation, and shows them to the checkpoint exporter."""
        self.join()
        logs = self._metric_group("validation", self.validation_metrics).results()
        if float(tf.convert_to_tensor(self.validation_loss.count)) > 0:
            logs[self.validation_loss.name] = self.validation_loss.result()
        else:
            logging.info("The task reports no validation loss.")
        if aggregated_logs is not None:
            logs |= self.task.reduce_aggregated_logs(aggregated_logs, global_step=self.global_step)
        if self._checkpoint_exporter:
            self._export_if_best(logs)
        return logs

    def _init_evaluation(self, dataset: Dataset | None) -> None:
        trainer_config = self.config.trainer
        self._task_metrics[False] = list(self.task.build_metrics(training=False))
        eagerly = self.execution == "eager"
        orbit.StandardEvaluator.__init__(
            self,
            dataset or self._build_eval_dataset(),
            options=orbit.StandardEvaluatorOptions(
                use_tf_function=trainer_config.eval_tf_function and not eagerly,
                use_tf_while_loop=trainer_config.eval_tf_while_loop and not eagerly,
            ),
        )

    def _build_eval_dataset(self) -> Dataset:
        build_inputs, data = train_data.evaluation_inputs(
            self.config, self.task.build_inputs, self.strategy.num_replicas_in_sync
        )
        if getattr(self.config.trainer, "validation_steps", 0) == -1:
            build_inputs = length.timed(build_inputs)
        return self.distribute_eval_dataset(build_inputs, data)

    def _export_if_best(self, logs: dict[str, Any]) -> None:
        average = ema_optimizer.get_moving_average(self.optimizer)
        # The averaged weights are in place here: they are what was evaluated, and what is kept.
        with average.following_weights() if average else contextlib.nullcontext():
            self._checkpoint_exporter.maybe_export_checkpoint(
                self.checkpoint, logs, self.global_step.numpy()
            )
        best = getattr(self._checkpoint_exporter, "best_metric_value", None)
        if best is not None:
            logs["best_" + self.config.trainer.best_checkpoint_eval_metric] = best

    def _tell_exporter(self, event: str, *args: Any) -> None:
        # A training without evaluations may share the directory with a job that evaluates.
        if self.evaluates:
            tell_exporter(self._checkpoint_exporter, event, *args)

    def _metric_group(self, name: str, metrics: Metrics) -> step_metrics.MetricGroup:
        """One for each name, made anew if the model has got more metrics."""
        group = self._metric_groups.get(name)
        if group is None or [*map(id, group.metrics)] != [*map(id, metrics)]:
            group = self._metric_groups[name] = step_metrics.MetricGroup(metrics)
        return group

    def _model_metrics(self) -> Metrics:
        return step_metrics.model_metrics(self.model)


def tell_exporter(exporter: Any, event: str, *args: Any) -> None:
    """Calls a method of a checkpoint exporter, if it has it: the Model Garden's does not."""
    getattr(exporter, event, lambda *_: None)(*args)
