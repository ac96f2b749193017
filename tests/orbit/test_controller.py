import os
import threading
import time

import keras
import pytest
import tensorflow as tf

from official_lite import orbit, telemetry
from official_lite.checkpoint import async_checkpoint_manager
from official_lite.common import errors


class Log(orbit.Hook):
    """Writes down its events, with `iter` during a step."""

    def __init__(self, name="hook", every_n_steps=1):
        self.name, self.every_n_steps, self.events = name, every_n_steps, []

    def before_train(self):
        self.events.append("before_train")

    def before_step(self):
        self.events.append(f"before_step {self.iter}")

    def after_step(self):
        self.events.append(f"after_step {self.iter}")

    def after_epoch(self):
        self.events.append("after_epoch")

    def after_eval(self, logs):
        self.events.append(f"after_eval {sorted(logs)}")

    def on_checkpoint(self, path):
        self.events.append(f"on_checkpoint {os.path.basename(path)}")

    def on_exception(self, error):
        self.events.append(f"on_exception {error}")

    def after_train(self, success):
        self.events.append(f"after_train {success}")


class StopAt(orbit.Hook):
    every_n_steps = 1

    def __init__(self, step):
        self.step = step

    def after_step(self):
        if self.controller.global_step.numpy() == self.step:
            self.controller.request_stop("enough")


class FailAt(orbit.Hook):
    every_n_steps = 1

    def __init__(self, step):
        self.step = step

    def after_step(self):
        if self.controller.global_step.numpy() == self.step:
            raise ArithmeticError("bad step")


def test_each_step_is_trained_once(make_trainer, make_controller):
    trainer = make_trainer()
    make_controller(trainer, steps_per_loop=4).train(steps=10)
    assert trainer.weight.numpy() == 10
    assert trainer.events == ["begin 0", "end 4", "begin 4", "end 8", "begin 8", "end 10"]


def test_resumed_run_evaluates_on_the_absolute_grid(make_trainer, make_controller):
    trainer = make_trainer()
    trainer.global_step.assign(15)
    make_controller(trainer).train_and_evaluate(30, eval_interval=10)
    assert [event for event in trainer.events if "eval" in event] == ["eval 20", "eval 30"]


def test_intervals_need_not_divide_one_another(make_trainer, make_controller, make_manager):
    trainer, hook = make_trainer(), Log(every_n_steps=0)
    controller = make_controller(
        trainer, checkpoint_manager=make_manager(trainer, 10), hooks=[hook]
    )
    controller.train_and_evaluate(25, eval_interval=7)
    evals = [event for event in trainer.events if "eval" in event]
    saves = [event.split()[-1] for event in hook.events if "checkpoint" in event]
    assert evals == ["eval 7", "eval 14", "eval 21", "eval 25"]
    assert saves == ["ckpt-10", "ckpt-20", "ckpt-25"]


def test_cut_for_a_hook_or_a_checkpoint_neither_resets_nor_reports(
    make_trainer, make_controller, make_manager, recording_writer
):
    trainer = make_trainer()
    controller = make_controller(
        trainer,
        steps_per_loop=20,
        hooks=[Log(every_n_steps=3)],
        checkpoint_manager=make_manager(trainer, 7),
    )
    controller.train(40)
    assert trainer.events == ["begin 0", "end 20", "begin 20", "end 40"]
    assert recording_writer.steps("train") == [20, 40]
    assert [record.values["steps"] for record in recording_writer.records] == [20, 20]


def test_all_loop_lengths_share_one_trace(make_trainer, make_controller):
    trainer = make_trainer()
    make_controller(trainer, steps_per_loop=10, hooks=[Log(every_n_steps=7)]).train(35)
    assert trainer.weight.numpy() == 35
    assert trainer.traces == 1


def test_hooks_see_every_step_in_order(make_trainer, make_controller):
    hook = Log()
    controller = make_controller(make_trainer(), hooks=[hook])
    controller.train(3)
    assert hook.events == [
        "before_train",
        *["before_step 0", "after_step 0"],
        *["before_step 1", "after_step 1"],
        *["before_step 2", "after_step 2"],
        "after_train True",
    ]
    assert controller.iter == 3


def test_resumed_run_shows_hooks_the_steps_that_are_left(make_trainer, make_controller):
    trainer, hook = make_trainer(), Log()
    trainer.global_step.assign(50)
    make_controller(trainer, hooks=[hook]).train(53)
    assert [event for event in hook.events if "after_step" in event] == [
        f"after_step {step}" for step in (50, 51, 52)
    ]


