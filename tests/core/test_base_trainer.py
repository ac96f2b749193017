import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import base_task, base_trainer, predictor
from official_lite.modeling import distributed_gradients
from official_lite.modeling.optimization import adamw
from tests import rounding
from tests.line_experiment import BATCH_SIZE, LineTask

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


def _with_optimizer(create_optimizer) -> type[LineTask]:
    class OwnOptimizer(LineTask):
        def create_optimizer(self, optimizer_config, runtime_config=None, dp_config=None):
            return create_optimizer()

    return OwnOptimizer


def _by_variable(loss_scaling: bool = False) -> keras.optimizers.Optimizer:
    """Return an optimizer that creates one for the kernel and one for the bias when it is built."""
    rates = {"kernel": 0.1, "bias": 0.05}
    optimizer = keras.optimizers.MultiOptimizer(
        lambda v: keras.optimizers.SGD(rates[v.name], clipnorm=0.5, name=v.name)
    )
    return keras.optimizers.LossScaleOptimizer(optimizer) if loss_scaling else optimizer


def test_learning_rate_of_each_part_of_a_multi_optimizer_is_reported_by_name(
    experiment, make_trainer
) -> None:
    task_cls = _with_optimizer(_by_variable)
    trainer = make_trainer(experiment(), task_cls=task_cls, evaluate=False)
    logs = trainer.train(tf.constant(1))
    assert "learning_rate" not in logs
    rates = [float(logs[f"learning_rate/{name}"]) for name in ("kernel", "bias")]
    assert rates == pytest.approx([0.1, 0.05])


@pytest.mark.parametrize(("loss_scaling", "accumulation"), [(False, 2), (True, 1)])
def test_multi_optimizer_created_by_a_function_trains_two_replicas_like_one(
    experiment, make_trainer, two_replicas, loss_scaling, accumulation
) -> None:
    task_cls = _with_optimizer(lambda: _by_variable(loss_scaling))
    params = experiment(trainer={"grad_accum_steps": accumulation})
    one = _losses(make_trainer(params, task_cls=task_cls, evaluate=False))
    with two_replicas.scope():
        trainer = make_trainer(params, task_cls=task_cls, evaluate=False)
    rounding.assert_close(_losses(trainer), one, roundings=len(one) * BATCH_SIZE)


def _of_one_sgd() -> keras.optimizers.Optimizer:
    return keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.1)))


@pytest.mark.parametrize(
    ("create_optimizer", "execution", "micro_batches"),
    [
        (_of_one_sgd, "graph", 2),
        (_by_variable, "graph", 2),
        (_by_variable, "xla", 1),
        (lambda: _by_variable(loss_scaling=True), "graph", 1),
    ],
)
def test_multi_optimizer_skips_variables_without_a_gradient_with_replicas_and_micro_batches(
    experiment, make_trainer, two_replicas, create_optimizer, execution, micro_batches
) -> None:
    class KernelOnly(_with_optimizer(create_optimizer)):
        def train_step(self, inputs, model, optimizer, metrics=None):
            features, labels = inputs
            with tf.GradientTape() as tape:
                loss = self.build_losses(labels, features @ model.dense.kernel)
            pairs = zip(
                tape.gradient(loss, model.trainable_variables),
                model.trainable_variables,
                strict=True,
            )
            optimizer.apply_gradients(pairs)
            return {self.loss: loss}

    params = experiment(
        trainer={"grad_accum_steps": micro_batches}, runtime={"execution": execution}
    )
    with two_replicas.scope():
        trainer = make_trainer(params, task_cls=KernelOnly, evaluate=False)
    trainer.train(tf.constant(1))
    kernel, bias = trainer.model.get_weights()
    assert kernel.any()
    assert not bias.any()
    *_, optimizer = distributed_gradients.wrapped_optimizers(trainer.optimizer)
    assert {int(one.iterations.numpy()) for one in optimizer.optimizers} == {1}


def _map_with_unused_sgd() -> keras.optimizers.Optimizer:
    sgd, schedule_free = keras.optimizers.SGD(), keras.optimizers.ScheduleFreeAdamW(1e-3)
    return keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(sgd, {".*": schedule_free})
    )


