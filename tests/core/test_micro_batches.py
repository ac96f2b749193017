import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import base_trainer, train_data
from tests import rounding
from tests.line_experiment import BATCH_SIZE


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