def test_hooks_evaluation_and_checkpoint_come_in_this_order(
    make_trainer, make_controller, make_manager, recording_writer
):
    trainer, hook = make_trainer(), Log()
    order = hook.events
    recording_writer.write = lambda record: order.append(f"write {record.split}")
    controller = make_controller(
        trainer,
        hooks=[hook],
        checkpoint_manager=make_manager(trainer, 1),
        train_actions=[lambda output: order.append("train action")],
        eval_actions=[lambda output: order.append("eval action")],
    )
    controller.train_and_evaluate(1)
    assert order[2:] == [
        "after_step 0",
        "train action",
        "eval action",
        "after_eval ['accuracy']",
        "on_checkpoint ckpt-1",
        "write train",
        "write validation",
        "after_train True",
    ]


def test_epochs_are_told_at_their_end(make_trainer, make_controller):
    hook = Log(every_n_steps=0)
    make_controller(make_trainer(), hooks=[hook], steps_per_epoch=4).train(10)
    assert hook.events.count("after_epoch") == 2


def test_stop_request_ends_with_evaluation_and_checkpoint(
    make_trainer, make_controller, make_manager, recording_writer
):
    trainer, hook = make_trainer(), Log(every_n_steps=0)
    manager = make_manager(trainer, 10)
    controller = make_controller(trainer, hooks=[StopAt(13), hook], checkpoint_manager=manager)
    logs = controller.train_and_evaluate(100, eval_interval=10)
    assert controller.stop_reason == "enough"
    assert trainer.global_step.numpy() == 13
    assert logs["accuracy"] == 13
    assert manager.latest_checkpoint.endswith("ckpt-13")
    assert recording_writer.steps("validation") == [10, 13]
    assert hook.events[-1] == "after_train True"


def test_stop_on_an_evaluated_step_does_not_evaluate_twice(make_trainer, make_controller):
    trainer = make_trainer()
    controller = make_controller(trainer, eval_actions=[lambda _: controller.request_stop("good")])
    controller.train_and_evaluate(100, eval_interval=10)
    assert [event for event in trainer.events if "eval" in event] == ["eval 10"]


def test_next_run_goes_on_after_a_stop(make_trainer, make_controller):
    trainer = make_trainer()
    controller = make_controller(trainer, hooks=[StopAt(5)])
    controller.train(10)
    controller.train(10)
    assert trainer.global_step.numpy() == 10
    assert controller.stop_reason is None


def test_failure_reaches_every_hook_and_the_caller(make_trainer, make_controller):
    first, second = Log(), Log()
    controller = make_controller(make_trainer(), hooks=[first, FailAt(2), second])
    with pytest.raises(ArithmeticError, match="bad step"):
        controller.train(2)
    for hook in (first, second):
        assert hook.events[-2:] == ["on_exception bad step", "after_train False"]
        assert "after_step 1" in hook.events


def test_first_error_is_the_one_that_surfaces(make_trainer, make_controller):
    class Clumsy(orbit.Hook):
        def after_train(self, success):
            raise KeyError("later")

    last = Log()
    controller = make_controller(make_trainer(), hooks=[FailAt(1), Clumsy(), last])
    with pytest.raises(ArithmeticError):
        controller.train(2)
    assert last.events[-1] == "after_train False"


def test_failing_end_hook_does_not_skip_the_others(make_trainer, make_controller):
    class Clumsy(orbit.Hook):
        def after_train(self, success):
            raise KeyError("at the end")

    last = Log()
    with pytest.raises(KeyError, match="at the end"):
        make_controller(make_trainer(), hooks=[Clumsy(), last]).train(1)
    assert last.events[-1] == "after_train True"


def test_report_before_a_failure_is_written(make_trainer, make_controller, recording_writer):
    def refuse(output):
        raise errors.DivergedError("loss")

    controller = make_controller(make_trainer(), train_actions=[refuse])
    with pytest.raises(errors.DivergedError):
        controller.train(5)
    assert recording_writer.steps("train") == [5]
    assert not recording_writer.is_closed, "whoever opened a writer closes it"


