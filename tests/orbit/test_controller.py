import itertools
import json
import os

import keras
import pytest
import tensorflow as tf

from official_lite import orbit, telemetry
from official_lite.checkpoint import commit
from official_lite.common import errors


def test_controller_restores_the_latest_checkpoint(make_trainer, make_controller, make_manager):
    trainer = make_trainer()
    make_controller(trainer, checkpoint_manager=make_manager(trainer, 5)).train(8)
    resumed = make_trainer()
    make_controller(resumed, checkpoint_manager=make_manager(resumed, 5))
    assert (resumed.global_step.numpy(), resumed.weight.numpy()) == (8, 8)
    later = make_trainer()
    manager = make_manager(later)
    controller = make_controller(later, checkpoint_manager=manager, restore=False)
    assert later.global_step.numpy() == 0
    assert controller.model_dir == manager.directory
    controller.restore_checkpoint()
    assert later.global_step.numpy() == 8


def test_trainer_is_notified_of_each_restored_checkpoint(
    make_trainer, make_controller, make_manager
):
    def listening():
        trainer = make_trainer()
        trainer.after_restore = lambda: notified.append(int(trainer.global_step.numpy()))
        return trainer

    notified = []
    trainer = listening()
    manager = make_manager(trainer, 2)
    make_controller(trainer, checkpoint_manager=manager).train(4)
    assert notified == [], "there was nothing to restore"
    resumed = listening()
    controller = make_controller(resumed, checkpoint_manager=make_manager(resumed))
    controller.restore_checkpoint(manager.checkpoints[0])
    assert notified == [4, 2]


def test_continuous_evaluation_evaluates_every_checkpoint_in_order(
    make_trainer, make_controller, make_manager, recording_writer
):
    trainer = make_trainer()
    make_controller(trainer, checkpoint_manager=make_manager(trainer, 2), writers=[]).train(6)
    watcher = make_trainer()
    controller = make_controller(watcher, checkpoint_manager=make_manager(watcher))
    logs = controller.evaluate_continuously(timeout=0)
    assert recording_writer.steps("validation") == [2, 4, 6]
    assert logs["accuracy"] == 6


def test_continuous_evaluation_skips_a_removed_checkpoint(
    make_trainer, make_controller, make_manager, recording_writer
):
    trainer = make_trainer()
    manager = make_manager(trainer, 2)
    make_controller(trainer, checkpoint_manager=manager, writers=[]).train(6)

    def remove_second(output):
        for suffix in (".index", ".data-00000-of-00001"):
            tf.io.gfile.remove(manager.checkpoints[1] + suffix)
        controller.eval_actions = ()

    controller = make_controller(trainer, checkpoint_manager=manager, eval_actions=[remove_second])
    controller.evaluate_continuously(timeout=0)
    assert recording_writer.steps("validation") == [2, 6]


def test_continuous_evaluation_without_a_checkpoint_raises_an_error(
    make_trainer, make_controller, make_manager
):
    trainer = make_trainer()
    controller = make_controller(trainer, checkpoint_manager=make_manager(trainer))
    with pytest.raises(errors.CheckpointError, match="No checkpoint"):
        controller.evaluate_continuously(timeout=0)


def test_request_stop_ends_continuous_evaluation(
    make_trainer, make_controller, make_manager, recording_writer
):
    trainer = make_trainer()
    manager = make_manager(trainer, 2)
    make_controller(trainer, checkpoint_manager=manager, writers=[]).train(6)
    controller = make_controller(
        trainer,
        checkpoint_manager=manager,
        eval_actions=[lambda _: controller.request_stop("seen enough")],
    )
    controller.evaluate_continuously()
    assert recording_writer.steps("validation") == [2]


def test_request_stop_ends_the_wait_for_a_checkpoint(make_trainer, make_controller, make_manager):
    trainer = make_trainer()
    controller = make_controller(trainer, checkpoint_manager=make_manager(trainer))
    timeouts = []

    def stop_at_the_first_timeout():
        timeouts.append(len(timeouts))
        controller.request_stop("not needed any more")
        return len(timeouts) > 1

    logs = controller.evaluate_continuously(timeout=0, timeout_fn=stop_at_the_first_timeout)
    assert (logs, controller.stop_reason) == (None, "not needed any more")
    assert timeouts == [0]


def test_restored_checkpoint_is_evaluated_even_if_training_has_just_removed_it(
    make_trainer, make_controller, make_manager, recording_writer, monkeypatch
):
    trainer = make_trainer()
    manager = make_manager(trainer, 2)
    make_controller(trainer, checkpoint_manager=manager, writers=[]).train(2)
    restore = manager.restore

    def restore_and_remove(path):
        restore(path)
        commit.remove_checkpoint(path)

    controller = make_controller(trainer, trainer=None, checkpoint_manager=manager)
    monkeypatch.setattr(manager, "restore", restore_and_remove)
    controller.evaluate_continuously(timeout=0)
    assert recording_writer.steps("validation") == [2]


