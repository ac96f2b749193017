import os
import pathlib
import threading

import keras
import pytest
import tensorflow as tf

from official_lite import orbit
from official_lite.checkpoint import async_checkpoint_manager
from official_lite.common import errors
from official_lite.orbit import checkpointing
from tests import waiting


@pytest.fixture
def make_checkpointing(make_trainer, make_manager):
    def make(interval=None, trainer=None, **kwargs):
        manager = make_manager(trainer or make_trainer(), interval=interval)
        return checkpointing.Checkpointing(manager, tf.distribute.get_strategy(), **kwargs)

    return make


def test_checkpoint_is_due_when_any_interval_elapses(make_checkpointing):
    never = make_checkpointing()
    assert not never.has_intervals
    assert never.next_step(0) == float("inf")
    checkpoints = make_checkpointing(interval=10)
    checkpoints.add_interval(4)
    assert [step for step in range(21) if checkpoints.is_due(step)] == [4, 8, 10, 12, 16, 20]
    assert checkpoints.next_step(8) == 10


def test_error_for_a_damaged_checkpoint_names_the_checkpoint(make_checkpointing, make_trainer):
    trainer = make_trainer()
    path = make_checkpointing(trainer=trainer).save(step=5)
    with open(path + ".index", "wb") as index:
        index.write(b"damaged")
    with pytest.raises(errors.CheckpointError, match=r"can be restored: ckpt-5\."):
        make_checkpointing(trainer=make_trainer()).restore()
    with pytest.raises(errors.CheckpointError, match=r"ckpt-5 can't be restored"):
        make_checkpointing(trainer=make_trainer()).restore(path)


@pytest.mark.parametrize("in_background", [False, True])
def test_completed_checkpoint_is_announced_exactly_once(in_background, make_checkpointing):
    checkpoints = make_checkpointing(in_background=in_background)
    assert checkpoints.take_complete() is None
    path = checkpoints.save(step=5)
    checkpoints.wait()
    assert tf.train.latest_checkpoint(checkpoints.directory) == path
    assert checkpoints.take_complete() == path
    assert checkpoints.take_complete() is None


@pytest.fixture
def may_write(monkeypatch):
    """Yield an event for which saves wait after reading the state and before writing it."""
    may_write = threading.Event()
    write = tf.train.experimental.ShardByTaskPolicy.__call__
    monkeypatch.setattr(
        tf.train.experimental.ShardByTaskPolicy,
        "__call__",
        lambda self, tensors: may_write.wait() and write(self, tensors),
    )
    yield may_write
    may_write.set()


def test_checkpoint_that_is_being_written_is_not_announced_as_complete(
    make_checkpointing, may_write
):
    checkpoints = make_checkpointing(in_background=True)
    path = checkpoints.save(step=5)
    assert checkpoints.take_complete() is None
    may_write.set()
    checkpoints.wait()
    assert checkpoints.take_complete() == path


def test_restore_waits_for_the_save_in_progress(
    make_checkpointing, make_trainer, may_write, monkeypatch
):
    def write_and_wait(save):
        may_write.set()
        wait(save)

    wait = async_checkpoint_manager.BackgroundSave.wait
    monkeypatch.setattr(async_checkpoint_manager.BackgroundSave, "wait", write_and_wait)
    trainer = make_trainer()
    checkpoints = make_checkpointing(trainer=trainer, in_background=True)
    trainer.weight.assign(3.0)
    path = checkpoints.save(step=5)
    trainer.weight.assign(4.0)
    assert checkpoints.restore(path) == path
    assert trainer.weight.numpy() == 3.0


def test_checkpoint_whose_save_failed_is_not_announced_as_complete(make_checkpointing, may_write):
    checkpoints = make_checkpointing(in_background=True)
    checkpoints.save(step=5)
    directory = pathlib.Path(checkpoints.directory)
    directory.rmdir()
    directory.write_text("in the way")
    may_write.set()
    with pytest.raises(tf.errors.OpError):
        checkpoints.wait()
    assert checkpoints.take_complete() is None