def test_run_after_a_failure_begins_a_new_interval(make_trainer, make_controller):
    trainer, hook = make_trainer(), FailAt(2)
    controller = make_controller(trainer, hooks=[hook])
    with pytest.raises(ArithmeticError):
        controller.train(5)
    hook.step = None
    controller.train(5)
    assert trainer.events == ["begin 0", "begin 2", "end 5"]


@pytest.mark.parametrize("while_loop", [True, False])
def test_end_of_data_is_an_error_that_names_the_step(
    make_trainer, make_controller, make_manager, while_loop
):
    options = orbit.StandardTrainerOptions(use_tf_while_loop=while_loop)
    trainer = make_trainer(tf.data.Dataset.range(4).map(lambda _: 1.0), options)
    manager = make_manager(trainer, 100)
    controller = make_controller(trainer, checkpoint_manager=manager)
    with pytest.raises(errors.DataError, match=r"around step [45]"):
        controller.train(15)
    assert trainer.weight.numpy() == 4
    assert manager.latest_checkpoint is None


def test_end_of_data_in_a_plain_trainer_is_the_same_error(make_controller):
    class Plain(orbit.AbstractTrainer):
        def __init__(self):
            self.global_step = orbit.utils.create_global_step()

        def train(self, num_steps):
            next(iter([]))

    with pytest.raises(errors.DataError, match="ended around step 0"):
        make_controller(Plain(), evaluator=None).train(5)


def test_hidden_end_of_data_is_an_error(make_trainer, make_controller):
    class Swallowing(make_trainer):
        def create_train_loop_fn(self):
            return orbit.utils.create_loop_fn(self.train_step)

    trainer = Swallowing(tf.data.Dataset.range(4).map(lambda _: 1.0))
    with pytest.raises(RuntimeError, match="from step 0 to step 10"):
        make_controller(trainer).train(10)


def test_plain_trainer_reports_after_every_call(make_controller, recording_writer):
    class Plain(orbit.AbstractTrainer):
        def __init__(self):
            self.global_step = orbit.utils.create_global_step()

        def train(self, num_steps):
            self.global_step.assign_add(tf.cast(num_steps, tf.int64))
            return {"steps": num_steps}

    make_controller(Plain(), evaluator=None, hooks=[Log(every_n_steps=4)]).train(10)
    assert [record.values["steps"] for record in recording_writer.records] == [4, 4, 2]


def test_restored_checkpoint_is_trained_again_and_not_saved_bad(
    make_trainer, make_controller, make_manager
):
    trainer, hook = make_trainer(), Log(every_n_steps=0)
    manager = make_manager(trainer, 10)
    blown_up = [20]

    def recover(output):
        if trainer.global_step.numpy() in blown_up:
            blown_up.clear()
            manager.restore_or_initialize()

    controller = make_controller(
        trainer, train_actions=[recover], checkpoint_manager=manager, hooks=[hook]
    )
    controller.train_and_evaluate(20, eval_interval=20)
    assert trainer.events.count("end 20") == 2
    assert trainer.events.count("eval 20") == 1
    assert [event for event in hook.events if "checkpoint" in event] == [
        "on_checkpoint ckpt-10",
        "on_checkpoint ckpt-20",
    ]


def test_no_state_is_saved_before_the_actions_have_seen_it(
    make_trainer, make_controller, make_manager
):
    trainer, order = make_trainer(), []
    hook = Log(every_n_steps=0)
    hook.events = order
    make_controller(
        trainer,
        hooks=[hook],
        checkpoint_manager=make_manager(trainer, 7),
        train_actions=[lambda output: order.append(f"action {output['steps']}")],
    ).train(14)
    assert order[1:-1] == ["action 7", "on_checkpoint ckpt-7", "action 7", "on_checkpoint ckpt-14"]


def test_complete_run_is_evaluated_once_if_asked(make_trainer, make_controller):
    trainer = make_trainer()
    trainer.global_step.assign(10)
    controller = make_controller(trainer)
    controller.train(10)
    assert trainer.events == []
    assert "accuracy" in controller.train_and_evaluate(10, eval_interval=5)
    assert trainer.events == ["eval 10"]


def test_save_works_without_an_interval(make_trainer, make_controller, make_manager):
    trainer = make_trainer()
    manager = make_manager(trainer)
    controller = make_controller(trainer, checkpoint_manager=manager)
    controller.train(3)
    assert manager.latest_checkpoint is None, "without an interval nothing is saved by itself"
    assert controller.save_checkpoint().endswith("ckpt-3")


