"""Tests that virtual replicas give identical bits on any number of replicas, or a clear error."""

import itertools
import logging
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks import chaos
from official_lite import orbit
from official_lite.common import errors
from official_lite.core import base_trainer, exp_factory, task_factory, train_lib
from official_lite.core import config_definitions as cfg
from official_lite.execution import auto, modes
from tests import elastic_experiment, line_experiment, rounding


def _train(
    strategy: tf.distribute.Strategy, model_dir: pathlib.Path, **trainer: Any
) -> dict[str, Any]:
    params = exp_factory.get_exp_config("tests/elastic")
    params.override({"trainer": trainer})
    keras.utils.set_random_seed(params.runtime.seed)
    with strategy.scope():
        task = task_factory.get_task(params.task)
    train_lib.run_experiment(strategy, task, "train_and_eval", params, str(model_dir))
    return chaos.what_is_left(model_dir)


@pytest.mark.slow
def test_run_with_virtual_replicas_is_bit_identical_on_one_and_two_replicas(
    tmp_path: pathlib.Path, two_replicas: tf.distribute.Strategy
) -> None:
    one = _train(tf.distribute.get_strategy(), tmp_path / "one")
    two = _train(two_replicas, tmp_path / "two")
    assert len(one) > 60
    assert chaos.differences(one, two) == []


@pytest.mark.slow
def test_run_with_virtual_replicas_resumed_on_fewer_replicas_equals_an_uninterrupted_run(
    tmp_path: pathlib.Path,
    two_replicas: tf.distribute.Strategy,
    caplog: pytest.LogCaptureFixture,
) -> None:
    unbroken = _train(tf.distribute.get_strategy(), tmp_path / "unbroken")
    _train(two_replicas, tmp_path / "resumed", train_steps=10)
    with caplog.at_level(logging.INFO, logger="absl"):
        resumed = _train(tf.distribute.get_strategy(), tmp_path / "resumed")
    assert chaos.differences(unbroken, resumed) == []
    assert "ckpt-10 on 1 instead of 2 replicas" in caplog.text
    assert "will not be bit for bit the same" not in caplog.text


def test_evaluation_metrics_are_the_same_with_and_without_virtual_replicas(
    tmp_path: pathlib.Path,
) -> None:
    params = exp_factory.get_exp_config("tests/elastic")
    results = []
    for count in (0, 4):
        params.override({"trainer": {"virtual_replicas": count}})
        keras.utils.set_random_seed(0)
        task = task_factory.get_task(params.task)
        trainer = _create_trainer(params, task)
        results.append(trainer.evaluate(tf.constant(-1)))
    without, virtual = results
    assert without.keys() == virtual.keys()
    for name, value in without.items():
        assert float(virtual[name]) == pytest.approx(float(value), rel=1e-5)


def _create_trainer(
    params: cfg.ExperimentConfig,
    task: Any,
    trainer_cls: type[base_trainer.Trainer] = base_trainer.Trainer,
    **kwargs: Any,
) -> base_trainer.Trainer:
    optimizer = task.create_optimizer(params.trainer.optimizer_config, params.runtime)
    return trainer_cls(params, task, task.build_model(), optimizer, **kwargs)


class OwnTrainer(base_trainer.Trainer):
    def train_step(self, iterator: Any) -> None:
        super().train_step(iterator)


@pytest.mark.parametrize(
    ("overrides", "trainer_cls", "message"),
    [
        ({"trainer": {"virtual_replicas": 3}}, base_trainer.Trainer, "expected a multiple of the"),
        ({"runtime": {"execution": "xla_loop"}}, base_trainer.Trainer, "Use `graph` or `xla`"),
        ({"trainer": {"train_tf_function": False}}, base_trainer.Trainer, "train_tf_function"),
        ({}, OwnTrainer, "OwnTrainer overrides `train_step`"),
        ({"task": {"train_data": {"global_batch_size": 4}}}, base_trainer.Trainer, "multiple of 8"),
    ],
)
def test_config_that_virtual_replicas_do_not_support_raises(
    overrides: dict[str, Any],
    trainer_cls: type[base_trainer.Trainer],
    message: str,
    two_replicas: tf.distribute.Strategy,
) -> None:
    params = exp_factory.get_exp_config("tests/elastic")
    params.override(overrides)
    task = task_factory.get_task(params.task)
    with two_replicas.scope(), pytest.raises(errors.ConfigValueError, match=message):
        _create_trainer(params, task, trainer_cls)