def test_checkpoint_saved_outside_training_is_complete_when_save_checkpoint_returns(
    make_trainer, make_controller, make_manager
):
    trainer = make_trainer()
    manager = make_manager(trainer)
    controller = make_controller(
        trainer, checkpoint_manager=manager, enable_async_checkpointing=True
    )
    controller.train(3)
    assert manager.latest_checkpoint is None
    path = controller.save_checkpoint()
    assert path.endswith("ckpt-3")
    assert tf.train.latest_checkpoint(manager.directory) == path


def test_each_async_checkpoint_contains_the_values_of_keras_variables_at_its_step(
    tmp_path, make_controller
):
    class Trainer(orbit.StandardTrainer):
        def __init__(self):
            self.weight = keras.Variable(0.0)
            self.step = keras.Variable(0, dtype="int64", trainable=False)
            super().__init__(tf.data.Dataset.from_tensors(1.0).repeat())

        def train_step(self, iterator):
            self.weight.assign_add(next(iterator))
            self.step.assign_add(1)

    trainer = Trainer()
    manager = async_checkpoint_manager.AsyncCheckpointManager(
        tf.train.Checkpoint(weight=trainer.weight),
        str(tmp_path),
        max_to_keep=None,
        step_counter=trainer.step.value,
        checkpoint_interval=2,
    )
    orbit.Controller(
        trainer=trainer,
        global_step=trainer.step,
        steps_per_loop=2,
        checkpoint_manager=manager,
        enable_async_checkpointing=True,
    ).train(6)
    assert len(manager.checkpoints) == 3
    assert tf.train.load_variable(manager.checkpoints[1], "weight/.ATTRIBUTES/VARIABLE_VALUE") == 4


class HoldsSavesUntil(orbit.Hook):
    """A hook that blocks checkpoint writes until a step has ended."""

    every_n_steps = 1

    def __init__(self, step, monkeypatch):
        self.step, self.may_write, self.was_held = step, threading.Event(), False
        policy = tf.train.experimental.ShardByTaskPolicy
        write = policy.__call__

        def hold(policy, tensors):
            self.was_held = self.may_write.wait(timeout=waiting.SECONDS)
            return write(policy, tensors)

        monkeypatch.setattr(policy, "__call__", hold)

    def after_step(self):
        if self.controller.step == self.step:
            self.may_write.set()


def test_training_continues_while_a_checkpoint_is_written(
    make_trainer, make_controller, make_manager, monkeypatch
):
    trainer, hold = make_trainer(), HoldsSavesUntil(15, monkeypatch)
    manager = make_manager(trainer, 10)
    make_controller(
        trainer, checkpoint_manager=manager, hooks=[hold], enable_async_checkpointing=True
    ).train(20)
    assert hold.was_held, "step 15 came before the checkpoint of step 10 was complete"
    saved = tf.train.load_variable(manager.checkpoints[0], "weight/.ATTRIBUTES/VARIABLE_VALUE")
    assert saved == 10


def test_hooks_are_notified_when_a_checkpoint_is_complete(
    tmp_path, make_trainer, make_controller, monkeypatch
):
    class Copy(orbit.Hook):
        every_n_steps = 16
        notified = ()

        def after_step(self):
            if self.controller.step == 16:
                waiting.wait_for(lambda: not self.controller.checkpoint_manager.is_saving)

        def on_checkpoint(self, path):
            assert tf.train.latest_checkpoint(str(tmp_path)) == path
            self.notified = (*self.notified, (os.path.basename(path), self.controller.step))

    trainer, copy = make_trainer(), Copy()
    manager = async_checkpoint_manager.AsyncCheckpointManager(
        tf.train.Checkpoint(step=trainer.global_step),
        str(tmp_path),
        max_to_keep=1,
        step_counter=trainer.global_step,
        checkpoint_interval=10,
    )
    make_controller(
        trainer,
        checkpoint_manager=manager,
        hooks=[HoldsSavesUntil(15, monkeypatch), copy],
        enable_async_checkpointing=True,
    ).train(40)
    assert [name for name, _ in copy.notified] == ["ckpt-10", "ckpt-20", "ckpt-30", "ckpt-40"]
    assert copy.notified[0] == ("ckpt-10", 16), (
        "the hook must be notified at the first event after the checkpoint was complete"
    )


