import keras
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import base_trainer, train_data
from official_lite.modeling import distributed_gradients
from official_lite.modeling.optimization import optimizer_factory
from tests import rounding
from tests.line_experiment import BATCH_SIZE, LineTask


def _losses(trainer: base_trainer.Trainer, steps: int = 5) -> list[float]:
    return [float(trainer.train(tf.constant(1))["training_loss"]) for _ in range(steps)]


@pytest.mark.parametrize(
    "optimizer",
    [
        {"type": "sgd"},
        {"type": "adamw", "adamw": {"weight_decay_rate": 0.01, "gradient_clip_norm": 0.5}},
    ],
)
def test_micro_batches_train_with_the_same_losses_as_the_whole_batch(
    experiment, make_trainer, optimizer
) -> None:
    def losses(accumulation: int) -> list[float]:
        return _losses(
            make_trainer(
                experiment(
                    trainer={
                        "grad_accum_steps": accumulation,
                        "optimizer_config": {"optimizer": optimizer},
                    }
                ),
                evaluate=False,
            )
        )

    expected = losses(1)
    rounding.assert_close(losses(4), expected, roundings=len(expected) * BATCH_SIZE)


def test_number_of_micro_batches_does_not_change_the_global_step(experiment, make_trainer) -> None:
    trainer = make_trainer(experiment(trainer={"grad_accum_steps": 4}), evaluate=False)
    trainer.train(tf.constant(3))
    assert (int(trainer.global_step), int(trainer.optimizer.iterations)) == (3, 3)


def test_gradient_accumulation_without_train_data_in_the_config_raises(experiment) -> None:
    params = experiment(trainer={"grad_accum_steps": 2})
    params.task.train_data = None
    with pytest.raises(errors.ConfigValueError, match=r"`task\.train_data` is missing"):
        train_data.micro_batch_data(params, num_replicas=1)


def test_default_config_has_one_micro_batch_with_the_whole_batch(experiment) -> None:
    params = experiment()
    assert train_data.count_micro_batches(params) == 1
    assert train_data.micro_batch_data(params, num_replicas=3) is params.task.train_data


def test_micro_batch_size_must_be_divisible_by_the_number_of_replicas(experiment) -> None:
    params = experiment(
        task={"train_data": {"global_batch_size": 6}}, trainer={"grad_accum_steps": 2}
    )
    assert train_data.micro_batch_data(params, num_replicas=1).global_batch_size == 3
    with pytest.raises(errors.ConfigValueError, match="is 6; expected a multiple of 4"):
        train_data.micro_batch_data(params, num_replicas=2)


@pytest.mark.parametrize(
    "flag", [{"skip_gradients_aggregation": True}, {"experimental_aggregate_gradients": False}]
)
def test_accumulating_gradients_in_the_task_or_in_the_optimizer_trains_equal_weights(
    experiment, make_trainer, two_replicas, flag
) -> None:
    class SumsItself(LineTask):
        def train_step(self, inputs, model, optimizer, metrics=None):
            features, labels = inputs
            with tf.GradientTape() as tape:
                loss = self.build_losses(labels, model(features, training=True))
                share = loss / tf.distribute.get_strategy().num_replicas_in_sync
            gradients = tape.gradient(share, model.trainable_variables)
            summed = distributed_gradients.sum_over_replicas(gradients)
            optimizer.apply_gradients(zip(summed, model.trainable_variables, strict=True), **flag)
            return {self.loss: loss}

    params = experiment(trainer={"grad_accum_steps": 2})
    expected = _losses(make_trainer(params, evaluate=False))
    with two_replicas.scope():
        trainer = make_trainer(params, task_cls=SumsItself, evaluate=False)
    rounding.assert_close(_losses(trainer), expected, roundings=len(expected) * BATCH_SIZE)


def test_second_optimizer_of_a_task_with_micro_batches_raises_an_error_that_names_it(
    experiment, make_trainer
) -> None:
    class TwoOptimizers(LineTask):
        def build_model(self):
            model = super().build_model()
            adam = keras.optimizers.Adam(name="critic")
            self.critic_optimizer = optimizer_factory.prepare_optimizer(adam, model)
            return model

        def train_step(self, inputs, model, optimizer, metrics=None):
            super().train_step(inputs, model, optimizer, metrics)
            return super().train_step(inputs, model, self.critic_optimizer, metrics)

    def train(num_micro_batches: int) -> None:
        params = experiment(trainer={"grad_accum_steps": num_micro_batches})
        trainer = make_trainer(params, task_cls=TwoOptimizers, evaluate=False)
        trainer.train(tf.constant(1))

    train(1)
    with pytest.raises(errors.ConfigValueError, match=r"The optimizer `critic` .* to 1"):
        train(2)


def test_micro_batches_with_several_parameter_server_workers_raise_before_training(
    experiment, monkeypatch
) -> None:
    strategy_cls = tf.distribute.ParameterServerStrategy
    strategy = strategy_cls.__new__(strategy_cls)  # This starts no servers.
    workers = tf.train.ClusterSpec({"worker": ["a:1", "b:2"], "ps": ["c:3"]})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(workers)
    monkeypatch.setattr(strategy_cls, "cluster_resolver", resolver)
    monkeypatch.setattr(tf.distribute, "get_strategy", lambda: strategy)
    with pytest.raises(errors.ConfigValueError, match=r"`trainer\.grad_accum_steps` is 2, but"):
        train_data.build_accumulator(experiment(trainer={"grad_accum_steps": 2}), None, None)
