import collections
import csv
import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors, preemption
from official_lite.core import train_lib
from official_lite.orbit import hooks
from tests import rounding, stop_signals

# Keras itself triggers this warning with NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


class Events(keras.callbacks.Callback):
    """A callback that records its events; the subclass below also records batch events."""

    def __init__(self):
        super().__init__()
        self.events, self.logs = [], {}

    def _add(self, name, logs):
        self.events.append(name)
        self.logs[name] = logs

    def on_train_begin(self, logs=None):
        self._add("train_begin", logs)

    def on_train_end(self, logs=None):
        self._add("train_end", logs)

    def on_epoch_begin(self, epoch, logs=None):
        self._add(f"epoch_begin {epoch}", logs)

    def on_epoch_end(self, epoch, logs=None):
        self._add(f"epoch_end {epoch}", logs)

    def on_test_begin(self, logs=None):
        self._add("test_begin", logs)

    def on_test_end(self, logs=None):
        self._add("test_end", logs)


class BatchEvents(Events):
    def on_train_batch_begin(self, batch, logs=None):
        self._add(f"begin {batch}", logs)

    def on_train_batch_end(self, batch, logs=None):
        self._add(f"end {batch}", logs)


@pytest.fixture
def train(make_keras_trainer, make_controller):
    def train(callback, steps, *, eval_interval=None, trainer=None, more_hooks=(), **arguments):
        hook = callback
        if isinstance(callback, keras.callbacks.Callback):
            hook = hooks.KerasCallback(callback)
        controller = make_controller(
            trainer or make_keras_trainer(), hooks=[hook, *more_hooks], **arguments
        )
        if eval_interval:
            controller.train_and_evaluate(steps, eval_interval=eval_interval)
        else:
            controller.train(steps)
        return controller

    return train


@pytest.mark.parametrize(
    ("steps", "eval_interval", "steps_per_epoch", "expected"),
    [
        (6, 6, 3, "epoch_begin 0, epoch_end 0, epoch_begin 1, test_begin, test_end, epoch_end 1"),
        # Without `steps_per_epoch`, each evaluation ends an epoch.
        (4, 4, None, "epoch_begin 0, test_begin, test_end, epoch_end 0"),
        (5, None, None, "epoch_begin 0, epoch_end 0"),
    ],
)
def test_epoch_events_fire_in_keras_order(train, steps, eval_interval, steps_per_epoch, expected):
    callback = Events()
    train(callback, steps, eval_interval=eval_interval, steps_per_epoch=steps_per_epoch)
    assert ", ".join(callback.events) == f"train_begin, {expected}, train_end"
    epochs = steps_per_epoch and steps // steps_per_epoch
    assert callback.params == {"epochs": epochs, "steps": steps_per_epoch, "verbose": 0}


def test_epoch_logs_contain_the_training_report_and_evaluation_results(train):
    callback = Events()
    train(callback, 4, eval_interval=4, steps_per_epoch=2, steps_per_loop=2)
    assert callback.logs["epoch_end 0"].keys() == {"loss"}
    last = callback.logs["epoch_end 1"]
    assert 0 < last["val_loss"] < last["loss"]
    assert callback.logs["test_end"]["loss"] == last["val_loss"]


def test_evaluation_results_in_epoch_logs_have_the_val_prefix(
    train, make_scripted_trainer, make_keras_trainer
):
    callback = Events()
    trainer = make_scripted_trainer(lambda step: {"validation_loss": 0.5, "a": {"f1": 0.25}})
    trainer.model = make_keras_trainer().model
    train(callback, 2, eval_interval=2, trainer=trainer)
    logs = callback.logs["epoch_end 0"]
    assert (logs["val_loss"], logs["val_a/f1"]) == (0.5, 0.25)


def test_batch_events_have_the_index_and_the_loss_of_each_step(train):
    callback = BatchEvents()
    train(callback, 4, steps_per_epoch=2)
    batches = [event for event in callback.events if event.split()[0] in ("begin", "end")]
    assert batches == ["begin 0", "end 0", "begin 1", "end 1"] * 2
    # y = 2x, and the weight has gone from 1 to 1.2, 1.36 and 1.488 when the last loss is computed.
    # About four roundings in each of four steps.
    rounding.assert_close(callback.logs["end 1"]["loss"], (2 - 1.488) ** 2, roundings=4 * 4)


