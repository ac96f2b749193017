import pathlib
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.modeling.multitask import interleaving_trainer, multitask, task_sampler
from tests import rounding


@pytest.fixture
def make_trainer(tasks: Any, make_model: Callable[..., Any]) -> Callable[..., Any]:
    def make(
        foo: float = 1.0, bar: float = 1.0, model: Any = None, optimizer: Any = None
    ) -> interleaving_trainer.MultiTaskInterleavingTrainer:
        multi_task = multitask.MultiTask(tasks, task_weights={"foo": foo, "bar": bar})
        return interleaving_trainer.MultiTaskInterleavingTrainer(
            multi_task,
            model or make_model(),
            optimizer or keras.optimizers.Adam(0.1),
            task_sampler.ProportionalTaskSampler(multi_task.task_weights),
        )

    return make


def _train(trainer: Any, steps: int) -> dict[str, Any]:
    return trainer.train(tf.constant(steps))


def _counts(trainer: Any) -> list[int]:
    return [int(trainer.task_step_counter(name).numpy()) for name in ("foo", "bar")]


def test_every_step_belongs_to_one_task(make_trainer: Callable[..., Any]) -> None:
    trainer = make_trainer(foo=3.0)
    results = _train(trainer, 400)
    assert sum(_counts(trainer)) == trainer.global_step.numpy() == 400
    # The draws depend on the step only. The standard error is 9.
    assert _counts(trainer)[0] == pytest.approx(300, abs=30)
    assert {"foo", "bar"} <= results.keys()
    assert "total_loss" not in results


@pytest.mark.parametrize(("foo", "bar"), [(1.0, 0.0), (0.0, 1.0)])
def test_task_without_weight_is_never_trained(
    make_trainer: Callable[..., Any], foo: float, bar: float
) -> None:
    trainer = make_trainer(foo=foo, bar=bar)
    results = _train(trainer, 20)
    assert _counts(trainer) == [20 * foo, 20 * bar]
    # And it reports no loss of zero.
    assert ("foo" in results, "bar" in results) == (foo > 0, bar > 0)


def test_training_loss_is_the_mean_over_the_examples_of_all_tasks(
    make_trainer: Callable[..., Any], tasks: Any
) -> None:
    # Batches of two and of one, and of four and of two.
    for task, size, last in ((tasks["foo"], 2, 4.0), (tasks["bar"], 4, 7.0)):
        labels = tf.concat([tf.ones([size, 1]), tf.fill([size // 2, 1], last)], 0)
        data = tf.data.Dataset.from_tensor_slices((tf.ones([len(labels), 1]), labels)).batch(size)
        task.build_inputs = lambda params, data=data: data
        task.task_config.train_data.global_batch_size = size
    trainer = make_trainer(optimizer=keras.optimizers.SGD(0.0))
    results = _train(trainer, 9)
    counts = dict(zip(("foo", "bar"), _counts(trainer), strict=True))
    # The weight is 1, so the last examples of each pass over the data have a loss.
    losses, examples = [], []
    for name, size, loss in (("foo", 2, 9.0), ("bar", 4, 36.0)):
        passes, rest = divmod(counts[name], 2)
        losses.append(passes * loss * size / 2)
        examples.append(passes * size * 1.5 + rest * size)
        assert float(results[name]["training_loss"]) == pytest.approx(losses[-1] / examples[-1])
    assert float(results["training_loss"]) == pytest.approx(sum(losses) / sum(examples))


def test_resumed_run_equals_an_unbroken_one(
    make_trainer: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    unbroken, first, resumed = make_trainer(), make_trainer(), make_trainer()
    _train(unbroken, 20)
    _train(first, 9)
    resumed.checkpoint.restore(first.checkpoint.save(str(tmp_path / "ckpt")))
    _train(resumed, 11)
    assert _counts(resumed) == _counts(unbroken)
    assert resumed.model.weight == unbroken.model.weight


def test_one_keras_model_serves_all_tasks(make_trainer: Callable[..., Any], tasks: Any) -> None:
    trainer = make_trainer(model=tasks["foo"].build_model())
    _train(trainer, 10)
    assert 0 not in _counts(trainer)


def test_two_replicas_count_a_step_once(
    make_trainer: Callable[..., Any], two_replicas: tf.distribute.Strategy
) -> None:
    alone = make_trainer()
    _train(alone, 6)
    with two_replicas.scope():
        trainer = make_trainer()
        _train(trainer, 6)
    assert _counts(trainer) == _counts(alone)
    # Six updates of about four roundings.
    rounding.assert_close(trainer.model.weight, alone.model.weight, roundings=6 * 4)


def test_sampler_of_other_tasks_is_refused(tasks: Any, make_model: Callable[..., Any]) -> None:
    sampler = task_sampler.UniformTaskSampler({"bar": 1.0, "foo": 1.0})
    with pytest.raises(errors.ConfigValueError, match="Create the sampler from"):
        interleaving_trainer.MultiTaskInterleavingTrainer(
            multitask.MultiTask(tasks), make_model(), keras.optimizers.SGD(), sampler
        )
