import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import base_trainer
from tests import rounding
from tests.line_experiment import BATCH_SIZE

OPTIMIZERS = {
    "sgd": {"optimizer": {"type": "sgd"}},
    "adamw_clip": {
        "optimizer": {
            "type": "adamw",
            "adamw": {"weight_decay_rate": 0.01, "gradient_clip_norm": 0.5},
        }
    },
    "ema": {"optimizer": {"type": "sgd"}, "ema": {"average_decay": 0.9}},
}


def _losses(trainer: base_trainer.Trainer, steps: int = 5) -> list[float]:
    return [float(trainer.train(tf.constant(1))["training_loss"]) for _ in range(steps)]


@pytest.mark.sample(3)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("precision", [None, "bfloat16"])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_two_replicas_learn_what_one_learns(
    request, experiment, make_trainer, two_replicas, optimizer, precision, accumulation
) -> None:
    if precision:
        request.getfixturevalue("bfloat16_kernels")
    params = experiment(
        trainer={"optimizer_config": OPTIMIZERS[optimizer], "grad_accum_steps": accumulation},
        runtime={"mixed_precision_dtype": precision},
    )
    if precision:
        keras.mixed_precision.set_dtype_policy("mixed_" + precision)
    one = _losses(make_trainer(params, evaluate=False))
    with two_replicas.scope():
        trainer = make_trainer(params, evaluate=False)
    two = _losses(trainer)
    assert one[0] == pytest.approx(two[0], rel=rounding.tolerance(roundings=BATCH_SIZE))
    # In bfloat16 each replica rounds its output and its gradient, and later steps amplify that.
    steps, roundings = (3, 2) if precision else (len(one), BATCH_SIZE)
    rounding.assert_close(
        two[:steps], one[:steps], dtype=precision or "float32", roundings=steps * roundings
    )
    # The fifth batch is the first one again.
    assert one[-1] < one[0]


def test_accumulation_beside_an_own_train_step_is_refused(experiment, make_trainer) -> None:
    class Own(base_trainer.Trainer):
        def train_step(self, iterator):
            next(iterator)

    with pytest.raises(errors.ConfigValueError, match="Own overrides `train_step`"):
        make_trainer(experiment(trainer={"grad_accum_steps": 2}), cls=Own, evaluate=False)


@pytest.mark.parametrize("replicas", [1, 2])
def test_xla_learns_what_the_graph_learns(experiment, make_trainer, two_replicas, replicas) -> None:
    scope = two_replicas.scope() if replicas == 2 else contextlib.nullcontext()
    with scope:
        graph = make_trainer(experiment(), evaluate=False)
        xla = make_trainer(experiment(runtime={"enable_xla": True}), evaluate=False)
    expected = _losses(graph)
    rounding.assert_close(_losses(xla), expected, roundings=len(expected) * BATCH_SIZE)


def test_eager_mode_runs_python_at_every_step(experiment, make_trainer) -> None:
    trainer = make_trainer(experiment(runtime={"run_eagerly": True}), evaluate=False)
    calls = []
    trainer.next_train_inputs = lambda iterator: calls.append(1) or next(iterator)
    trainer.train(tf.constant(3))
    assert len(calls) == 3


@pytest.mark.parametrize("replicas", [1, 2])
def test_model_built_by_its_first_call_is_built_before_training(
    experiment, make_trainer, two_replicas, replicas
) -> None:
    scope = two_replicas.scope() if replicas == 2 else contextlib.nullcontext()
    with scope:
        trainer = make_trainer(experiment(task={"is_built": False}))
    assert trainer.optimizer.built
    assert trainer.model.dense.kernel.shape == (2, 1)
    assert _losses(trainer, 3)[-1] < 10


def test_evaluation_builds_an_unbuilt_model_too(experiment, make_trainer) -> None:
    trainer = make_trainer(experiment(task={"is_built": False}), train=False)
    assert "mae" in trainer.evaluate(tf.constant(-1))


def test_training_data_that_end_are_repeated(experiment, make_trainer) -> None:
    trainer = make_trainer(experiment(), evaluate=False)
    trainer.train(tf.constant(50))
    assert int(trainer.global_step) == 50


def test_average_starts_at_the_pretrained_weights(experiment, make_trainer, tmp_path) -> None:
    source = make_trainer(experiment(), evaluate=False)
    source.train(tf.constant(5))
    source.checkpoint.save(str(tmp_path / "ckpt"))
    params = experiment(
        task={"init_checkpoint": str(tmp_path)},
        trainer={"optimizer_config": OPTIMIZERS["ema"]},
    )
    trainer = make_trainer(params)
    trainer.initialize()
    trainer.optimizer.swap_weights()
    np.testing.assert_array_equal(trainer.model.dense.kernel, source.model.dense.kernel)


def test_resumed_run_draws_the_same_dropout_as_an_unbroken_one(
    experiment, make_trainer, tmp_path
) -> None:
    params = experiment(task={"dropout_rate": 0.5})
    unbroken = make_trainer(params, evaluate=False)
    unbroken.train(tf.constant(4))
    path = unbroken.checkpoint.save(str(tmp_path / "ckpt"))
    resumed = make_trainer(params, evaluate=False)
    resumed.checkpoint.restore(path).assert_existing_objects_matched()
    # Four batches are an epoch, so both go on with the same data.
    assert _losses(unbroken) == _losses(resumed)


def test_ready_dataset_is_used_as_it_is(experiment, make_trainer, make_task) -> None:
    dataset = tf.data.Dataset.from_tensors((tf.zeros((8, 2)), tf.zeros((8, 1)))).repeat()
    trainer = make_trainer(experiment(), evaluate=False, train_dataset=dataset)
    assert _losses(trainer, 1) == [0.0]


def test_report_holds_metrics_loss_and_learning_rate(experiment, make_trainer) -> None:
    logs = make_trainer(experiment(), evaluate=False).train(tf.constant(2))
    assert set(logs) == {"mae", "training_loss", "learning_rate"}
    assert float(logs["learning_rate"]) == pytest.approx(0.1)


def test_models_own_metrics_are_reported_but_not_fed_by_the_task(
    experiment, make_trainer, make_task
) -> None:
    class Tracking(type(make_task(experiment()))):
        def build_model(self):
            model = super().build_model()
            model.tracker = keras.metrics.Mean(name="tracker")
            return model

    trainer = make_trainer(experiment(task={"is_built": False}), task_cls=Tracking, evaluate=False)
    trainer.train_loop_begin()
    trainer.model.tracker.update_state(4.0)
    trainer.run_steps(tf.constant(2))
    assert float(trainer.train_loop_end()["tracker"]) == 4.0


def test_metric_written_for_keras_2_is_reset(experiment, make_trainer) -> None:
    class Old:
        name, resets = "old", 0

        def result(self):
            return 1.0

        def reset_states(self):
            self.resets += 1

    class WithAnotherMetric(base_trainer.Trainer):
        train_metrics = property(lambda self: [old])

    old = Old()
    trainer = make_trainer(experiment(), cls=WithAnotherMetric, evaluate=False)
    trainer.train(tf.constant(1))
    assert old.resets > 0


def test_config_without_a_trainer_is_refused() -> None:
    with pytest.raises(AttributeError, match="trainer"):
        base_trainer.Trainer(config=object(), task=None, model=None, optimizer=None)


def test_xla_works_under_a_strategy_of_one_replica(experiment, make_trainer) -> None:
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        trainer = make_trainer(experiment(runtime={"enable_xla": True}), evaluate=False)
    losses = _losses(trainer)
    assert losses[-1] < losses[0]