def test_on_train_end_is_not_called_after_an_error(train):
    class Fails(Events):
        def on_epoch_end(self, epoch, logs=None):
            raise ArithmeticError

    callback = Fails()
    with pytest.raises(ArithmeticError):
        train(callback, 4, eval_interval=2)
    assert "train_end" not in callback.events


def test_evaluation_runs_between_on_test_begin_and_on_test_end(
    train, make_scripted_trainer, make_keras_trainer
):
    callback = Events()
    trainer = make_scripted_trainer(lambda step: callback.events.append("evaluated") or {"loss": 1})
    trainer.model = make_keras_trainer().model
    train(callback, 2, eval_interval=2, trainer=trainer)
    assert callback.events[2:5] == ["test_begin", "evaluated", "test_end"]


def test_callback_receives_the_test_events_of_an_evaluation_without_training(
    make_keras_trainer, make_controller
):
    callback, trainer = Events(), make_keras_trainer()
    make_controller(trainer, hooks=[hooks.KerasCallback(callback)]).evaluate()
    assert callback.events == ["test_begin", "test_end"]
    assert callback.model is trainer.model


def test_callback_that_overrides_set_model_can_still_stop_training(train, make_keras_trainer):
    class KeepsItsModel(keras.callbacks.Callback):
        def set_model(self, model):
            self.trained = model

        def on_epoch_end(self, epoch, logs=None):
            self.trained.stop_training = True

    callback, trainer = KeepsItsModel(), make_keras_trainer()
    controller = train(callback, 4, trainer=trainer, eval_interval=2)
    assert callback.trained is trainer.model
    assert controller.step == 2


