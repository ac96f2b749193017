import contextlib
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from official_lite import orbit
from official_lite.common import errors
from official_lite.core import base_task, best_checkpoint
from official_lite.modeling import optimization
from official_lite.modeling.multitask import base_model, base_trainer, evaluator, multitask
from official_lite.modeling.optimization import ema_optimizer
from tests import rounding
from tests.modeling.multitask.conftest import (
    CompiledPull,
    PullModel,
    PullTask,
    pull_config,
    shared_layer,
)

ALL = -1


@pytest.fixture
def make_evaluator(tasks: Any, make_model: Callable[..., Any]) -> Callable[..., Any]:
    def make(model: Any = None, **kwargs: Any) -> evaluator.MultiTaskEvaluator:
        return evaluator.MultiTaskEvaluator(tasks.values(), model or make_model(), **kwargs)

    return make


class _Averaged:
    """An evaluator whose model weight is 1 and whose averaged weight is 5."""

    def __init__(self, make_evaluator: Callable[..., Any], **kwargs: Any) -> None:
        self.average = optimization.ExponentialMovingAverage(keras.optimizers.SGD())
        self.evaluator = make_evaluator(optimizer=self.average, **kwargs)
        kernel = self.evaluator.model.shared.kernel
        kernel.assign([[5.0]])
        ema_optimizer.follow_weights(self.average)
        kernel.assign([[1.0]])


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_evaluation_results_are_nested_by_task_and_eval_steps_are_set_per_task(
    make_evaluator: Callable[..., Any], two_replicas: tf.distribute.Strategy, num_replicas: int
) -> None:
    with two_replicas.scope() if num_replicas == 2 else contextlib.nullcontext():
        evaluating = make_evaluator(eval_steps={"foo": 1, "bar": None})
        results = evaluating.evaluate(tf.constant(2))
    assert float(results["foo"]["validation_loss"]) == 1.0
    assert float(results["bar"]["validation_loss"]) == 4.0
    assert float(results["bar"]["mae"]) == 2.0
    assert evaluating.steps_run == 1 + 2
    assert evaluating.validation_metrics["foo"][0].name == "mae"


def test_multitask_evaluation_weights_a_partial_batch_by_its_size(
    tasks: Any, make_evaluator: Callable[..., Any]
) -> None:
    labels = tf.constant([[1.0], [1.0], [1.0], [4.0]])
    data = tf.data.Dataset.from_tensor_slices((tf.ones([4, 1]), labels)).batch(3)
    tasks["foo"].build_inputs = lambda params: data
    results = make_evaluator().evaluate(ALL)
    assert float(results["foo"]["validation_loss"]) == pytest.approx((0 + 0 + 0 + 9) / 4)


def test_averaged_weights_are_evaluated_and_trained_weights_restored_even_after_an_error(
    tasks: Any, make_evaluator: Callable[..., Any]
) -> None:
    averaged = _Averaged(make_evaluator)
    results = averaged.evaluator.evaluate(ALL)
    assert float(results["foo"]["validation_loss"]) == 25.0
    assert averaged.evaluator.model.weight == 1.0

    def fail(*_: Any) -> None:
        raise RuntimeError("in the middle")

    tasks["bar"].aggregate_logs = fail
    with pytest.raises(RuntimeError, match="in the middle"):
        averaged.evaluator.evaluate(ALL)
    assert averaged.evaluator.model.weight == 1.0


