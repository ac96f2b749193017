"""Replicas agree: the checkpoints of a run on two replicas evaluate to the reported metrics."""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import logging

from official_lite.common import errors
from official_lite.core import train_lib
from official_lite.core.input_reader import InputReader
from official_lite.modeling.multitask import (
    base_model,
    base_trainer,
    evaluator,
    interleaving_trainer,
    multitask,
    task_sampler,
)
from tests import rounding
from tests.line_experiment import NUM_EXAMPLES, LineTask


class Center(keras.layers.Layer):
    """A layer that subtracts a running mean of its inputs and counts the positive inputs."""

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False)
        self.mask = self.add_weight(shape=(3,), initializer="ones", trainable=False, name="mask")
        self.steps = self.add_weight(
            shape=(), initializer="zeros", dtype="int32", trainable=False, name="steps"
        )
        self.seen = self.add_weight(
            shape=(), initializer="zeros", dtype="int32", trainable=False, name="seen"
        )

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * keras.ops.mean(x, 0))
            self.steps.assign_add(1)
            self.seen.assign_add(tf.math.count_nonzero(x > 0, dtype=tf.int32))
        return x - self.mean


class Largest(keras.metrics.Metric):
    """A metric that creates its variable at its first update, as user code may do."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        if not self.variables:
            self.total = self.add_weight(shape=(y_true.shape[-1],), initializer="zeros")
        self.total.assign_add(tf.reduce_sum(tf.abs(y_true), 0))

    def result(self) -> Any:
        return tf.reduce_max(self.total)


class CenteredTask(LineTask):
    """A task that also keeps a running mean of the loss in a variable of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.baseline = tf.Variable(0.0)

    def build_model(self) -> keras.Model:
        layers = [Center(), keras.layers.BatchNormalization(momentum=0.9), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((2,)), *layers])
        model.compile(metrics=[keras.metrics.R2Score(name="compiled_r2")])
        return model

    def train_step(self, inputs: Any, model: Any, optimizer: Any, metrics: Any = None) -> Any:
        logs = super().train_step(inputs, model, optimizer, metrics)
        self.baseline.assign(0.5 * self.baseline + 0.5 * logs[self.loss])
        return logs

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return [keras.metrics.R2Score(name="r2"), Largest(name="largest")]