def test_defaultdict_in_a_callback_keeps_its_default_factory_in_a_resumed_run(train):
    class History(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.losses = collections.defaultdict(list)

        def on_epoch_end(self, epoch, logs=None):
            self.losses[f"epoch {epoch}"].append(logs["loss"])

    interrupted = hooks.KerasCallback(History())
    train(interrupted, 2, eval_interval=2)
    resumed = hooks.KerasCallback(History())
    resumed.load_state_dict(interrupted.state_dict())
    train(resumed, 2, eval_interval=2)
    assert list(resumed.callback.losses) == ["epoch 0", "epoch 1"]


@pytest.mark.parametrize("killed_at", [4, 6])
def test_csv_log_of_a_resumed_run_equals_that_of_an_uninterrupted_run(
    train, make_keras_trainer, tmp_path, killed_at
):
    def start(path, steps, *, first_step=0, state=None):
        hook = hooks.KerasCallback(callback="CSVLogger", filename=str(path))
        trainer = make_keras_trainer()
        trainer.global_step.assign(first_step)
        trainer.model.set_weights([np.full([1, 1], 2 - 0.8**first_step)])
        if state:
            hook.load_state_dict(state)
        train(hook, steps, trainer=trainer, eval_interval=2)
        return hook.state_dict()

    whole, parts = tmp_path / "whole.csv", tmp_path / "parts.csv"
    start(whole, 8)
    saved = start(parts, 4)
    # The rows after the restored checkpoint are removed.
    start(parts, killed_at, first_step=4, state=saved)
    saved = start(parts, 6, first_step=4, state=saved)
    start(parts, 8, first_step=6, state=saved)
    assert parts.read_text() == whole.read_text()


def test_csv_logger_keeps_the_rows_of_a_finished_run_that_is_restarted(
    train, make_keras_trainer, tmp_path
):
    path, trainer = tmp_path / "log.csv", make_keras_trainer()
    train(keras.callbacks.CSVLogger(str(path)), 4, trainer=trainer, eval_interval=2)
    before = path.read_text()
    train(keras.callbacks.CSVLogger(str(path)), 4, trainer=trainer, eval_interval=2)
    assert path.read_text() == before


def test_csv_logger_removes_the_rows_of_steps_that_recovery_repeats(
    train, make_keras_trainer, tmp_path
):
    path = tmp_path / "log.csv"
    hook = hooks.KerasCallback(callback="CSVLogger", filename=str(path))
    states = []

    class GoesBack(hooks.Hook):
        def after_eval(self):
            states.append(hook.state_dict())
            if len(states) == 2:
                hook.load_state_dict(states[0])

    train(hook, 6, eval_interval=2, more_hooks=[GoesBack()])
    with path.open() as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["0", "1"]


def _rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("steps_per_epoch", [None, 2])
def test_two_equal_runs_save_the_same_callback_state(train, steps_per_epoch):
    def saved_state():
        hook = hooks.KerasCallback(keras.callbacks.History())
        train(hook, 4, eval_interval=4, steps_per_epoch=steps_per_epoch)
        return json.dumps(hook.state_dict())

    state = saved_state()
    assert "val_loss" in state
    assert state == saved_state()


def test_keras_early_stopping_ends_training_and_sets_the_stop_reason(
    train, make_scripted_trainer, make_keras_trainer
):
    trainer = make_scripted_trainer(lambda step: {"loss": {2: 2.0, 4: 1.0}.get(step, 3.0)})
    trainer.model = make_keras_trainer().model
    controller = train(
        keras.callbacks.EarlyStopping("val_loss", patience=2), 20, eval_interval=2, trainer=trainer
    )
    assert controller.step == 8
    assert controller.stop_reason == "early stopping: EarlyStopping set `stop_training`"


@pytest.fixture
def make_model_manager(tmp_path):
    def make(trainer, interval):
        return tf.train.CheckpointManager(
            tf.train.Checkpoint(model=trainer.model, step=trainer.global_step),
            str(tmp_path / "model"),
            max_to_keep=None,
            step_counter=trainer.global_step,
            checkpoint_interval=interval,
        )

    return make


def _saved_weight(manager):
    model = manager.checkpoint.model
    manager.checkpoint.restore(manager.latest_checkpoint)
    return model.get_weights()[0].item()


@pytest.mark.parametrize(("steps_per_epoch", "stopped_at"), [(None, 2), (4, 3)])
def test_csv_log_of_a_run_stopped_by_a_signal_in_its_first_epoch_has_all_columns(
    train, make_keras_trainer, make_model_manager, tmp_path, steps_per_epoch, stopped_at
):
    def start(path, *more_hooks, **arguments):
        train(
            keras.callbacks.CSVLogger(str(path)),
            4,
            eval_interval=2,
            steps_per_epoch=steps_per_epoch,
            more_hooks=more_hooks,
            **arguments,
        )

    whole, parts = tmp_path / "whole.csv", tmp_path / "parts.csv"
    start(whole)
    trainer = make_keras_trainer()
    manager = make_model_manager(trainer, 100)
    # The signal comes before the evaluation that ends the epoch.
    with preemption.catch_signals(), pytest.raises(errors.PreemptedError):
        start(parts, stop_signals.SignalAt(stopped_at), trainer=trainer, checkpoint_manager=manager)
    assert trainer.global_step.numpy() == stopped_at
    trainer = make_keras_trainer()
    start(parts, trainer=trainer, checkpoint_manager=make_model_manager(trainer, 100))
    columns = [[list(row) for row in _rows(path)] for path in (parts, whole)]
    assert columns[0] == columns[1]
    assert {"loss", "val_loss"} <= {*columns[0][0]}


@pytest.mark.parametrize(
    ("steps_per_epoch", "interval", "train_steps"),
    [(None, 2, 4), (None, 100, 20), (2, 2, 20), (2, 100, 4)],
)
def test_last_checkpoint_contains_the_best_weights_that_early_stopping_restores(
    train, make_keras_trainer, make_model_manager, steps_per_epoch, interval, train_steps
):
    trainer = make_keras_trainer()
    manager = make_model_manager(trainer, interval)
    # The loss always falls, so with mode "max" the first epoch is the best one.
    callback = keras.callbacks.EarlyStopping(
        "val_loss", mode="max", patience=2, restore_best_weights=True
    )
    controller = train(
        callback,
        train_steps,
        eval_interval=2,
        trainer=trainer,
        checkpoint_manager=manager,
        steps_per_epoch=steps_per_epoch,
    )
    after_two_steps = 2 - 0.8**2
    assert controller.step == min(train_steps, 6)
    assert trainer.model.get_weights()[0].item() == pytest.approx(after_two_steps)
    assert manager.latest_checkpoint.endswith(f"-{controller.step}")
    assert _saved_weight(manager) == pytest.approx(after_two_steps)


def test_best_checkpoint_contains_the_evaluated_weights_even_if_a_callback_then_replaces_them(
    train, make_keras_trainer, make_model_manager
):
    trainer = make_keras_trainer()
    manager = make_model_manager(trainer, 2)
    # The loss always falls. With mode "max", the callback restores the weights of step 2.
    callback = keras.callbacks.EarlyStopping("val_loss", mode="max", restore_best_weights=True)
    train(
        callback,
        4,
        eval_interval=2,
        trainer=trainer,
        checkpoint_manager=manager,
        more_hooks=[hooks.BestCheckpoint("loss")],
    )
    assert trainer.model.get_weights()[0].item() == pytest.approx(2 - 0.8**2)
    manager.checkpoint.restore(f"{manager.directory}/best_ckpt/best_ckpt-4")
    assert trainer.model.get_weights()[0].item() == pytest.approx(2 - 0.8**4)


def test_callback_that_changes_weights_after_the_last_checkpoint_logs_a_warning(
    train, make_keras_trainer, make_model_manager, log_lines
):
    class Resets(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            self.model.set_weights([np.zeros([1, 1])])

    for callback, warns in ((Events(), False), (Resets(), True)):
        trainer = make_keras_trainer()
        manager = make_model_manager(trainer, 100)
        train(callback, 5, trainer=trainer, checkpoint_manager=manager, steps_per_epoch=2)
        assert warns == any("Resets changed the weights" in line for line in log_lines)


def test_callback_that_stops_training_receives_only_on_train_end_afterwards(train):
    class Stops(Events):
        def on_epoch_end(self, epoch, logs=None):
            super().on_epoch_end(epoch, logs)
            self.model.stop_training = True

    callback = Stops()
    controller = train(callback, 20, eval_interval=20, steps_per_epoch=4)
    assert controller.eval_logs
    assert callback.events == ["train_begin", "epoch_begin 0", "epoch_end 0", "train_end"]
    controller.evaluate()
    assert callback.events[4:] == ["test_begin", "test_end"]


def test_model_checkpoint_saves_a_loadable_model_at_each_epoch_end(
    train, make_keras_trainer, tmp_path
):
    trainer = make_keras_trainer()
    whole = keras.callbacks.ModelCheckpoint(str(tmp_path / "{epoch}.keras"))
    train(whole, 4, eval_interval=2, trainer=trainer)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.keras", "2.keras"]
    loaded = keras.models.load_model(tmp_path / "2.keras")
    np.testing.assert_array_equal(loaded.get_weights()[0], trainer.model.get_weights()[0])


def test_model_checkpoint_with_save_best_only_tracks_the_best_loss_and_saves_weights(
    train, make_scripted_trainer, make_keras_trainer, tmp_path
):
    weights = make_keras_trainer().model
    trainer = make_scripted_trainer(lambda step: {"loss": abs(step - 4)})
    trainer.model = weights
    path = tmp_path / "best.weights.h5"
    callback = keras.callbacks.ModelCheckpoint(
        str(path), save_best_only=True, save_weights_only=True
    )
    hook = hooks.KerasCallback(callback)
    assert hook.every_n_steps == 0
    train(hook, 8, eval_interval=2, trainer=trainer)
    assert callback.best == 0
    make_keras_trainer().model.load_weights(path)


def test_model_checkpoint_saves_every_save_freq_batches(train, tmp_path):
    callback = keras.callbacks.ModelCheckpoint(str(tmp_path / "{batch}.keras"), save_freq=2)
    train(callback, 5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2.keras", "4.keras"]


def test_learning_rate_scheduler_sets_the_rate_before_the_first_step_of_each_epoch(
    train, make_keras_trainer
):
    trainer = make_keras_trainer()
    train(
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.5 if epoch else 0.0),
        4,
        trainer=trainer,
        steps_per_epoch=2,
    )
    # The rate is 0 in the first epoch. At a rate of 0.5, the first step of the next fits y = 2x.
    assert trainer.model.get_weights()[0].item() == pytest.approx(2.0)
    assert float(trainer.loss.result()) == pytest.approx((1 + 1 + 1 + 0) / 4)


class RestoresOnce(hooks.Hook):
    """A hook that restores the latest checkpoint once at the given step, as recovery does."""

    def __init__(self, step):
        self.every_n_steps, self._is_due = step, True

    def restore(self, output):
        if self._is_due and self.controller.step == self.every_n_steps:
            self._is_due = False
            self.controller.checkpoint_manager.restore_or_initialize()


CALLBACKS = {
    "scheduler": lambda: keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.9 * rate),
    # With this `min_delta`, no epoch after the first one is an improvement.
    "plateau": lambda: keras.callbacks.ReduceLROnPlateau("val_loss", 0.5, patience=1, min_delta=9),
    "plateau of training": lambda: keras.callbacks.ReduceLROnPlateau(
        "loss", 0.5, patience=1, min_delta=9
    ),
}


# A terminated run ends its epoch without an evaluation.
@pytest.mark.filterwarnings("ignore:Learning rate reduction is conditioned:UserWarning")
@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("kind", "steps_per_epoch", "stop", "stop_step"),
    [
        # Each pair of parameter values occurs at least once.
        ("scheduler", None, "killed", 6),
        ("scheduler", 5, "terminated in an evaluation", 8),
        ("scheduler", None, "recovered", 9),
        ("plateau", 5, "killed", 8),
        ("plateau", None, "terminated in an evaluation", 9),
        ("plateau", 5, "recovered", 6),
        ("plateau of training", 5, "killed", 9),
        ("plateau of training", None, "terminated in an evaluation", 6),
        ("plateau of training", None, "recovered", 8),
    ],
)
def test_interruption_does_not_change_the_learning_rates_that_callbacks_set(
    make_keras_trainer, make_controller, tmp_path, kind, steps_per_epoch, stop, stop_step
):
    rates = {}

    def run(folder, stop):
        trainer = make_keras_trainer()
        parts = {"model": trainer.model, "optimizer": trainer.optimizer}
        manager = tf.train.CheckpointManager(
            tf.train.Checkpoint(step=trainer.global_step, **parts),
            str(tmp_path / folder),
            max_to_keep=None,
            step_counter=trainer.global_step,
            checkpoint_interval=3,
        )

        def note(hook):
            step = hook.controller.step
            if stop == "killed" and step == stop_step:
                raise ConnectionError
            rates.setdefault(folder, {})[step] = float(trainer.optimizer.learning_rate)

        noting = hooks.LambdaHook(after_step=note, every_n_steps=1)
        restoring = RestoresOnce(stop_step)
        controller = make_controller(
            trainer,
            hooks=[hooks.KerasCallback(CALLBACKS[kind]()), noting, restoring],
            checkpoint_manager=manager,
            steps_per_epoch=steps_per_epoch,
            steps_per_loop=3,
            train_actions=[restoring.restore] if stop == "recovered" else [],
        )

        def stop_evaluation():
            if stop.startswith("terminated") and controller.step >= stop_step:
                raise errors.PreemptedError("terminated")

        controller.eval_preparations.append(stop_evaluation)
        controller.train_and_evaluate(16, eval_interval=4)

    run("unbroken", "never")
    try:
        run("broken", stop)
    except (ConnectionError, errors.PreemptedError):
        run("broken", "never")
    assert rates["broken"] == rates["unbroken"]
    assert len(set(rates["unbroken"].values())) > 2