def test_construction_restores_the_newest_checkpoint(make_trainer, make_controller, make_manager):
    trainer = make_trainer()
    make_controller(trainer, checkpoint_manager=make_manager(trainer, 5)).train(8)
    resumed = make_trainer()
    make_controller(resumed, checkpoint_manager=make_manager(resumed, 5))
    assert (resumed.global_step.numpy(), resumed.weight.numpy()) == (8, 8)


def test_async_flag_survives_several_saves_of_keras_variables(tmp_path, make_controller):
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
    """Lets nothing be written before a step is over."""

    every_n_steps = 1

    def __init__(self, step, monkeypatch):
        self.step, self.may_write, self.was_held = step, threading.Event(), False
        policy = tf.train.experimental.ShardByTaskPolicy
        write = policy.__call__

        def hold(policy, tensors):
            self.was_held = self.may_write.wait(timeout=60)
            return write(policy, tensors)

        monkeypatch.setattr(policy, "__call__", hold)

    def after_step(self):
        if self.controller.step == self.step:
            self.may_write.set()


def test_training_goes_on_while_a_checkpoint_is_written(
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


def test_hooks_hear_of_a_checkpoint_that_is_complete(
    tmp_path, make_trainer, make_controller, monkeypatch
):
    class Copy(orbit.Hook):
        every_n_steps = 16
        heard = ()

        def after_step(self):
            while self.controller.step == 16 and self.controller.checkpoint_manager.is_saving:
                time.sleep(0.001)

        def on_checkpoint(self, path):
            assert tf.train.latest_checkpoint(str(tmp_path)) == path
            self.heard = (*self.heard, (os.path.basename(path), self.controller.step))

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
    assert [name for name, _ in copy.heard] == ["ckpt-10", "ckpt-20", "ckpt-30", "ckpt-40"]
    assert copy.heard[0] == ("ckpt-10", 16), "at the first event after it was complete"


def test_save_that_fails_in_the_background_ends_training(
    tmp_path, make_trainer, make_controller, make_manager, monkeypatch
):
    class BreakDisk(orbit.Hook):
        every_n_steps = 15

        def after_step(self):
            (tmp_path / "model").rmdir()
            (tmp_path / "model").write_text("in the way")

    trainer, log = make_trainer(), Log(every_n_steps=0)
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


def test_failed_training_leaves_complete_checkpoints(
    make_trainer, make_controller, make_manager, monkeypatch
):
    trainer, log = make_trainer(), Log(every_n_steps=0)
    manager = make_manager(trainer, 10)
    hold = HoldsSavesUntil(12, monkeypatch)
    controller = make_controller(
        trainer,
        checkpoint_manager=manager,
        hooks=[hold, FailAt(12), log],
        enable_async_checkpointing=True,
    )
    with pytest.raises(ArithmeticError, match="bad step"):
        controller.train(20)
    assert log.events[1] == "on_checkpoint ckpt-10"
    assert log.events[-1] == "after_train False"


def test_checkpoint_saved_outside_of_training_is_complete(
    make_trainer, make_controller, make_manager
):
    trainer = make_trainer()
    manager = make_manager(trainer)
    controller = make_controller(
        trainer, checkpoint_manager=manager, enable_async_checkpointing=True
    )
    path = controller.save_checkpoint()
    assert tf.train.latest_checkpoint(manager.directory) == path


def test_continuous_evaluation_takes_every_checkpoint_in_order(
    make_trainer, make_controller, make_manager, recording_writer
):
    trainer = make_trainer()
    make_controller(trainer, checkpoint_manager=make_manager(trainer, 2), writers=[]).train(6)
    watcher = make_trainer()
    controller = make_controller(watcher, checkpoint_manager=make_manager(watcher))
    logs = controller.evaluate_continuously(timeout=0)
    assert recording_writer.steps("validation") == [2, 4, 6]
    assert logs["accuracy"] == 6


def test_continuous_evaluation_skips_what_was_removed_meanwhile(
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


def test_continuous_evaluation_of_nothing_is_an_error(make_trainer, make_controller, make_manager):
    trainer = make_trainer()
    controller = make_controller(trainer, checkpoint_manager=make_manager(trainer))
    with pytest.raises(errors.CheckpointError, match="No checkpoint"):
        controller.evaluate_continuously(timeout=0)


def test_continuous_evaluation_can_be_stopped(
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


def test_training_rate_leaves_evaluation_out(make_trainer, make_controller, recording_writer):
    controller = make_controller(
        make_trainer(), steps_per_loop=10, eval_actions=[lambda _: time.sleep(0.5)]
    )
    controller.train_and_evaluate(30, eval_interval=10)
    rates = [
        record.values["steps_per_second"]
        for record in recording_writer.records
        if record.split == "train"
    ]
    assert rates[-1] > 30, "ten steps in half a second would be 20 a second"


def test_evaluation_counts_the_steps_it_took(make_trainer, make_controller):
    trainer = make_trainer()
    make_controller(trainer).evaluate(steps=100)
    assert trainer.steps_run == 4


def test_summaries_and_records_hold_the_same(tmp_path, make_trainer, make_controller):
    trainer = make_trainer()
    with telemetry.JsonLinesWriter(tmp_path / "metrics.json") as writer:
        make_controller(
            trainer,
            summary_dir=tmp_path / "train",
            eval_summary_dir=tmp_path / "validation",
            writers=[writer],
        ).train_and_evaluate(4)
    assert list((tmp_path / "train").glob("events*"))
    assert list((tmp_path / "validation").glob("events*"))
    assert (tmp_path / "metrics.json").read_text().count("\n") == 2


@pytest.mark.parametrize("tpu_programs", [True, False])
def test_summaries_inside_the_step_come_at_their_interval(
    tmp_path, make_trainer, make_controller, tpu_programs
):
    class Summarizing(make_trainer):
        def train_step(self, iterator):
            tf.summary.scalar("weight", self.weight)
            super().train_step(iterator)

    options = orbit.StandardTrainerOptions(use_tpu_summary_optimization=tpu_programs)
    make_controller(
        Summarizing(options=options), summary_dir=tmp_path, summary_interval=7, steps_per_loop=10
    ).train(20)
    [path] = tmp_path.glob("events*")
    events = tf.compat.v1.train.summary_iterator(str(path))
    tags = [(event.step, value.tag) for event in events for value in event.summary.value]
    assert [step for step, tag in tags if tag == "weight"] == [0, 7, 14]


def test_steps_per_loop_may_depend_on_the_step(make_trainer, make_controller):
    trainer = make_trainer()
    controller = make_controller(trainer, steps_per_loop=lambda step: 2 if step < 4 else 5)
    assert controller.steps_per_loop == 2
    controller.train(9)
    assert controller.steps_per_loop == 5
    assert [event for event in trainer.events if "end" in event] == ["end 2", "end 4", "end 9"]


def test_replicas_train_under_one_controller(make_controller, two_replicas):
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"trainer": None, "evaluator": None}, "`trainer`, an `evaluator`"),
        ({"global_step": 3}, "pass a `tf.Variable`"),
        ({"steps_per_loop": None}, "`steps_per_loop` is None"),
        ({"steps_per_loop": 0}, "`steps_per_loop` is 0"),
        ({"summary_interval": -1}, "interval of -1"),
    ],
)
def test_impossible_arguments_are_refused(make_trainer, make_controller, arguments, message):
    with pytest.raises(errors.ConfigValueError, match=message):
        make_controller(make_trainer(), **arguments)