@pytest.mark.parametrize(
    ("strategy_cls", "name"),
    [
        (tf.distribute.ParameterServerStrategy, "parameter_server"),
        (tf.distribute.experimental.CentralStorageStrategy, "central_storage"),
    ],
)
def test_strategy_that_virtual_replicas_do_not_support_raises(
    strategy_cls: type[tf.distribute.Strategy], name: str
) -> None:
    strategy = strategy_cls.__new__(strategy_cls)  # This creates no devices.
    with pytest.raises(errors.ConfigValueError, match=f"the strategy `{name}`"):
        modes.check_virtual_replicas(4, "graph", strategy)


@pytest.mark.parametrize(
    "hook",
    [
        orbit.hooks.PreciseBatchNorm(num_steps=2),
        orbit.hooks.StochasticWeightAveraging(start_step=0, every_n_steps=5),
    ],
)
def test_hook_that_runs_steps_itself_is_refused_with_virtual_replicas_before_training(
    tmp_path: pathlib.Path, hook: orbit.Hook
) -> None:
    params = exp_factory.get_exp_config("tests/elastic")
    task = task_factory.get_task(params.task)
    strategy = tf.distribute.get_strategy()
    with pytest.raises(errors.ConfigValueError, match="exact batch normalization statistics"):
        train_lib.run_experiment(strategy, task, "train", params, str(tmp_path), hooks=[hook])
    assert not list(tmp_path.glob("ckpt-*"))


def test_passing_a_dataset_to_distribute_dataset_with_virtual_replicas_raises() -> None:
    params = exp_factory.get_exp_config("tests/elastic")
    trainer = _create_trainer(params, task_factory.get_task(params.task))
    with pytest.raises(errors.ConfigValueError, match="a dataset was given"):
        trainer.distribute_dataset(tf.data.Dataset.range(3))


class CountingTask(elastic_experiment.ElasticTask):
    """A task that counts its steps in an integer variable on each replica."""

    def build_model(self) -> keras.Model:
        self.count = tf.Variable(0, trainable=False, name="my_count")
        return super().build_model()

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        self.count.assign_add(1)
        return super().build_losses(labels, model_outputs, aux_losses)


class AggregatingTask(elastic_experiment.ElasticTask):
    """A task that changes a variable of each aggregation in its steps."""

    def build_model(self) -> keras.Model:
        aggregations = tf.VariableAggregation
        self.steps = tf.Variable(0, trainable=False, aggregation=aggregations.ONLY_FIRST_REPLICA)
        self.mean = tf.Variable(0.0, trainable=False, aggregation=aggregations.MEAN)
        self.total = tf.Variable(0.0, trainable=False, aggregation=aggregations.SUM)
        self.examples = tf.Variable(0, trainable=False, aggregation=aggregations.SUM)
        return super().build_model()

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        self.steps.assign_add(1)
        self.mean.assign_add(tf.reduce_mean(model_outputs))
        self.total.assign_add(1.0)
        self.examples.assign_add(tf.shape(labels)[0])
        return super().build_losses(labels, model_outputs, aux_losses)


def _aggregated(strategy: tf.distribute.Strategy) -> dict[str, Any]:
    """Return the variables of an `AggregatingTask` after a step of two micro-batches."""
    params = exp_factory.get_exp_config("tests/elastic")
    keras.utils.set_random_seed(0)
    with strategy.scope():
        task = AggregatingTask(params.task)
        _create_trainer(params, task, evaluate=False).train(tf.constant(1))
    names = ("steps", "mean", "total", "examples")
    return {name: getattr(task, name).numpy() for name in names}


def test_variable_with_an_aggregation_has_the_same_value_on_one_and_two_replicas(
    two_replicas: tf.distribute.Strategy,
) -> None:
    one, two = _aggregated(tf.distribute.get_strategy()), _aggregated(two_replicas)
    assert one == two
    assert one["steps"] == 2
    assert one["mean"] != 0