def test_reduce_lr_on_plateau_counts_epochs_across_consecutive_train_calls(
    make_keras_trainer, make_controller
):
    rates = []
    for ends in ([16], [4, 8, 12, 16]):
        trainer = make_keras_trainer()
        callback = keras.callbacks.ReduceLROnPlateau("val_loss", 0.5, patience=2, min_delta=9)
        controller = make_controller(trainer, hooks=[hooks.KerasCallback(callback)])
        for end in ends:
            controller.train_and_evaluate(end, eval_interval=4)
        rates.append(float(trainer.optimizer.learning_rate))
    assert rates == [pytest.approx(0.05)] * 2


def test_terminate_on_nan_stops_training_at_the_first_nan_loss(train, make_keras_trainer):
    trainer = make_keras_trainer(lambda: keras.optimizers.SGD(math.nan))
    controller = train(keras.callbacks.TerminateOnNaN(), 10, trainer=trainer)
    # The first step makes the weight NaN, so the loss of the second step is NaN.
    assert controller.step == 2


def test_callback_logs_contain_losses_when_training_on_two_replicas(
    train, make_keras_trainer, two_replicas
):
    trainer, callback = make_keras_trainer(strategy=two_replicas), BatchEvents()
    train(callback, 4, eval_interval=2, trainer=trainer, strategy=two_replicas)
    assert callback.logs["end 1"]["loss"] > callback.logs["epoch_end 1"]["val_loss"] > 0


