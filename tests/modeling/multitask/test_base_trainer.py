import pathlib
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from official_lite import orbit
from official_lite.common import errors
from official_lite.modeling import optimization
from official_lite.modeling.multitask import base_trainer, multitask
from tests import rounding


class NoisyModel(keras.Model):
    """Keeps its layers where TensorFlow does not look, and draws random numbers."""

    def __init__(self, shared: keras.layers.Layer) -> None:
        super().__init__()
        self.blocks = [shared, keras.layers.Dropout(0.5, seed=3)]

    def call(self, x: Any, training: bool = False) -> Any:
        for block in self.blocks:
            x = block(x, training=training) if isinstance(block, keras.layers.Dropout) else block(x)
        return x


@pytest.fixture
def make_trainer(tasks: Any, make_model: Callable[..., Any]) -> Callable[..., Any]:
    def make(
        optimizer: Any = None, model: Any = None, **kwargs: Any
    ) -> base_trainer.MultiTaskBaseTrainer:
        return base_trainer.MultiTaskBaseTrainer(
            multitask.MultiTask(tasks),
            model or make_model(),
            optimizer or keras.optimizers.SGD(0.1),
            **kwargs,
        )

    return make


def _train(trainer: Any, steps: int) -> dict[str, Any]:
    return trainer.train(tf.constant(steps))


def test_weight_goes_to_the_mean_of_the_targets(make_trainer: Callable[..., Any]) -> None:
    trainer = make_trainer()
    _train(trainer, 1)
    # 1 - 0.1 * (2 * 1 + 2 * (1 - 3)), and then towards 1.5 by a factor of 0.6 a step.
    assert trainer.model.weight == pytest.approx(1.2)
    _train(trainer, 20)
    expected = 1.5 - 0.3 * 0.6**20
    assert trainer.model.weight == pytest.approx(expected, rel=rounding.tolerance(roundings=20))
    assert trainer.global_step.numpy() == 21


def test_report_is_nested_and_has_the_total(make_trainer: Callable[..., Any]) -> None:
    results = _train(make_trainer(), 1)
    assert float(results["foo"]["training_loss"]) == pytest.approx(1.0)
    assert float(results["bar"]["mae"]) == pytest.approx(2.0)
    assert float(results["total_loss"]["training_loss"]) == pytest.approx(5.0)
    assert float(results["training_loss"]) == pytest.approx(5.0)
    assert float(results["learning_rate"]) == pytest.approx(0.1)


def test_report_starts_anew(make_trainer: Callable[..., Any]) -> None:
    trainer = make_trainer()
    _train(trainer, 30)
    assert float(_train(trainer, 1)["training_loss"]) == pytest.approx(2 * 1.5**2)


def test_two_replicas_make_the_same_update(
    make_trainer: Callable[..., Any], two_replicas: tf.distribute.Strategy
) -> None:
    with two_replicas.scope():
        trainer = make_trainer()
        _train(trainer, 1)
    assert trainer.model.weight == pytest.approx(1.2)
    assert trainer.global_step.numpy() == 1


def test_resumed_run_equals_an_unbroken_one(
    make_trainer: Callable[..., Any], make_model: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    def noisy() -> Any:
        model = make_model()
        model._sub_tasks = {name: NoisyModel(model.shared) for name in ("foo", "bar")}
        return make_trainer(keras.optimizers.Adam(0.1), model)

    unbroken, first, resumed = noisy(), noisy(), noisy()
    _train(unbroken, 7)
    _train(first, 3)
    resumed.checkpoint.restore(first.checkpoint.save(str(tmp_path / "ckpt")))
    _train(resumed, 4)
    assert resumed.global_step.numpy() == 7
    assert resumed.model.weight == unbroken.model.weight


def test_averages_follow_weights_that_are_loaded(make_trainer: Callable[..., Any]) -> None:
    average = optimization.ExponentialMovingAverage(keras.optimizers.SGD(0.1))
    trainer = make_trainer(average)
    trainer.model.initialize = lambda: trainer.model.shared.kernel.assign([[7.0]])
    trainer.initialize()
    average.swap_weights()
    assert trainer.model.weight == 7.0


def test_options_and_datasets_are_taken(make_trainer: Callable[..., Any], tasks: Any) -> None:
    options = orbit.StandardTrainerOptions(use_tf_function=False, use_tf_while_loop=False)
    batch = (tf.ones([2, 1]), tf.ones([2, 1]))
    data = {name: tf.data.Dataset.from_tensors(batch).repeat() for name in tasks}
    trainer = make_trainer(trainer_options=options, train_datasets=data)
    _train(trainer, 2)
    # Both targets are what the weight is.
    assert trainer.model.weight == 1.0


def test_task_without_a_model_is_an_error(tasks: Any, make_model: Callable[..., Any]) -> None:
    multi_task = multitask.MultiTask({"fooo": tasks["foo"]})
    with pytest.raises(errors.UnknownKeyError, match="Did you mean `foo`"):
        base_trainer.MultiTaskBaseTrainer(multi_task, make_model(), keras.optimizers.SGD())


def test_one_model_for_a_joint_step_is_refused(make_trainer: Callable[..., Any]) -> None:
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    with pytest.raises(errors.ConfigTypeError, match="got a Sequential; expected a `MultiTaskBase"):
        make_trainer(model=model)


def test_training_losses_are_means_over_examples(
    make_trainer: Callable[..., Any], tasks: Any
) -> None:
    for task, last in ((tasks["foo"], 4.0), (tasks["bar"], 7.0)):
        labels = tf.constant([[1.0], [1.0], [last]])
        data = tf.data.Dataset.from_tensor_slices((tf.ones([3, 1]), labels)).batch(2)
        task.build_inputs = lambda params, data=data: data
    results = _train(make_trainer(keras.optimizers.SGD(0.0)), 2)
    # The weight is 1, so of three examples the last one has a loss.
    assert float(results["foo"]["training_loss"]) == pytest.approx(9 / 3)
    assert float(results["bar"]["training_loss"]) == pytest.approx(36 / 3)
    assert float(results["training_loss"]) == pytest.approx((9 + 36) / 3)