def test_variable_that_sums_over_replicas_changes_by_the_sum_over_all_virtual_replicas() -> None:
    values = _aggregated(tf.distribute.get_strategy())
    # Two micro-batches of 12 examples, each on four virtual replicas.
    assert (values["total"], values["examples"]) == (8.0, 24)


class ReducingTask(elastic_experiment.ElasticTask):
    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        loss = super().build_losses(labels, model_outputs, aux_losses)
        return tf.distribute.get_replica_context().all_reduce("MEAN", loss)


class DrawingTask(elastic_experiment.ElasticTask):
    def build_model(self) -> keras.Model:
        self.generator = tf.random.Generator.from_seed(1)
        return super().build_model()

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        noise = self.generator.normal([])
        return noise + super().build_losses(labels, model_outputs, aux_losses)


@pytest.mark.parametrize(
    ("task_cls", "message"),
    [
        (CountingTask, "my_count.*int32"),
        (ReducingTask, "can't exchange values between replicas"),
        (DrawingTask, "SeedGenerator"),
    ],
)
def test_step_with_replica_dependent_state_or_communication_raises_with_virtual_replicas(
    task_cls: Callable[..., Any], message: str
) -> None:
    params = exp_factory.get_exp_config("tests/elastic")
    trainer = _create_trainer(params, task_cls(params.task))
    with pytest.raises(errors.ConfigValueError, match=message):
        trainer.train(tf.constant(1))


class SizesTask(elastic_experiment.ElasticTask):
    """A task that checks the number of replicas and the batch size in each step."""

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        assert replicas == tf.distribute.get_replica_context().num_replicas_in_sync == 4
        assert labels.shape[0] == 3
        return super().build_losses(labels, model_outputs, aux_losses)


def test_training_step_runs_once_for_each_virtual_replica(
    two_replicas: tf.distribute.Strategy,
) -> None:
    params = exp_factory.get_exp_config("tests/elastic")
    with two_replicas.scope():
        trainer = _create_trainer(params, SizesTask(params.task), evaluate=False)
        trainer.train(tf.constant(1))
    assert two_replicas.num_replicas_in_sync == 2


class NestedLogsTask(elastic_experiment.ElasticTask):
    """A task whose training step returns logs by group."""

    def train_step(self, inputs: Any, model: Any, optimizer: Any, metrics: Any = None) -> Any:
        logs = super().train_step(inputs, model, optimizer, metrics)
        return {**logs, "groups": {"labels": inputs[1], "loss": logs[self.loss]}}


class NestedLogsHook(orbit.GraphHook):
    """A graph hook that keeps the last loss at the top and in the group, and counts the labels."""

    def __init__(self) -> None:
        self.losses = tf.Variable([0.0, 0.0])
        self.num_labels = tf.Variable(0)

    def call(self, logs: Any) -> None:
        groups = logs["groups"]
        self.losses.assign([logs["loss"], groups["loss"]])
        self.num_labels.assign_add(tf.shape(groups["labels"])[0])


def test_nested_logs_of_virtual_replicas_are_merged_like_logs_that_are_not_nested() -> None:
    params = exp_factory.get_exp_config("tests/elastic")
    trainer = _create_trainer(params, NestedLogsTask(params.task), evaluate=False)
    hook = NestedLogsHook()
    trainer.set_graph_hooks([hook])
    trainer.train(tf.constant(1))
    at_the_top, nested = hook.losses.numpy()
    assert at_the_top == nested > 0
    # Two micro-batches of 12 examples, each on four virtual replicas.
    assert hook.num_labels.numpy() == 24


def test_virtual_replicas_that_read_the_same_examples_log_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    params = line_experiment.line_experiment(
        trainer={"virtual_replicas": 2}, runtime={"execution": "graph"}
    )
    trainer = _create_trainer(params, line_experiment.LineTask(params.task), evaluate=False)
    trainer.train(tf.constant(1))
    assert "Two virtual replicas read the same first batch" in caplog.text


