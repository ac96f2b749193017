import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import actions
from tests import rounding
from tests.line_experiment import NUM_EXAMPLES

EMA = {"optimizer": {"type": "sgd"}, "ema": {"average_decay": 0.9}}


def test_action_saves_averaged_weights_and_leaves_the_trained_ones_in_place(
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


def test_optimizer_without_an_average_is_refused(experiment, make_trainer, tmp_path) -> None:
    trainer = make_trainer(experiment())
    with pytest.raises(ValueError, match=r"optimizer_config\.ema"):
        actions.EMACheckpointing(str(tmp_path), trainer.optimizer, trainer.checkpoint)


def test_saved_average_evaluates_to_the_recorded_metrics(
    experiment, make_trainer, tmp_path
) -> None:
    params = experiment(trainer={"optimizer_config": EMA})
    trainer = make_trainer(params)
    trainer.train(tf.constant(3))
    average = trainer.evaluate(tf.constant(-1))["validation_loss"]
    actions.EMACheckpointing(str(tmp_path), trainer.optimizer, trainer.checkpoint)({})
    restored = make_trainer(params, train=False)
    restored.checkpoint.restore(tf.train.latest_checkpoint(str(tmp_path / "ema_checkpoints")))
    # An evaluation uses the averages, which follow the saved weights.
    loss = restored.evaluate(tf.constant(-1))["validation_loss"]
    rounding.assert_close(loss, average, roundings=NUM_EXAMPLES)


@pytest.mark.usefixtures("short_data_search")
def test_first_blow_up_ends_the_run_if_recovery_has_no_trials(
    experiment, make_trainer, tmp_path
) -> None:
    params = experiment(trainer={"recovery_max_trials": 0})
    trainer = make_trainer(params)
    manager = tf.train.CheckpointManager(trainer.checkpoint, str(tmp_path), max_to_keep=1)
    (action,) = actions.get_train_actions(params, trainer, str(tmp_path), manager)
    action({"training_loss": 1.0})
    with pytest.raises(errors.DivergedError, match="blew up once"):
        action({"training_loss": np.nan})


def test_negative_recovery_trials_disable_the_search_for_blow_ups(
    experiment, make_trainer, tmp_path
) -> None:
    params = experiment(trainer={"recovery_max_trials": -1})
    trainer = make_trainer(params)
    manager = tf.train.CheckpointManager(trainer.checkpoint, str(tmp_path), max_to_keep=1)
    assert actions.get_train_actions(params, trainer, str(tmp_path), manager) == []
    assert actions.get_eval_actions(params, trainer, str(tmp_path)) == []