def test_callback_does_not_add_the_optimizer_to_the_model_checkpoint(
    train, make_keras_trainer, tmp_path
):
    trainer = make_keras_trainer()
    train(Events(), 2, trainer=trainer)
    assert trainer.model.optimizer is trainer.optimizer
    path = tf.train.Checkpoint(model=trainer.model).save(str(tmp_path / "ckpt"))
    assert not any("optimizer" in name for name, _ in tf.train.list_variables(path))


@pytest.mark.parametrize(
    "name",
    [
        "ModelCheckpoint.__init__.__globals__.clear",
        "Callback.__subclasses__",
        "__builtins__",
        "callbacks",
        "earlystopping",
    ],
)
def test_name_that_is_not_a_keras_callback_class_raises_unknown_name_error(name):
    with pytest.raises(errors.UnknownNameError, match=f"no Keras callback '{name}'"):
        hooks.KerasCallback(name)


def test_callback_runs_at_every_step_by_default_only_if_it_has_batch_methods():
    assert hooks.KerasCallback(Events()).every_n_steps == 0
    assert hooks.KerasCallback(BatchEvents()).every_n_steps == 1
    assert hooks.KerasCallback(BatchEvents(), every_n_steps=50).every_n_steps == 50


class StopsAtStepSix(keras.callbacks.Callback):
    """A callback that stops training in the middle of an epoch."""

    def __init__(self):
        super().__init__()
        self.num_steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.num_steps += 1
        if self.num_steps == 6:
            self.model.stop_training = True