def test_save_that_fails_in_the_background_ends_training(
    tmp_path, make_trainer, make_controller, make_manager, monkeypatch, make_log
):
    class BreakDisk(orbit.Hook):
        every_n_steps = 15

        def after_step(self):
            (tmp_path / "model").rmdir()
            (tmp_path / "model").write_text("in the way")

    trainer, log = make_trainer(), make_log(every_n_steps=0)
    controller = make_controller(
        trainer,
        checkpoint_manager=make_manager(trainer, 10),
        hooks=[BreakDisk(), HoldsSavesUntil(16, monkeypatch), log],
        enable_async_checkpointing=True,
    )
    with pytest.raises(tf.errors.OpError):
        controller.train(1000)
    assert controller.step <= 20
    assert [event.split()[0] for event in log.events] == [
        "before_train",
        "on_exception",
        "after_train",
    ]


def test_failed_training_completes_a_checkpoint_in_progress(
    make_trainer, make_controller, make_manager, monkeypatch, make_log, fail_at
):
    trainer, log = make_trainer(), make_log(every_n_steps=0)
    manager = make_manager(trainer, 10)
    hold = HoldsSavesUntil(12, monkeypatch)
    controller = make_controller(
        trainer,
        checkpoint_manager=manager,
        hooks=[hold, fail_at(12), log],
        enable_async_checkpointing=True,
    )
    with pytest.raises(ArithmeticError, match="bad step"):
        controller.train(20)
    assert log.events[1] == "on_checkpoint ckpt-10"
    assert log.events[-1] == "after_train False"


def test_only_checkpoints_saved_before_a_pending_evaluation_are_marked_for_it(tmp_path):
    checkpoint = tf.train.Checkpoint(step=tf.Variable(1))
    with checkpointing.marked(checkpoint):
        marked = checkpoint.write(str(tmp_path / "marked"))
    plain = checkpoint.write(str(tmp_path / "plain"))
    assert checkpointing.find_mark(checkpoint, marked) is not None
    assert checkpointing.find_mark(checkpoint, plain) is None


def test_checkpoint_with_a_pending_evaluation_restores_like_any_other_checkpoint(tmp_path):
    checkpoint = tf.train.Checkpoint(step=tf.Variable(7))
    with checkpointing.marked(checkpoint):
        path = checkpoint.write(str(tmp_path / "marked"))
    other = tf.train.Checkpoint(step=tf.Variable(0))
    status = other.read(path)
    mark = checkpointing.find_mark(other, path)
    status.assert_consumed()
    assert mark.numpy()
    assert other.step.numpy() == 7


def test_user_written_training_loop_outside_the_strategy_scope_waits_for_multi_process_saves(
    make_trainer, make_controller, make_manager, monkeypatch
):
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    strategy.extended._cluster_resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": ["localhost:1", "localhost:2"]})
    )
    started = []
    start = async_checkpoint_manager.BackgroundSave.start
    monkeypatch.setattr(
        async_checkpoint_manager.BackgroundSave,
        "start",
        lambda self, save: started.append(self) or start(self, save),
    )
    trainer = make_trainer()
    manager = make_manager(trainer, 10)
    make_controller(
        trainer, strategy=strategy, checkpoint_manager=manager, enable_async_checkpointing=True
    ).train(10)
    assert manager.latest_checkpoint.endswith("ckpt-10")
    assert not started