def test_evaluation_steps_per_second_count_only_the_steps_that_ran(
    make_trainer, make_controller, monkeypatch
):
    seconds = itertools.count()
    monkeypatch.setattr("time.monotonic", lambda: next(seconds))
    controller = make_controller(make_trainer())
    # The evaluation data have 4 batches.
    rates = [controller.evaluate(steps)["steps_per_second"] for steps in (4, 100)]
    assert rates[0] == rates[1] > 0


def test_steps_per_loop_may_be_a_function_of_the_step(make_trainer, make_controller):
    trainer = make_trainer()
    controller = make_controller(trainer, steps_per_loop=lambda step: 2 if step < 4 else 5)
    assert controller.steps_per_loop == 2
    controller.train(9)
    assert controller.steps_per_loop == 5
    assert [event for event in trainer.events if "end" in event] == ["end 2", "end 4", "end 9"]


def test_controller_trains_on_two_replicas(make_controller, two_replicas):
    strategy = two_replicas

    class Trainer(orbit.StandardTrainer):
        def __init__(self):
            self.weight = keras.Variable(1.0)
            self.optimizer = keras.optimizers.SGD(0.5)
            self.optimizer.build([self.weight])
            self.global_step = self.optimizer.iterations
            dataset = tf.data.Dataset.from_tensors(1.0).repeat().batch(2)
            super().__init__(orbit.utils.make_distributed_dataset(strategy, dataset))

        def train_step(self, iterator):
            def replica_step(x):
                self.optimizer.apply_gradients([(tf.reduce_sum(x), self.weight)])

            strategy.run(replica_step, args=(next(iterator),))

    with strategy.scope():
        trainer = Trainer()
    make_controller(trainer, evaluator=None, strategy=strategy).train(3)
    assert int(trainer.global_step.numpy()) == 3
    assert float(trainer.weight.numpy()) == pytest.approx(1.0 - 3 * 2 * 0.5)


def test_controllers_of_one_trainer_share_an_event_storage(make_trainer, make_controller):
    trainer = make_trainer()
    first, second = make_controller(trainer), make_controller(trainer)
    assert first.storage is second.storage


def test_scalars_logged_during_an_evaluation_step_are_not_recorded(
    make_trainer, make_controller, recording_writer
):
    class Loud(make_trainer):
        def eval_step(self, iterator):
            next(iterator)
            telemetry.put_scalar("loud", 1.0)

    make_controller(Loud()).train_and_evaluate(10, eval_interval=5)
    assert recording_writer.steps("validation") == [5, 10]
    assert not any("loud" in record.flat() for record in recording_writer.records)


def test_values_that_hooks_log_in_an_evaluation_without_training_are_recorded(
    make_trainer, make_controller, recording_writer
):
    class Counts(orbit.Hook):
        def after_eval(self, logs):
            self.controller.storage.put_scalar("seen", 1.0)

    make_controller(make_trainer(), hooks=[Counts()]).evaluate()
    assert [record.flat().get("seen") for record in recording_writer.records] == [None, 1.0]


class _Rewound(telemetry.Writer):
    """A writer that records the calls of its methods."""

    def __init__(self):
        self.calls = []

    def write(self, record):
        self.calls.append(f"write {record.split} {record.step}")

    def sync(self):
        self.calls.append("sync")

    def rewind(self, step):
        self.calls.append(f"rewind {step}")


def test_first_train_call_rewinds_the_writers_but_an_evaluation_does_not(
    make_trainer, make_controller, make_manager
):
    trainer = make_trainer()
    make_controller(trainer, checkpoint_manager=make_manager(trainer, 5)).train(5)
    writer, resumed = _Rewound(), make_trainer()
    manager = make_manager(resumed)
    controller = make_controller(resumed, checkpoint_manager=manager, writers=[writer])
    controller.evaluate()
    assert writer.calls == ["write validation 5"]
    controller.train(7)
    controller.train(8)
    assert writer.calls[1:] == ["rewind 5", "write train 7", "write train 8"]


def test_run_that_starts_without_a_checkpoint_removes_all_earlier_records(
    make_trainer, make_controller, make_manager
):
    writer, trainer = _Rewound(), make_trainer()
    manager = make_manager(trainer)
    make_controller(trainer, checkpoint_manager=manager, writers=[writer]).train(1)
    assert writer.calls == ["rewind 0", "write train 1"]


def test_evaluation_job_removes_no_records(make_trainer, make_controller, make_manager):
    trainer = make_trainer()
    make_controller(trainer, checkpoint_manager=make_manager(trainer, 2)).train(4)
    writer = _Rewound()
    watcher = make_controller(
        trainer, trainer=None, checkpoint_manager=make_manager(trainer), writers=[writer]
    )
    watcher.evaluate_continuously(timeout=0)
    assert writer.calls == ["write validation 2", "write validation 4"]