def test_best_checkpoint_of_a_multitask_evaluator_contains_the_averaged_weights(
    make_evaluator: Callable[..., Any], make_model: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    exporter = best_checkpoint.BestCheckpointExporter(str(tmp_path), "foo|validation_loss", "lower")
    _Averaged(make_evaluator, checkpoint_exporter=exporter).evaluator.evaluate(ALL)
    assert exporter.best_metric_value == 25.0
    model = make_model()
    model.shared.build((None, 1))
    tf.train.Checkpoint(model=model).restore(exporter.best_ckpt_path).expect_partial()
    assert model.weight == 5.0
    # An evaluator that also restores the averages evaluates them.
    evaluating = _Averaged(make_evaluator).evaluator
    evaluating.checkpoint.restore(exporter.best_ckpt_path)
    assert float(evaluating.evaluate(ALL)["foo"]["validation_loss"]) == 25.0


def test_evaluator_initialize_calls_model_initialize_and_the_init_fn(
    make_evaluator: Callable[..., Any],
) -> None:
    evaluating = make_evaluator()
    calls: list[str] = []
    evaluating.model.initialize = lambda: calls.append("model")
    evaluating.initialize()
    make_evaluator(init_fn=lambda: calls.append("function")).initialize()
    assert calls == ["model", "function"]


def test_evaluating_a_task_with_an_empty_dataset_raises_data_error(
    tasks: Any, make_evaluator: Callable[..., Any]
) -> None:
    data = tf.data.Dataset.from_tensor_slices((tf.ones([1, 1]), tf.ones([1, 1])))
    tasks["bar"].build_inputs = lambda params: data.batch(2, drop_remainder=True)
    with pytest.raises(errors.DataError, match="empty"):
        make_evaluator().evaluate(ALL)


def test_evaluating_all_data_of_a_task_whose_data_repeat_forever_is_refused(
    tasks: Any, make_evaluator: Callable[..., Any]
) -> None:
    data = tf.data.Dataset.from_tensors((tf.ones([2, 1]), tf.ones([2, 1]))).repeat()
    tasks["bar"].build_inputs = lambda params: data
    with pytest.raises(errors.ConfigValueError, match="task 'bar' repeat forever"):
        make_evaluator().evaluate(ALL)
    results = make_evaluator(eval_steps={"bar": 1}).evaluate(ALL)
    assert float(results["bar"]["validation_loss"]) == 0.0


def test_best_checkpoint_follows_a_rollback_and_ignores_standalone_evaluations(
    make_evaluator: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    exporter = best_checkpoint.BestCheckpointExporter(str(tmp_path), "foo|validation_loss", "lower")
    evaluator = make_evaluator(checkpoint_exporter=exporter)
    evaluator.before_training(0)
    with evaluator.evaluating_apart():
        evaluator.evaluate(ALL)
    assert list(tmp_path.glob("*.index")) == []
    evaluator.evaluate(ALL)
    evaluator.before_checkpoint()
    evaluator.after_checkpoint(0)
    first = exporter.best_metric_value
    exporter.maybe_export_checkpoint(evaluator.checkpoint, {"foo": {"validation_loss": -1.0}}, 5)
    assert exporter.best_metric_value == -1.0
    evaluator.before_training(4)
    assert exporter.best_metric_value == first
    assert [path.stem for path in tmp_path.glob("*.index")] == ["best_ckpt-0"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("replicas", [1, 2])
def test_compiled_sub_models_train_and_evaluate_like_tasks_that_define_the_loss(
    tasks: Any, make_model: Callable[..., Any], two_replicas: Any, replicas: int
) -> None:
    results = []
    for task_cls in (PullTask, CompiledPull):
        with two_replicas.scope() if replicas == 2 else contextlib.nullcontext():
            own = {name: task_cls(task.task_config, name=name) for name, task in tasks.items()}
            model = make_model(l2=0.1, added_loss=0.2)
            if task_cls is CompiledPull:
                for sub_model in model.sub_tasks.values():
                    sub_model.compile(loss="mse", metrics=["mae"])
            optimizer = keras.optimizers.SGD(0.1)
            trainer = base_trainer.MultiTaskBaseTrainer(multitask.MultiTask(own), model, optimizer)
            judge = evaluator.MultiTaskEvaluator(own.values(), model)
            before = judge.evaluate(tf.constant(3))
            trained = trainer.train(tf.constant(2))
            del trained["learning_rate"]
        flat = {**_flat(before, "before"), **_flat(trained, "trained")}
        results.append({**flat, "weight": float(model.shared.get_weights()[0][0, 0])})
    # The roundings of two updates, each with penalties and with means over two examples.
    assert results[1] == pytest.approx(results[0], rel=rounding.tolerance(roundings=2 * 2 * 4))
    assert results[0]["before/bar/mae"] == pytest.approx(2.0)


def _flat(values: dict[str, Any], prefix: str) -> dict[str, float]:
    flat: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}/{name}")
        else:
            flat[f"{prefix}/{name}"] = float(value)
    return flat


class CompiledModels(base_model.MultiTaskBaseModel):
    """Two models that output 1 at first and have compiled metrics."""

    def _instantiate_sub_tasks(self) -> dict[str, keras.Model]:
        models = {"foo": PullModel(shared_layer()), "bar": PullModel(shared_layer())}
        for model in models.values():
            model.compile(loss="mse", metrics=["mae"])
        return models


class SplitTask(PullTask):
    """A task whose validation labels exceed the training labels by 3; sample weights are None."""

    build_losses = base_task.Task.build_losses

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return []

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        distance = 0.0 if params.is_training else 3.0
        data = super().build_inputs(params, input_context)
        return data.map(lambda x, y: (x, y + distance, None))


@pytest.mark.sample(1)
@pytest.mark.parametrize("execution", ["graph", "xla", "xla_loop"])
def test_evaluation_by_a_hook_between_two_reports_keeps_multitask_training_metrics(
    execution: str,
) -> None:
    def create(target: float, name: str) -> SplitTask:
        config = pull_config(target)
        config.train_data.is_training = True
        config.validation_data = config.validation_data.replace(is_training=False)
        return SplitTask(config, name=name)

    tasks = {"foo": create(0.0, "foo"), "bar": create(3.0, "bar")}
    model = CompiledModels()
    trainer = base_trainer.MultiTaskBaseTrainer(
        multitask.MultiTask(tasks), model, keras.optimizers.SGD(0.0), execution=execution
    )
    controller = orbit.Controller(
        global_step=trainer.global_step,
        trainer=trainer,
        evaluator=evaluator.MultiTaskEvaluator(tasks.values(), model, trainer.global_step),
        steps_per_loop=4,
        hooks=[
            orbit.hooks.LambdaHook(
                after_step=lambda hook: hook.controller.evaluate(), every_n_steps=3
            )
        ],
    )
    controller.train(8)
    reported = {name: float(controller.train_logs[name]["mae"]) for name in tasks}
    assert reported == {"foo": 1.0, "bar": 2.0}
    assert {name: float(controller.eval_logs[name]["mae"]) for name in tasks} == {
        "foo": 2.0,
        "bar": 5.0,
    }