class EpochsTask(elastic_experiment.ElasticTask):
    """A task that reshuffles its data in each epoch; each iterator starts an epoch."""

    def build_inputs(
        self, params: Any, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        context = input_context or tf.distribute.InputContext()
        numbers = tf.data.Dataset.range(48)
        numbers = numbers.shard(context.num_input_pipelines, context.input_pipeline_id)
        return numbers.shuffle(48, seed=1, reshuffle_each_iteration=True).repeat().batch(4)


def test_each_virtual_replica_reads_the_batches_of_its_input_pipeline() -> None:
    params = exp_factory.get_exp_config("tests/elastic")
    trainer = _create_trainer(params, task_factory.get_task(params.task))
    task, data = EpochsTask(params.task), params.task.train_data
    together = itertools.islice(trainer.distribute_dataset(task.build_inputs, data), 5)
    contexts = [tf.distribute.InputContext(4, index, 4) for index in range(4)]
    alone = zip(*(task.build_inputs(data, context).take(5) for context in contexts), strict=True)
    np.testing.assert_array_equal(list(together), list(alone))


class LimitsTask(elastic_experiment.ElasticTask):
    """A task with a running minimum, and a limit that its steps write but do not change."""

    def build_model(self) -> keras.Model:
        self.smallest, self.limit = (tf.Variable(np.inf, trainable=False) for _ in range(2))
        return super().build_model()

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        self.smallest.assign(tf.minimum(self.smallest, tf.reduce_min(model_outputs)))
        self.limit.assign(self.limit.read_value())
        return super().build_losses(labels, model_outputs, aux_losses)


def test_variable_initialized_to_infinity_does_not_become_nan_with_virtual_replicas() -> None:
    params = exp_factory.get_exp_config("tests/elastic")
    task = LimitsTask(params.task)
    _create_trainer(params, task, evaluate=False).train(tf.constant(1))
    assert np.isfinite(task.smallest.numpy())
    assert np.isinf(task.limit.numpy())


class IncompleteTask(line_experiment.LineTask):
    """A task that alternates micro-batches of 4 and of fewer examples, divided among pipelines."""

    fewer = 2

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        parts = input_context.num_input_pipelines if input_context else 1
        part = input_context.input_pipeline_id if input_context else 0
        x = tf.random.stateless_normal((8, 2), (1, 2))

        def rows_of(number: tf.Tensor) -> Any:
            size = tf.where(number % 2 == 0, 4, self.fewer)
            own = x[4 * (number % 2) :][:size][part::parts]
            return own, 3.0 * own[:, :1] + 1.0

        return tf.data.Dataset.range(2).map(rows_of).repeat()


class MostlyEmptyTask(IncompleteTask):
    """A task whose smaller micro-batches leave one pipeline without examples."""

    fewer = 1


@pytest.mark.parametrize("task_cls", [IncompleteTask, MostlyEmptyTask])
def test_virtual_replicas_weight_incomplete_batches_by_their_number_of_examples(
    task_cls: type[IncompleteTask],
) -> None:
    results = []
    for count in (0, 2):
        params = line_experiment.line_experiment(
            task={"train_data": {"global_batch_size": 8}},
            trainer={"grad_accum_steps": 2, "virtual_replicas": count},
            runtime={"execution": "graph"},
        )
        trainer = _create_trainer(params, task_cls(params.task), evaluate=False)
        loss = trainer.train(tf.constant(1))["training_loss"]
        results.append((float(loss), trainer.model.get_weights()[0]))
    (loss, weights), (virtual_loss, virtual_weights) = results
    rounding.assert_close(virtual_loss, loss, roundings=2 * 12)
    if task_cls is IncompleteTask:
        # In the other task, the mean includes pipelines without examples, as on real replicas.
        rounding.assert_close(virtual_weights, weights, roundings=2 * 12)


def test_auto_execution_with_virtual_replicas_chooses_graph_without_a_benchmark(
    tmp_path: pathlib.Path,
) -> None:
    params = exp_factory.get_exp_config("tests/elastic")
    params.override({"runtime": {"execution": "auto"}})
    trainer = _create_trainer(params, task_factory.get_task(params.task))
    record = auto.choose(trainer, 1000, str(tmp_path), evaluates=True)
    assert (record.execution, record.was_compared) == ("graph", False)