@pytest.mark.parametrize(
    ("execution", "average"),
    [
        ("graph", None),
        pytest.param("xla", None, marks=pytest.mark.slow),
        ("graph", {"average_decay": 0.5, "trainable_weights_only": False}),
    ],
)
def test_checkpoint_of_a_two_replica_run_evaluates_to_the_reported_metrics(
    experiment: Callable[..., Any],
    two_replicas: Any,
    tmp_path: Any,
    execution: str,
    average: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(logging, "warning", lambda text, *args: warnings.append(text % args))
    params = experiment(
        runtime={"execution": execution}, trainer={"optimizer_config": {"ema": average}}
    )

    def run(mode: str) -> Any:
        with two_replicas.scope():
            task = CenteredTask(params.task)
        ran = train_lib.run_experiment(
            two_replicas, task, mode, params, str(tmp_path), run_post_eval=True
        )
        return *ran, task

    model, reported, task = run("train_and_eval")
    _, evaluated, _ = run("eval")
    assert {"r2", "largest", "compiled_r2", "validation_loss"} <= reported.keys()
    for name in evaluated:
        assert float(reported[name]) == float(evaluated[name])
    center = model.layers[0]
    for variable in (center.mean.value, model.layers[1].moving_variance.value, task.baseline):
        first, second = (copy.numpy() for copy in variable.values)
        np.testing.assert_array_equal(first, second)
        assert np.any(first)
    # Integers are not averaged over replicas, so a warning names those that differ.
    assert [center.seen.path in text for text in warnings if "Each replica has" in text] == [True]
    assert not any(center.steps.path in text for text in warnings)


@pytest.mark.parametrize("draws", [False, True])
def test_evaluation_after_multitask_training_on_two_replicas_matches_the_reported_metrics(
    experiment: Callable[..., Any], two_replicas: Any, draws: bool
) -> None:
    config = experiment().task
    with two_replicas.scope():
        tasks = multitask.MultiTask([CenteredTask(config, name=name) for name in ("a", "b")])
        models = {name: task.build_model() for name, task in tasks.tasks.items()}

        class Models(base_model.MultiTaskBaseModel):
            def _instantiate_sub_tasks(self) -> dict[str, keras.Model]:
                return models

        parts = (tasks, Models(), keras.optimizers.SGD(0.1))
        trainer = base_trainer.MultiTaskBaseTrainer(*parts)
        if draws:
            sampler = task_sampler.UniformTaskSampler(tasks.task_weights)
            trainer = interleaving_trainer.MultiTaskInterleavingTrainer(*parts, sampler)
        evaluating = evaluator.MultiTaskEvaluator(tasks.tasks.values(), trainer.model)
    logs = trainer.train(tf.constant(6))
    results = evaluating.evaluate(tf.constant(-1))
    for name, model in models.items():
        assert {"r2", "largest", "compiled_r2"} <= logs[name].keys() & results[name].keys()
        for variable in (model.layers[0].mean, model.layers[1].moving_mean):
            first, second = (copy.numpy() for copy in variable.value.values)
            np.testing.assert_array_equal(first, second)
            assert np.any(first)


class _Ignores(LineTask):
    """A task that ignores the input context and creates global batches, like those for `fit`."""

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        return super().build_inputs(params)


class _TakesAnything(LineTask):
    def build_inputs(self, params: Any, *args: Any, **kwargs: Any) -> tf.data.Dataset:
        return super().build_inputs(params, *args, **kwargs)


@pytest.mark.parametrize("task_cls", [LineTask, _Ignores, _TakesAnything])
def test_task_that_gives_each_replica_a_whole_global_batch_logs_a_warning(
    experiment: Callable[..., Any],
    make_trainer: Callable[..., Any],
    two_replicas: Any,
    task_cls: type[LineTask],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(logging, "warning", lambda text, *args: warnings.append(text % args))
    # Each replica has only one validation batch. It is also the last one, which may be small.
    params = experiment(task={"validation_data": {"global_batch_size": 4 * NUM_EXAMPLES}})
    with two_replicas.scope():
        trainer = make_trainer(params, task_cls=task_cls)
        trainer.train(tf.constant(3))
        trainer.evaluate(tf.constant(-1))
    found = [text for text in warnings if "has 8 examples" in text]
    assert len(found) == (task_cls is _Ignores)
    assert not any("has 32 examples" in text for text in warnings)


def test_misnamed_input_context_parameter_is_refused(
    experiment: Callable[..., Any], make_trainer: Callable[..., Any]
) -> None:
    class Renamed(LineTask):
        def build_inputs(self, params: Any, context: Any = None) -> tf.data.Dataset:
            return super().build_inputs(params, context)

    with pytest.raises(errors.ConfigTypeError, match=r"`context`.*expected `input_context`"):
        make_trainer(experiment(), task_cls=Renamed)
    data = experiment().task.train_data.replace(input_path="examples")
    with pytest.raises(errors.ConfigTypeError, match="`InputReader` does not pass"):
        InputReader(data, parser_fn=lambda x, input_context=None: x)


class _UnevenTask(LineTask):
    """A task that reads batches of 8 and 4 examples in turn, or all 12 examples in one batch."""

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        x = tf.random.stateless_normal((12, 2), (1, 2))
        data = tf.data.Dataset.from_tensor_slices((x, 3.0 * x[:, :1] + 1.0))
        return data.batch(8 if params.global_batch_size == 8 else 16)


@pytest.mark.parametrize("execution", ["eager", "graph", "xla"])
def test_micro_batches_are_weighted_by_their_number_of_examples(
    experiment: Callable[..., Any], make_trainer: Callable[..., Any], execution: str
) -> None:
    def train(parts: int) -> tuple[Any, float]:
        trainer = make_trainer(
            experiment(
                task={"train_data": {"global_batch_size": 16}},
                trainer={"grad_accum_steps": parts},
                runtime={"execution": execution},
            ),
            task_cls=_UnevenTask,
            evaluate=False,
        )
        loss = trainer.train(tf.constant(2))["training_loss"]
        return trainer.model.get_weights()[0], float(loss)

    (whole, whole_loss), (parts, loss) = train(1), train(2)
    rounding.assert_close(parts, whole, roundings=2 * 12)
    rounding.assert_close(loss, whole_loss, roundings=2 * 12)


class _TokenTask(LineTask):
    """A task with a token loss that is computed in one of the two documented ways."""

    over_all = False

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        x = tf.random.stateless_normal((8, 6, 2), (1, 2))
        # The halves of the batch have different numbers of tokens.
        mask = tf.sequence_mask([1, 1, 1, 1, 6, 6, 6, 6], 6, tf.float32)
        size = input_context.get_per_replica_batch_size(params.global_batch_size)
        data = tf.data.Dataset.from_tensor_slices((x, {"y": x[..., :1] + 1.0, "mask": mask}))
        return data.batch(size)

    def build_model(self) -> keras.Model:
        return keras.Sequential([keras.Input((6, 2)), keras.layers.Dense(1)])

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        per_token = tf.square(model_outputs - labels["y"])[..., 0] * labels["mask"]
        if not self.over_all:
            return tf.reduce_mean(per_token)
        replica = tf.distribute.get_replica_context()
        count = replica.all_reduce(tf.distribute.ReduceOp.MEAN, tf.reduce_sum(labels["mask"]))
        return tf.reduce_sum(per_token) / count

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return []


class _OverAllTask(_TokenTask):
    over_all = True


@pytest.mark.parametrize(
    ("task_cls", "parts"), [(_TokenTask, 1), (_TokenTask, 2), (_OverAllTask, 1)]
)
def test_documented_token_losses_do_not_depend_on_replicas_or_micro_batches(
    experiment: Callable[..., Any],
    make_trainer: Callable[..., Any],
    two_replicas: Any,
    task_cls: type[LineTask],
    parts: int,
) -> None:
    results = []
    for strategy, count in (
        (contextlib.nullcontext(), 1),
        (two_replicas.scope(), 1),
        (None, parts),
    ):
        with strategy or contextlib.nullcontext():
            params = experiment(trainer={"grad_accum_steps": count})
            trainer = make_trainer(params, task_cls=task_cls, evaluate=False)
            trainer.train(tf.constant(1))
        results.append(trainer.model.get_weights()[0])
    for result in results[1:]:
        rounding.assert_close(result, results[0], roundings=8 * 6)
