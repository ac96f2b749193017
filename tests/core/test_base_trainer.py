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


@pytest.mark.parametrize(
    ("optimizer", "precision", "accumulation"),
    [("sgd", "bfloat16", 1), ("adamw_clip", None, 2), ("ema", None, 1)],
)
def test_losses_on_two_replicas_equal_the_losses_on_one_replica(
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
    # In bfloat16, each replica rounds its outputs and gradients; later steps amplify the error.
    steps, roundings = (3, 2) if precision else (len(one), BATCH_SIZE)
    rounding.assert_close(
        two[:steps], one[:steps], dtype=precision or "float32", roundings=steps * roundings
    )
    # The fifth batch equals the first, because an epoch has four batches.
    assert one[-1] < one[0]


def test_gradient_accumulation_with_a_custom_train_step_raises(experiment, make_trainer) -> None:
    class Own(base_trainer.Trainer):
        def train_step(self, iterator):
            next(iterator)

    with pytest.raises(errors.ConfigValueError, match="Own overrides `train_step`"):
        make_trainer(experiment(trainer={"grad_accum_steps": 2}), cls=Own, evaluate=False)


def test_eager_mode_runs_python_code_at_every_step(experiment, make_trainer) -> None:
    trainer = make_trainer(experiment(runtime={"run_eagerly": True}), evaluate=False)
    calls = []
    trainer.next_train_inputs = lambda iterator: calls.append(1) or next(iterator)
    trainer.train(tf.constant(3))
    assert len(calls) == 3


def test_trainer_builds_an_unbuilt_model_before_training(
    experiment, make_trainer, two_replicas
) -> None:
    with two_replicas.scope():
        trainer = make_trainer(experiment(task={"is_built": False}))
    assert trainer.optimizer.built
    assert trainer.model.dense.kernel.shape == (2, 1)
    assert _losses(trainer, 3)[-1] < 10


def test_unbuilt_model_is_built_before_an_evaluation_without_training(
    experiment, make_trainer
) -> None:
    trainer = make_trainer(experiment(task={"is_built": False}), train=False)
    assert "mae" in trainer.evaluate(tf.constant(-1))


def test_finite_training_dataset_is_repeated(experiment, make_trainer) -> None:
    trainer = make_trainer(experiment(), evaluate=False)
    trainer.train(tf.constant(50))
    assert int(trainer.global_step) == 50


def test_moving_average_starts_at_the_pretrained_weights(
    experiment, make_trainer, tmp_path
) -> None:
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


def test_dataset_passed_to_the_trainer_replaces_the_dataset_of_the_config(
    experiment, make_trainer, make_task
) -> None:
    dataset = tf.data.Dataset.from_tensors((tf.zeros((8, 2)), tf.zeros((8, 1)))).repeat()
    trainer = make_trainer(experiment(), evaluate=False, train_dataset=dataset)
    assert _losses(trainer, 1) == [0.0]


def test_metrics_in_model_attributes_are_reported_but_not_updated_by_the_task(
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


def test_config_without_a_trainer_block_raises() -> None:
    with pytest.raises(AttributeError, match="trainer"):
        base_trainer.Trainer(config=object(), task=None, model=None, optimizer=None)


def test_mirrored_strategy_with_one_replica_trains_with_xla(experiment, make_trainer) -> None:
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        trainer = make_trainer(experiment(runtime={"enable_xla": True}), evaluate=False)
    losses = _losses(trainer)
    assert losses[-1] < losses[0]