def test_missing_part_is_named(make_trainer, make_controller):
    controller = make_controller(make_trainer(), evaluator=None)
    with pytest.raises(errors.ConfigValueError, match="`evaluate` needs a `evaluator`"):
        controller.evaluate()
    with pytest.raises(errors.ConfigValueError, match="`steps` is 0"):
        make_controller(make_trainer()).evaluate(steps=0)


class Puts(orbit.Hook):
    """Puts a number in at each step, one at the end, and may fail."""

    every_n_steps = 1

    def __init__(self, fails_at=None):
        self.fails_at = fails_at
        self.ends = []

    def after_step(self):
        self.controller.storage.put_scalar("seen", self.iter)
        if self.iter + 1 == self.fails_at:
            raise ValueError("a broken hook")

    def after_train(self, success):
        self.ends.append(success)
        self.controller.storage.put_scalar("end", 1.0)


def test_reports_hold_what_came_up_in_the_event_storage(
    make_trainer, make_controller, recording_writer
):
    controller = make_controller(make_trainer(), hooks=[Puts()], steps_per_loop=2)
    controller.train(4)
    values = [record.flat() for record in recording_writer.records]
    assert [value.get("seen") for value in values] == [0.5, 2.5, None]
    assert values[-1] == {"end": 1.0}
    assert controller.train_logs["seen"] == 2.5
    assert controller.train_logs["end"] == 1.0