@pytest.mark.parametrize(
    ("create_optimizer", "loads"),
    [
        (lambda: adamw.ScheduleFreeAdamW(1e-3), "slots"),
        (lambda: keras.optimizers.ScheduleFreeAdamW(1e-3), "none"),
        (_map_with_unused_sgd, "none"),
    ],
    ids=["slots", "keras", "multi"],
)
def test_schedule_free_optimizer_starts_at_the_pretrained_weights(
    experiment, make_trainer, tmp_path, create_optimizer, loads
) -> None:
    task_cls = _with_optimizer(create_optimizer)
    source = make_trainer(experiment(), task_cls=task_cls, evaluate=False)
    # The averaged weights differ from the momentum, as they do after many steps.
    source.train(tf.constant(1))
    source.model.set_weights([weight + 5.0 for weight in source.model.get_weights()])
    source.checkpoint.save(str(tmp_path / "ckpt"))
    params = experiment(task={"init_checkpoint": str(tmp_path), "init_checkpoint_optimizer": loads})
    trainer = make_trainer(params, task_cls=task_cls, evaluate=False)
    trainer.initialize()
    trainer.train(tf.constant(1))
    for trained, loaded in zip(
        trainer.model.get_weights(), source.model.get_weights(), strict=True
    ):
        # With Adam, a weight moves by a few learning rates at most.
        np.testing.assert_allclose(trained, loaded, atol=0.1)


def test_weights_and_optimizer_state_come_from_one_checkpoint_of_a_running_pretraining(
    experiment, make_trainer, tmp_path
) -> None:
    optimizer = {"optimizer_config": OPTIMIZERS["adamw_clip"]}
    source = make_trainer(experiment(trainer=optimizer), evaluate=False)

    def pretrain(steps: int) -> None:
        source.train(tf.constant(steps))
        source.checkpoint.save(str(tmp_path / "ckpt"))

    class Slow(LineTask):
        def initialize(self, model: keras.Model) -> None:
            super().initialize(model)
            pretrain(2)

    pretrain(3)
    init = {"init_checkpoint": str(tmp_path), "init_checkpoint_optimizer": "all"}
    params = experiment(task=init, trainer=optimizer)
    trainer = make_trainer(params, task_cls=Slow, evaluate=False)
    trainer.initialize()
    assert int(source.optimizer.iterations.numpy()) == 5
    assert int(trainer.optimizer.iterations.numpy()) == 3


class LoadsMore(LineTask):
    """A task that extends the default `initialize`."""

    def initialize(self, model: keras.Model) -> None:
        super().initialize(model)


def test_initialize_loads_the_checkpoint_that_is_the_latest_at_each_call(
    experiment, make_trainer, tmp_path
) -> None:
    params = experiment(task={"init_checkpoint": str(tmp_path)})
    source = make_trainer(experiment(), evaluate=False)
    trainer = make_trainer(params, task_cls=LoadsMore, evaluate=False)
    direct = LoadsMore(params.task)

    def check_that_the_latest_is_loaded() -> None:
        source.checkpoint.save(str(tmp_path / "ckpt"))
        for initialize in (trainer.initialize, lambda: direct.initialize(trainer.model)):
            trainer.model.dense.kernel.assign(tf.zeros_like(trainer.model.dense.kernel))
            initialize()
            np.testing.assert_array_equal(trainer.model.dense.kernel, source.model.dense.kernel)

    check_that_the_latest_is_loaded()
    source.train(tf.constant(1))
    check_that_the_latest_is_loaded()


def test_workers_of_a_task_that_overrides_initialize_load_the_checkpoint_chosen_by_the_chief(
    experiment, make_trainer, tmp_path, monkeypatch
) -> None:
    source = make_trainer(experiment(), evaluate=False)
    source.train(tf.constant(1))
    source.checkpoint.save(str(tmp_path / "ckpt"))
    of_chief = source.model.dense.kernel.numpy()
    source.train(tf.constant(1))
    source.checkpoint.save(str(tmp_path / "ckpt"))
    # The chief looked before the second checkpoint was saved.
    told = [{"name": np.array([b"ckpt-1"], object)}]
    monkeypatch.setattr(predictor, "create_exchange", lambda strategy: lambda parts: told)
    params = experiment(task={"init_checkpoint": str(tmp_path)})
    trainer = make_trainer(params, task_cls=LoadsMore, evaluate=False)
    trainer.initialize()
    np.testing.assert_array_equal(trainer.model.dense.kernel, of_chief)


def test_optimizer_state_can_be_loaded_without_naming_the_task(
    experiment, make_trainer, tmp_path
) -> None:
    source = make_trainer(experiment(), evaluate=False)
    source.train(tf.constant(3))
    source.checkpoint.save(str(tmp_path / "ckpt"))
    init = {"init_checkpoint": str(tmp_path), "init_checkpoint_optimizer": "all"}
    trainer = make_trainer(experiment(task=init), evaluate=False)
    base_task.load_optimizer(trainer.config.task, trainer.optimizer, trainer.model)
    assert int(trainer.optimizer.iterations.numpy()) == 3
