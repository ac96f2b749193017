import pathlib
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from official_lite import orbit
from official_lite.common import errors
from official_lite.core import model_building
from official_lite.modeling import optimization
from official_lite.modeling.multitask import (
    base_trainer,
    interleaving_trainer,
    multitask,
    task_sampler,
    train_lib,
)
from tests import rounding
from tests.modeling.multitask.conftest import CompiledPull, PullModel, shared_layer


class NoisyModel(keras.Model):
    """A model with layers in a list, which TensorFlow does not track, and with random numbers."""

    def __init__(self, shared: keras.layers.Layer) -> None:
        super().__init__()
        self.blocks = [shared, keras.layers.Dropout(0.5, seed=3)]

    def call(self, x: Any, training: bool = False) -> Any:
        for block in self.blocks:
            x = block(x, training=training) if isinstance(block, keras.layers.Dropout) else block(x)
        return x


@pytest.fixture
def make_trainer(tasks: Any, make_model: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that builds a `joint` or `interleaving` trainer."""

    def make(
        kind: str, optimizer: Any = None, model: Any = None, weights: Any = None, **kwargs: Any
    ) -> Any:
        multi_task = multitask.MultiTask(tasks, task_weights=weights)
        if kind == "interleaving":
            sampler = task_sampler.ProportionalTaskSampler(multi_task.task_weights)
            kwargs["task_sampler"] = sampler
        return train_lib.TRAINERS[kind](
            multi_task=multi_task,
            multi_task_model=model or make_model(),
            optimizer=optimizer or keras.optimizers.SGD(0.1),
            **kwargs,
        )

    return make


KINDS = pytest.mark.parametrize("kind", ["joint", "interleaving"])


def _counts(trainer: Any) -> list[int]:
    return [int(trainer.task_step_counter(name).numpy()) for name in ("foo", "bar")]


def _train(trainer: Any, steps: int) -> dict[str, Any]:
    return trainer.train(tf.constant(steps))


def test_joint_training_moves_the_weight_to_the_mean_of_the_targets(
    make_trainer: Callable[..., Any],
) -> None:
    trainer = make_trainer("joint")
    _train(trainer, 1)
    # The weight becomes 1 - 0.1 * (2 * 1 + 2 * (1 - 3)). Each further step multiplies its distance
    # to 1.5 by 0.6.
    assert trainer.model.weight == pytest.approx(1.2)
    _train(trainer, 20)
    expected = 1.5 - 0.3 * 0.6**20
    assert trainer.model.weight == pytest.approx(expected, rel=rounding.tolerance(roundings=20))
    assert trainer.global_step.numpy() == 21


def test_multitask_metrics_are_nested_by_task_and_reset_in_each_interval(
    make_trainer: Callable[..., Any],
) -> None:
    trainer = make_trainer("joint")
    results = _train(trainer, 1)
    assert float(results["foo"]["training_loss"]) == pytest.approx(1.0)
    assert float(results["bar"]["mae"]) == pytest.approx(2.0)
    assert float(results["total_loss"]["training_loss"]) == pytest.approx(5.0)
    assert float(results["training_loss"]) == pytest.approx(5.0)
    assert float(results["learning_rate"]) == pytest.approx(0.1)
    _train(trainer, 30)
    assert float(_train(trainer, 1)["training_loss"]) == pytest.approx(2 * 1.5**2)


@KINDS
def test_two_replicas_train_to_the_same_weights_as_one_replica(
    make_trainer: Callable[..., Any], two_replicas: tf.distribute.Strategy, kind: str
) -> None:
    alone = make_trainer(kind)
    _train(alone, 6)
    with two_replicas.scope():
        trainer = make_trainer(kind)
        _train(trainer, 6)
    # Each of the six updates has about four roundings.
    rounding.assert_close(trainer.model.weight, alone.model.weight, roundings=6 * 4)
    assert trainer.global_step.numpy() == 6
    if kind == "interleaving":
        assert _counts(trainer) == _counts(alone)


@KINDS
def test_resumed_multitask_trainer_ends_with_the_weights_of_an_uninterrupted_trainer(
    make_trainer: Callable[..., Any],
    make_model: Callable[..., Any],
    tmp_path: pathlib.Path,
    kind: str,
) -> None:
    def noisy() -> Any:
        model = make_model()
        model._sub_tasks = {name: NoisyModel(model.shared) for name in ("foo", "bar")}
        return make_trainer(kind, keras.optimizers.Adam(0.1), model)

    uninterrupted, first, resumed = noisy(), noisy(), noisy()
    _train(uninterrupted, 7)
    _train(first, 3)
    resumed.checkpoint.restore(first.checkpoint.save(str(tmp_path / "ckpt")))
    _train(resumed, 4)
    assert resumed.global_step.numpy() == 7
    assert resumed.model.weight == uninterrupted.model.weight
    if kind == "interleaving":
        assert _counts(resumed) == _counts(uninterrupted)


def test_joint_trainer_on_two_replicas_warns_once_that_recurrent_states_are_not_saved(
    make_trainer: Callable[..., Any],
    make_model: Callable[..., Any],
    two_replicas: tf.distribute.Strategy,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def recurrent() -> keras.Model:
        inputs = keras.Input((1,), batch_size=1)
        steps = keras.layers.Reshape((1, 1))(inputs)
        return keras.Model(inputs, keras.layers.SimpleRNN(1, stateful=True)(steps))

    with two_replicas.scope():
        model = make_model()
        model._sub_tasks = {name: recurrent() for name in ("foo", "bar")}
        make_trainer("joint", model=model)
    assert caplog.text.count("In a resumed run, these states start at zero") == 1


def test_joint_trainer_counts_the_skipped_batches_of_all_tasks(
    make_trainer: Callable[..., Any],
) -> None:
    trainer = make_trainer("joint")
    trainer.skip_batches(3)
    assert trainer.num_batches_skipped == trainer.num_batches_read == 2 * 3


def test_weight_averages_start_at_the_weights_set_by_initialize(
    make_trainer: Callable[..., Any],
) -> None:
    average = optimization.ExponentialMovingAverage(keras.optimizers.SGD(0.1))
    trainer = make_trainer("joint", average)
    trainer.model.initialize = lambda: trainer.model.shared.kernel.assign([[7.0]])
    trainer.initialize()
    average.swap_weights()
    assert trainer.model.weight == 7.0


def test_multitask_trainer_accepts_trainer_options_and_uses_the_datasets_passed_to_it(
    make_trainer: Callable[..., Any], tasks: Any
) -> None:
    options = orbit.StandardTrainerOptions(use_tf_function=False, use_tf_while_loop=False)
    batch = (tf.ones([2, 1]), tf.ones([2, 1]))
    data = {name: tf.data.Dataset.from_tensors(batch).repeat() for name in tasks}
    trainer = make_trainer("joint", trainer_options=options, train_datasets=data)
    _train(trainer, 2)
    # The labels of both tasks equal the initial output, so that the gradients are zero.
    assert trainer.model.weight == 1.0


def test_mismatched_tasks_models_and_samplers_are_refused(
    tasks: Any, make_model: Callable[..., Any], make_trainer: Callable[..., Any]
) -> None:
    sgd = keras.optimizers.SGD()
    with pytest.raises(errors.UnknownKeyError, match="Did you mean `foo`"):
        base_trainer.MultiTaskBaseTrainer(
            multitask.MultiTask({"fooo": tasks["foo"]}), make_model(), sgd
        )
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    with pytest.raises(errors.ConfigTypeError, match="MultiTaskBaseModel"):
        make_trainer("joint", model=model)
    sampler = task_sampler.UniformTaskSampler({"bar": 1.0, "foo": 1.0})
    with pytest.raises(errors.ConfigValueError, match="sampler"):
        interleaving_trainer.MultiTaskInterleavingTrainer(
            multitask.MultiTask(tasks), make_model(), sgd, sampler
        )


def test_joint_training_losses_are_means_over_examples(
    make_trainer: Callable[..., Any], tasks: Any
) -> None:
    for task, last in ((tasks["foo"], 4.0), (tasks["bar"], 7.0)):
        labels = tf.constant([[1.0], [1.0], [last]])
        data = tf.data.Dataset.from_tensor_slices((tf.ones([3, 1]), labels)).batch(2)
        task.build_inputs = lambda params, data=data: data
    results = _train(make_trainer("joint", keras.optimizers.SGD(0.0)), 2)
    # The weight is 1, so only the last of the three examples has a loss.
    assert float(results["foo"]["training_loss"]) == pytest.approx(9 / 3)
    assert float(results["bar"]["training_loss"]) == pytest.approx(36 / 3)
    assert float(results["training_loss"]) == pytest.approx((9 + 36) / 3)


def test_each_interleaved_step_trains_one_task_drawn_by_weight(
    make_trainer: Callable[..., Any],
) -> None:
    trainer = make_trainer("interleaving", keras.optimizers.Adam(0.1), weights={"foo": 3.0})
    results = _train(trainer, 400)
    assert sum(_counts(trainer)) == trainer.global_step.numpy() == 400
    # The draws depend only on the step, so the counts are reproducible. Their standard error is 9.
    assert _counts(trainer)[0] == pytest.approx(300, abs=30)
    assert {"foo", "bar"} <= results.keys()
    assert "total_loss" not in results


def test_task_with_a_weight_of_zero_is_never_trained(make_trainer: Callable[..., Any]) -> None:
    foo, bar = 0.0, 1.0
    trainer = make_trainer("interleaving", weights={"foo": foo, "bar": bar})
    results = _train(trainer, 20)
    assert _counts(trainer) == [20 * foo, 20 * bar]
    # A task that is never trained does not report a loss of zero either.
    assert ("foo" in results, "bar" in results) == (foo > 0, bar > 0)


def test_interleaving_training_loss_is_the_mean_over_the_examples_of_all_tasks(
    make_trainer: Callable[..., Any], tasks: Any
) -> None:
    # The first task alternates between batches of two examples and of one, the second between
    # batches of four and of two.
    for task, size, last in ((tasks["foo"], 2, 4.0), (tasks["bar"], 4, 7.0)):
        labels = tf.concat([tf.ones([size, 1]), tf.fill([size // 2, 1], last)], 0)
        data = tf.data.Dataset.from_tensor_slices((tf.ones([len(labels), 1]), labels)).batch(size)
        task.build_inputs = lambda params, data=data: data
        task.task_config.train_data.global_batch_size = size
    trainer = make_trainer("interleaving", keras.optimizers.SGD(0.0))
    results = _train(trainer, 9)
    counts = dict(zip(("foo", "bar"), _counts(trainer), strict=True))
    # The weight is 1, so only the last examples of each pass over the data have a loss.
    losses, examples = [], []
    for name, size, loss in (("foo", 2, 9.0), ("bar", 4, 36.0)):
        passes, rest = divmod(counts[name], 2)
        losses.append(passes * loss * size / 2)
        examples.append(passes * size * 1.5 + rest * size)
        assert float(results[name]["training_loss"]) == pytest.approx(losses[-1] / examples[-1])
    assert float(results["training_loss"]) == pytest.approx(sum(losses) / sum(examples))


def test_one_keras_model_can_be_trained_on_all_tasks(
    make_trainer: Callable[..., Any], tasks: Any
) -> None:
    trainer = make_trainer("interleaving", model=tasks["foo"].build_model())
    _train(trainer, 10)
    assert 0 not in _counts(trainer)


def test_compiled_metric_of_a_model_shared_by_all_tasks_covers_all_examples_and_is_reported_once(
    make_trainer: Callable[..., Any], tasks: Any
) -> None:
    for name, task in tasks.items():
        tasks[name] = CompiledPull(task.task_config, name=name)
    model = PullModel(shared_layer())
    model.compile(loss="mse", metrics=["mae"])
    trainer = make_trainer("interleaving", keras.optimizers.SGD(0.0), model)
    results = _train(trainer, 10)
    # The output is 1, and the targets are 0 and 3.
    foo, bar = _counts(trainer)
    assert float(results["mae"]) == pytest.approx((1 * foo + 2 * bar) / 10)
    assert "mae" not in results["foo"]
    assert "mae" not in results["bar"]
    _train(trainer, 10)
    again = _train(trainer, 1)
    assert float(again["mae"]) in (1.0, 2.0)


@pytest.mark.parametrize("name", ["foo", "training_loss"])
def test_metric_of_a_model_shared_by_all_tasks_may_not_be_named_like_a_task_or_loss(
    make_trainer: Callable[..., Any], tasks: Any, name: str
) -> None:
    for key, task in tasks.items():
        tasks[key] = CompiledPull(task.task_config, name=key)
    model = PullModel(shared_layer())
    model.compile(loss="mse", metrics=[keras.metrics.MeanAbsoluteError(name=name)])
    trainer = make_trainer("interleaving", model=model)
    with pytest.raises(errors.ConfigValueError, match=f"a value named `{name}`"):
        _train(trainer, 10)


def test_multitask_training_warns_once_about_a_layer_with_wrong_gradients(
    make_trainer: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(model_building, "_computes_gradients_of_strided_kernels", lambda: False)
    inputs = keras.Input((1,))
    images = keras.layers.Reshape((1, 1, 1))(inputs)
    pixels = keras.layers.Conv2D(4, 1, 2, name="shortcut")(images)
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(pixels)))
    make_trainer("interleaving", model=model)
    assert caplog.text.count("wrong gradients") == 1