@pytest.mark.parametrize(("in_background", "is_ours"), [(False, True), (True, True), (True, False)])
def test_records_are_synced_before_the_checkpoint_of_their_step_is_complete(
    make_trainer, make_controller, make_manager, monkeypatch, tmp_path, in_background, is_ours
):
    def committing(source, target):
        if target.endswith("ckpt-2.commit.json"):
            writer.calls.append("counts")
        rename(source, target)

    writer, trainer, rename = _Rewound(), make_trainer(), os.replace
    manager = make_manager(trainer, 2)
    if not is_ours:
        manager = tf.train.CheckpointManager(
            tf.train.Checkpoint(step=trainer.global_step),
            str(tmp_path / "of_tensorflow"),
            max_to_keep=1,
            step_counter=trainer.global_step,
            checkpoint_interval=2,
        )
    monkeypatch.setattr("os.replace", committing)
    make_controller(
        trainer,
        checkpoint_manager=manager,
        enable_async_checkpointing=in_background,
        writers=[writer],
    ).train_and_evaluate(2)
    assert writer.calls[:4] == ["rewind 0", "write train 2", "write validation 2", "sync"]
    # TensorFlow's manager writes no commit file.
    assert writer.calls[4:] == (["counts"] if is_ours else ["sync"])


def test_records_are_synced_before_an_action_saves_a_checkpoint(
    make_trainer, make_controller, make_manager
):
    writer, trainer = _Rewound(), make_trainer()
    manager = make_manager(trainer)
    make_controller(
        trainer,
        checkpoint_manager=manager,
        writers=[writer],
        train_actions=[lambda _: writer.calls.append(manager.save(checkpoint_number=2))],
    ).train(2)
    assert writer.calls == ["rewind 0", "write train 2", "sync", manager.latest_checkpoint]


def test_steps_repeated_after_an_action_restores_a_checkpoint_are_recorded_once(
    make_trainer, make_controller, make_manager, tmp_path
):
    def set_back_once(_):
        if trainer.global_step.numpy() == 6 and not went_back:
            manager.restore_or_initialize()
            went_back.append(trainer.global_step.numpy())

    trainer, went_back = make_trainer(), []
    trainer.before_training = went_back.append
    manager = make_manager(trainer, 4)
    with telemetry.JsonLinesWriter(tmp_path / "m") as writer:
        make_controller(
            trainer,
            steps_per_loop=2,
            checkpoint_manager=manager,
            writers=[writer],
            restore=False,
            train_actions=[set_back_once],
        ).train(8)
    steps = [json.loads(line)["step"] for line in (tmp_path / "m").read_text().splitlines()]
    assert steps == [2, 4, 6, 8]
    assert went_back == [4, 4]


def test_evaluator_is_notified_of_the_start_of_training_and_of_each_checkpoint(
    make_trainer, make_controller, make_manager
):
    notified, trainer = [], make_trainer()
    trainer.before_training = lambda step: notified.append(f"begins at {step}")
    trainer.before_checkpoint = lambda: notified.append("saves")
    trainer.after_checkpoint = lambda step: notified.append(f"saved {step}")
    make_controller(trainer, checkpoint_manager=make_manager(trainer, 2)).train(4)
    assert notified == ["begins at 0", "saves", "saved 2", "saves", "saved 4"]


@pytest.mark.parametrize(
    ("arguments", "act", "named"),
    [
        ({"trainer": None, "evaluator": None}, str, "`trainer`, an `evaluator`"),
        ({"global_step": 3}, str, "`tf.Variable`"),
        ({"steps_per_loop": None}, str, "`steps_per_loop`"),
        ({"steps_per_loop": 0}, str, "`steps_per_loop` is 0"),
        ({"steps_per_loop": lambda step: 0}, lambda c: c.train(1), "`steps_per_loop` returned 0"),
        ({"summary_interval": -1}, str, "interval"),
        ({"evaluator": None}, lambda c: c.evaluate(), "`evaluator`"),
        ({"evaluator": None}, lambda c: c.train_and_evaluate(1), "`evaluator`"),
        ({"trainer": None}, lambda c: c.train(1), "`trainer`"),
        ({}, lambda c: c.save_checkpoint(), "`checkpoint_manager`"),
        ({}, lambda c: c.evaluate(steps=0), "`steps`"),
    ],
)
def test_invalid_or_missing_controller_argument_is_named_in_the_error(
    make_trainer, make_controller, arguments, act, named
):
    def use():
        act(make_controller(make_trainer(), **arguments))

    with pytest.raises(errors.ConfigValueError, match=named):
        use()
