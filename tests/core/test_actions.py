import math

import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import actions

EMA = {"optimizer": {"type": "sgd"}, "ema": {"average_decay": 0.9}}


def _condition(trials: int, bound: float = 100.0, begin: int = 0) -> actions.RecoveryCondition:
    step = tf.Variable(5, dtype=tf.int64)
    return actions.RecoveryCondition(step, bound, begin, trials)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 101.0])
def test_blow_up_asks_for_recovery_until_the_trials_are_used_up(loss) -> None:
    condition = _condition(trials=2)
    assert condition({"training_loss": loss})
    assert condition({"training_loss": tf.constant(loss)})
    with pytest.raises(errors.DivergedError, match="blew up 3 times"):
        condition({"training_loss": loss})


def test_bound_holds_only_from_its_first_step() -> None:
    assert not _condition(trials=0, begin=6)({"training_loss": 1e9})


def test_usual_loss_is_no_blow_up() -> None:
    assert not _condition(trials=0)({"training_loss": 1.0})


def test_recovery_without_a_checkpoint_gives_up(tmp_path) -> None:
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(v=tf.Variable(1.0)), str(tmp_path), max_to_keep=1
    )
    with pytest.raises(errors.DivergedError, match="nothing to go back to"):
        actions.RecoveryAction(manager)({})


def test_averaged_weights_are_saved_and_the_trained_stay(
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


def test_negative_trials_mean_not_to_look(experiment, make_trainer, tmp_path) -> None:
    params = experiment(trainer={"recovery_max_trials": -1})
    trainer = make_trainer(params)
    manager = tf.train.CheckpointManager(trainer.checkpoint, str(tmp_path), max_to_keep=1)
    assert actions.get_train_actions(params, trainer, str(tmp_path), manager) == []
    assert actions.get_eval_actions(params, trainer, str(tmp_path)) == []
