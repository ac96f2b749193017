"""Hooks skip their end-of-training output when a signal interrupts the run."""

import os
import signal

import keras
import pytest

from official_lite import orbit
from official_lite.common import errors, preemption
from official_lite.orbit import hooks

# Keras itself triggers this warning with NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


class Interrupts(orbit.Hook):
    every_n_steps = 1

    def after_step(self):
        if self.controller.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def interrupt(make_scripted_trainer, make_keras_trainer, make_controller, tmp_path):
    def interrupt(hook):
        trainer = make_scripted_trainer(lambda step: {"loss": 1.0})
        trainer.model = make_keras_trainer().model
        controller = make_controller(
            trainer, hooks=[hook, Interrupts()], model_dir=str(tmp_path / "run")
        )
        with preemption.catch_signals(), pytest.raises(errors.PreemptedError):
            controller.train_and_evaluate(8, eval_interval=2)
        assert controller.is_interrupted
        return controller

    return interrupt


def test_on_epoch_end_of_a_keras_callback_is_not_called_for_an_interrupted_epoch(interrupt):
    ended = []
    callback = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: ended.append(epoch),
        on_train_end=lambda logs: ended.append("training"),
    )
    interrupt(hooks.KerasCallback(callback))
    assert ended == [0, "training"]


def test_model_of_an_interrupted_epoch_is_not_saved_as_the_best_model(interrupt, tmp_path):
    path = tmp_path / "{epoch}.weights.h5"
    interrupt(
        hooks.KerasCallback(
            keras.callbacks.ModelCheckpoint(str(path), save_best_only=True, save_weights_only=True)
        )
    )
    assert [found.name for found in tmp_path.glob("*.h5")] == ["1.weights.h5"]


def test_interrupted_run_exports_no_model(interrupt, tmp_path):
    interrupt(hooks.ExportModel())
    assert [found.name for found in tmp_path.rglob("*.keras")] == []


def test_interrupted_run_skips_actions_scheduled_for_the_end_of_training(interrupt):
    called = []
    interrupt(hooks.ActionHook(called.append, when="end"))
    assert called == []