def test_no_number_is_lost_when_training_fails(make_trainer, make_controller, recording_writer):
    hooks = [Puts(fails_at=5), Puts()]
    with pytest.raises(ValueError, match="a broken hook"):
        make_controller(make_trainer(), hooks=hooks, steps_per_loop=4).train(8)
    assert [hook.ends for hook in hooks] == [[False], [False]]
    last = recording_writer.records[-1]
    assert (last.step, last.flat()) == (5, {"seen": 4.0, "end": 1.0})


def test_first_of_two_errors_is_the_one_to_raise(make_trainer, make_controller):
    class Fails(orbit.Hook):
        def __init__(self, text):
            self.text = text

        def after_train(self, success):
            raise ValueError(self.text)

    with pytest.raises(ValueError, match="first"):
        make_controller(make_trainer(), hooks=[Fails("first"), Fails("second")]).train(1)


def test_reports_come_at_the_log_interval(make_trainer, make_controller, recording_writer):
    trainer = make_trainer()
    make_controller(trainer, steps_per_loop=4, log_interval=10).train(25)
    assert recording_writer.steps("train") == [10, 20, 25]
    assert [record.values["steps"] for record in recording_writer.records] == [10, 10, 5]


def test_restoring_can_wait(make_trainer, make_controller, make_manager):
    trainer = make_trainer()
    make_controller(trainer, checkpoint_manager=make_manager(trainer, interval=2)).train(2)
    trainer = make_trainer()
    manager = make_manager(trainer)
    controller = make_controller(trainer, checkpoint_manager=manager, restore=False)
    assert trainer.global_step.numpy() == 0
    assert controller.model_dir == manager.directory
    controller.restore_checkpoint()
    assert trainer.global_step.numpy() == 2


def test_second_controller_reads_what_the_traced_step_puts_in(make_trainer, make_controller):
    trainer = make_trainer()
    first, second = make_controller(trainer), make_controller(trainer)
    assert first.storage is second.storage


def test_trainer_that_knows_no_graph_hooks_refuses_them(make_trainer, make_controller):
    with pytest.raises(errors.ConfigTypeError, match="CountingTrainer can't run the graph hook"):
        make_controller(make_trainer(), hooks=[orbit.GraphHook()])


def test_stop_that_is_asked_for_too_late_is_not_for_the_next_run(make_trainer, make_controller):
    class Late(orbit.Hook):
        def after_train(self, success):
            self.controller.request_stop("late")

    controller = make_controller(make_trainer(), hooks=[Late()])
    controller.train(5)
    controller.train(10)
    assert (controller.step, controller.stop_reason) == (10, None)


def test_stop_asked_for_at_the_last_step_is_known_afterwards(make_trainer, make_controller):
    class AtTheEnd(orbit.Hook):
        def after_eval(self, logs):
            self.controller.request_stop("good enough")

    controller = make_controller(make_trainer(), hooks=[AtTheEnd()])
    controller.train_and_evaluate(5)
    assert controller.stop_reason == "good enough"


def test_evaluation_puts_nothing_into_the_storage(make_trainer, make_controller, recording_writer):
    class Loud(make_trainer):
        def eval_step(self, iterator):
            next(iterator)
            telemetry.put_scalar("loud", 1.0)

    make_controller(Loud()).train_and_evaluate(10, eval_interval=5)
    assert recording_writer.steps("validation") == [5, 10]
    assert not any("loud" in record.flat() for record in recording_writer.records)


def test_hooks_of_an_evaluation_alone_are_heard(make_trainer, make_controller, recording_writer):
    class Counts(orbit.Hook):
        def after_eval(self, logs):
            self.controller.storage.put_scalar("seen", 1.0)

    make_controller(make_trainer(), hooks=[Counts()]).evaluate()
    assert [record.flat().get("seen") for record in recording_writer.records] == [None, 1.0]


def test_stretches_are_no_longer_than_steps_per_loop(make_trainer, make_controller, monkeypatch):
    lengths = []
    run_steps = make_trainer.run_steps
    monkeypatch.setattr(
        make_trainer, "run_steps", lambda self, n: (lengths.append(int(n)), run_steps(self, n))
    )
    make_controller(make_trainer(), steps_per_loop=4, log_interval=10).train(10)
    assert lengths == [4, 4, 2]