def _early_stopping(patience=2):
    # With this `min_delta`, no evaluation after the first one is an improvement.
    return keras.callbacks.EarlyStopping("val_loss", min_delta=100.0, patience=patience)


@pytest.fixture
def start(experiment, make_task, tmp_path):
    """Return a function that starts the same run with callbacks and returns its last step."""

    def start(*callbacks, eval_interval=2, train_actions=(), recovery_max_trials=0):
        params = experiment(
            trainer={
                "train_steps": 12,
                "steps_per_loop": 2,
                "validation_interval": eval_interval,
                "recovery_max_trials": recovery_max_trials,
            }
        )
        steps = []
        noting = hooks.LambdaHook(after_train=lambda hook, _: steps.append(hook.controller.step))
        listed = [*map(hooks.KerasCallback, callbacks), noting]
        arguments = (None, make_task(params), "train_and_eval", params, str(tmp_path))
        train_lib.run_experiment(*arguments, hooks=listed, train_actions=train_actions)
        return steps[-1]

    return start


@pytest.mark.parametrize(("callback", "interval"), [(_early_stopping, 2), (StopsAtStepSix, 4)])
def test_run_stopped_by_a_callback_trains_no_further_step_when_started_again(
    start, callback, interval
):
    assert [start(callback(), eval_interval=interval) for _ in range(3)] == [6, 6, 6]


def test_stopped_run_continues_if_the_patience_of_keras_early_stopping_is_increased(start):
    assert [start(_early_stopping(patience)) for patience in (2, 2, 4)] == [6, 6, 10]


