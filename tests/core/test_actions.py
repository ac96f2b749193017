import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import actions
from tests import rounding
from tests.line_experiment import NUM_EXAMPLES

EMA = {"optimizer": {"type": "sgd"}, "ema": {"average_decay": 0.9}}


def test_ema_checkpointing_saves_averaged_weights_and_leaves_the_trained_weights_unchanged(
    experiment, make_trainer, tmp_path
) -> None:
    trainer = make_trainer(experiment(trainer={"optimizer_config": EMA}))
    trainer.train(tf.constant(3))
    trained = trainer.model.dense.kernel.numpy()
    actions.EMACheckpointing(str(tmp_path), trainer.optimizer, trainer.checkpoint)({})
    np.testing.assert_array_equal(trainer.model.dense.kernel, trained)
    saved = tf.train.latest_checkpoint(str(tmp_path / "ema_checkpoints"))
    assert saved.endswith("average_weights-3")
    trainer.checkpoint.restore(saved)
    assert not np.array_equal(trainer.model.dense.kernel, trained)


def test_ema_checkpoint_is_named_after_the_global_step_and_not_the_step_of_the_optimizer(
    experiment, make_trainer, tmp_path
) -> None:
    params = experiment(trainer={"optimizer_config": EMA})
    trainer = make_trainer(params)
    trainer.optimizer.iterations.assign(1000)
    trainer.train(tf.constant(3))
    (action,) = actions.get_eval_actions(params, trainer, str(tmp_path))
    action({})
    saved = tf.train.latest_checkpoint(str(tmp_path / "ema_checkpoints"))
    assert saved.endswith("average_weights-3")


def test_ema_checkpointing_without_averaged_weights_raises(
    experiment, make_trainer, tmp_path
) -> None:
    trainer = make_trainer(experiment())
    with pytest.raises(ValueError, match=r"optimizer_config\.ema"):
        actions.EMACheckpointing(str(tmp_path), trainer.optimizer, trainer.checkpoint)


def test_ema_checkpoint_evaluates_to_the_loss_of_the_averaged_weights(
    experiment, make_trainer, tmp_path
) -> None:
    params = experiment(trainer={"optimizer_config": EMA})
    trainer = make_trainer(params)
    trainer.train(tf.constant(3))
    average = trainer.evaluate(tf.constant(-1))["validation_loss"]
    actions.EMACheckpointing(str(tmp_path), trainer.optimizer, trainer.checkpoint)({})
    restored = make_trainer(params, train=False)
    restored.checkpoint.restore(tf.train.latest_checkpoint(str(tmp_path / "ema_checkpoints")))
    # The checkpoint contains the averages twice: as weights and as averages. Evaluation uses the
    # latter.
    loss = restored.evaluate(tf.constant(-1))["validation_loss"]
    rounding.assert_close(loss, average, roundings=NUM_EXAMPLES)


@pytest.mark.usefixtures("short_data_search")
def test_first_nan_loss_raises_if_recovery_max_trials_is_zero(
    experiment, make_trainer, tmp_path
) -> None:
    params = experiment(trainer={"recovery_max_trials": 0})
    trainer = make_trainer(params)
    manager = tf.train.CheckpointManager(trainer.checkpoint, str(tmp_path), max_to_keep=1)
    (action,) = actions.get_train_actions(params, trainer, str(tmp_path), manager)
    action({"training_loss": 1.0})
    with pytest.raises(errors.DivergedError, match="blew up once"):
        action({"training_loss": np.nan})


def test_negative_recovery_max_trials_adds_no_recovery_action(
    experiment, make_trainer, tmp_path
) -> None:
    params = experiment(trainer={"recovery_max_trials": -1})
    trainer = make_trainer(params)
    manager = tf.train.CheckpointManager(trainer.checkpoint, str(tmp_path), max_to_keep=1)
    assert actions.get_train_actions(params, trainer, str(tmp_path), manager) == []
    assert actions.get_eval_actions(params, trainer, str(tmp_path)) == []