def test_stopped_run_continues_if_the_callback_that_stopped_it_is_removed_from_the_hooks(start):
    # The remaining callback moves to the position of the removed one.
    before, after = Events(), Events()
    assert [start(_early_stopping(), before), start(after)] == [6, 12]
    # The number of the epoch belongs to the run, so it does not start at 0 again.
    ended = [event for event in before.events if event.startswith("epoch_end")]
    begun = [event for event in after.events if event.startswith("epoch_begin")]
    assert (ended[-1], begun[0]) == ("epoch_end 2", "epoch_begin 3")


def test_callback_state_is_reset_with_a_warning_if_the_monitored_metric_has_changed(start, caplog):
    other = keras.callbacks.EarlyStopping("loss", min_delta=100.0, patience=2)
    assert [start(_early_stopping()), start(other)] == [6, 12]
    assert "EarlyStopping with the monitor `loss` starts anew" in caplog.text


def test_run_continued_with_more_patience_is_not_stopped_again_by_a_recovery(start):
    outputs = []

    def spoil_once(output):
        # The first report, at step 8, precedes the first new checkpoint.
        outputs.append(output)
        if len(outputs) == 1:
            output["training_loss"] = math.nan

    start(_early_stopping(2))
    last_step = start(_early_stopping(4), train_actions=[spoil_once], recovery_max_trials=1)
    # Reports at steps 8, again 8, and 10.
    assert (last_step, len(outputs)) == (10, 3)


def test_run_stopped_by_two_callbacks_does_not_continue_if_only_one_gets_more_patience(start):
    assert [start(_early_stopping(p), _early_stopping(2)) for p in (2, 4)] == [6, 6]


@pytest.mark.parametrize(
    ("callback", "prefix", "remedy"),
    [
        (_early_stopping, "early stopping: EarlyStopping", "increase `patience` or remove"),
        (StopsAtStepSix, "StopsAtStepSix", "remove"),
    ],
)
def test_stop_reason_of_a_restarted_run_that_a_callback_had_stopped_says_how_to_continue(
    train, make_keras_trainer, callback, prefix, remedy
):
    trainer = make_keras_trainer()
    stopped, restarted = (hooks.KerasCallback(callback()) for _ in range(2))
    train(stopped, 12, eval_interval=2, trainer=trainer)
    restarted.load_state_dict(stopped.state_dict())
    controller = train(restarted, 12, eval_interval=2, trainer=trainer)
    assert controller.stop_reason == (
        f"{prefix} stopped the run before this start; to train on, {remedy} the callback"
    )


def test_recovery_to_the_initial_state_keeps_the_learning_rate_set_at_the_beginning_of_the_epoch(
    experiment, make_task, tmp_path
):
    def train(name, *actions):
        params = experiment(trainer={"recovery_max_trials": 1})
        callback = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.5 * rate)
        model, _ = train_lib.run_experiment(
            None,
            make_task(params),
            "train",
            params,
            str(tmp_path / name),
            hooks=[hooks.KerasCallback(callback)],
            train_actions=actions,
        )
        return model.dense.kernel.numpy()

    outputs = []

    def spoil_once(output):
        # The first report precedes the first regular checkpoint.
        outputs.append(output)
        if len(outputs) == 1:
            output["training_loss"] = math.nan

    np.testing.assert_array_equal(train("recovered", spoil_once), train("unbroken"))
    assert len(outputs) == 3


def test_recovery_notifies_every_hook_even_if_one_of_them_raises(experiment, make_task, tmp_path):
    restored = []

    def spoil(output):
        output["training_loss"] = math.nan

    def fail(hook):
        raise ArithmeticError

    listed = [
        hooks.LambdaHook(after_restore=fail),
        hooks.LambdaHook(after_restore=lambda hook: restored.append(hook.controller.step)),
    ]
    params = experiment(trainer={"recovery_max_trials": 1})
    arguments = (None, make_task(params), "train", params, str(tmp_path))
    with pytest.raises(ArithmeticError):
        train_lib.run_experiment(*arguments, hooks=listed, train_actions=[spoil])
    assert restored == [0]
