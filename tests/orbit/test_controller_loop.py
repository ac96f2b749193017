import time

import pytest
import tensorflow as tf

from official_lite import orbit, telemetry
from official_lite.common import errors


class StopAt(orbit.Hook):
    every_n_steps = 1

    def __init__(self, step):
        self.step = step

    def after_step(self):
        if self.controller.global_step.numpy() == self.step:
            self.controller.request_stop("enough")


def test_train_runs_each_step_exactly_once(make_trainer, make_controller):
    trainer = make_trainer()
    make_controller(trainer, steps_per_loop=4).train(steps=10)
    assert trainer.weight.numpy() == 10
    assert trainer.events == ["begin 0", "end 4", "begin 4", "end 8", "begin 8", "end 10"]


def test_resumed_run_evaluates_at_multiples_of_the_interval_in_global_steps(
    make_trainer, make_controller
):
    trainer = make_trainer()
    trainer.global_step.assign(15)
    make_controller(trainer).train_and_evaluate(30, eval_interval=10)
    assert [event for event in trainer.events if "eval" in event] == ["eval 20", "eval 30"]


def test_evaluation_and_checkpoint_intervals_need_not_divide_each_other(
    make_trainer, make_controller, make_manager, make_log
):
    trainer, hook = make_trainer(), make_log(every_n_steps=0)
    controller = make_controller(
        trainer, checkpoint_manager=make_manager(trainer, 10), hooks=[hook]
    )
    controller.train_and_evaluate(25, eval_interval=7)
    evals = [event for event in trainer.events if "eval" in event]
    saves = [event.split()[-1] for event in hook.events if "checkpoint" in event]
    assert evals == ["eval 7", "eval 14", "eval 21", "eval 25"]
    assert saves == ["ckpt-10", "ckpt-20", "ckpt-25"]


def test_train_loop_that_pauses_for_a_hook_or_checkpoint_neither_resets_nor_reports_metrics(
    make_trainer, make_controller, make_manager, recording_writer, make_log
):
    trainer = make_trainer()
    controller = make_controller(
        trainer,
        steps_per_loop=20,
        hooks=[make_log(every_n_steps=3)],
        checkpoint_manager=make_manager(trainer, 7),
    )
    controller.train(40)
    assert trainer.events == ["begin 0", "end 20", "begin 20", "end 40"]
    assert recording_writer.steps("train") == [20, 40]
    assert [record.values["steps"] for record in recording_writer.records] == [20, 20]


@pytest.mark.parametrize("first_step", [0, 50])
def test_before_step_and_after_step_are_called_at_each_step_of_a_new_or_resumed_run(
    make_trainer, make_controller, make_log, first_step
):
    trainer, hook = make_trainer(), make_log()
    trainer.global_step.assign(first_step)
    controller = make_controller(trainer, hooks=[hook])
    controller.train(first_step + 2)
    assert hook.events == [
        "before_train",
        *[f"before_step {first_step}", f"after_step {first_step}"],
        *[f"before_step {first_step + 1}", f"after_step {first_step + 1}"],
        "after_train True",
    ]
    assert controller.iter == first_step + 2


def test_hooks_actions_writers_and_checkpoint_run_in_the_documented_order(
    make_trainer, make_controller, make_manager, recording_writer, make_log
):
    trainer, hook = make_trainer(), make_log()
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
        "write train",
        "write validation",
        "on_checkpoint ckpt-1",
        "after_train True",
    ]


def test_after_epoch_is_called_at_the_end_of_each_epoch(make_trainer, make_controller, make_log):
    hook = make_log(every_n_steps=0)
    make_controller(make_trainer(), hooks=[hook], steps_per_epoch=4).train(10)
    assert hook.events.count("after_epoch") == 2


def test_requested_stop_runs_the_final_evaluation_and_saves_a_checkpoint(
    make_trainer, make_controller, make_manager, recording_writer, make_log
):
    trainer, hook = make_trainer(), make_log(every_n_steps=0)
    manager = make_manager(trainer, 10)
    controller = make_controller(trainer, hooks=[StopAt(13), hook], checkpoint_manager=manager)
    logs = controller.train_and_evaluate(100, eval_interval=10)
    assert controller.stop_reason == "enough"
    assert trainer.global_step.numpy() == 13
    assert logs["accuracy"] == 13
    assert manager.latest_checkpoint.endswith("ckpt-13")
    assert recording_writer.steps("validation") == [10, 13]
    assert hook.events[-1] == "after_train True"


def test_stop_requested_at_an_evaluated_step_does_not_repeat_the_evaluation(
    make_trainer, make_controller
):
    trainer = make_trainer()
    controller = make_controller(trainer, eval_actions=[lambda _: controller.request_stop("good")])
    controller.train_and_evaluate(100, eval_interval=10)
    assert [event for event in trainer.events if "eval" in event] == ["eval 10"]


def test_next_train_call_continues_after_a_requested_stop(make_trainer, make_controller):
    trainer = make_trainer()
    controller = make_controller(trainer, hooks=[StopAt(5)])
    controller.train(10)
    controller.train(10)
    assert trainer.global_step.numpy() == 10
    assert controller.stop_reason is None


def test_first_training_error_is_passed_to_every_hook_and_raised(
    make_trainer, make_controller, make_log, fail_at
):
    class FailsAgain(orbit.Hook):
        def after_train(self, success):
            raise KeyError("later")

    first, second = make_log(), make_log()
    controller = make_controller(make_trainer(), hooks=[first, fail_at(2), FailsAgain(), second])
    with pytest.raises(ArithmeticError, match="bad step"):
        controller.train(2)
    for hook in (first, second):
        assert hook.events[-2:] == ["on_exception bad step", "after_train False"]
        assert "after_step 1" in hook.events


def test_train_report_is_written_even_if_an_action_fails(
    make_trainer, make_controller, recording_writer
):
    def refuse(output):
        raise errors.DivergedError("loss")

    controller = make_controller(make_trainer(), train_actions=[refuse])
    with pytest.raises(errors.DivergedError):
        controller.train(5)
    assert recording_writer.steps("train") == [5]
    assert not recording_writer.is_closed, "the code that opened a writer closes it"


def test_train_call_after_a_failure_begins_a_new_reporting_interval(
    make_trainer, make_controller, fail_at
):
    trainer, hook = make_trainer(), fail_at(2)
    controller = make_controller(trainer, hooks=[hook])
    with pytest.raises(ArithmeticError):
        controller.train(5)
    hook.step = None
    controller.train(5)
    assert trainer.events == ["begin 0", "begin 2", "end 5"]


def test_output_of_a_trainer_that_defines_only_train_is_recorded_after_each_train_call(
    make_controller, recording_writer, make_log
):
    class Plain(orbit.AbstractTrainer):
        def __init__(self):
            self.global_step = orbit.utils.create_global_step()

        def train(self, num_steps):
            self.global_step.assign_add(tf.cast(num_steps, tf.int64))
            return {"steps": num_steps}

    make_controller(Plain(), evaluator=None, hooks=[make_log(every_n_steps=4)]).train(10)
    assert [record.values["steps"] for record in recording_writer.records] == [4, 4, 2]


def test_evaluation_and_hooks_are_skipped_after_an_action_restores_a_checkpoint(
    make_trainer, make_controller, make_manager, make_log
):
    trainer, hook = make_trainer(), make_log(every_n_steps=0)
    manager = make_manager(trainer, 10)
    blown_up = [20]

    def recover(output):
        if trainer.global_step.numpy() in blown_up:
            blown_up.clear()
            manager.restore_or_initialize()

    controller = make_controller(
        trainer,
        train_actions=[recover],
        checkpoint_manager=manager,
        hooks=[hook],
        steps_per_epoch=20,
    )
    controller.train_and_evaluate(20, eval_interval=20)
    assert trainer.events.count("end 20") == 2
    assert trainer.events.count("eval 20") == 1
    assert hook.events == [
        "before_train",
        "on_checkpoint ckpt-10",
        "after_eval ['accuracy']",
        "after_epoch",
        "on_checkpoint ckpt-20",
        "after_train True",
    ]


def test_records_are_rewound_if_the_report_after_a_requested_stop_restores_a_checkpoint(
    make_trainer, make_controller, make_manager, recording_writer
):
    trainer = make_trainer()
    manager = make_manager(trainer, 10)
    rewound = []
    recording_writer.rewind = rewound.append

    def recover(output):
        if trainer.global_step.numpy() == 13:
            manager.restore_or_initialize()

    make_controller(
        trainer, train_actions=[recover], checkpoint_manager=manager, hooks=[StopAt(13)]
    ).train(20)
    assert trainer.global_step.numpy() == 10
    assert rewound == [0, 10]


def test_train_actions_run_before_each_checkpoint(
    make_trainer, make_controller, make_manager, make_log
):
    trainer, order = make_trainer(), []
    hook = make_log(every_n_steps=0)
    hook.events = order
    make_controller(
        trainer,
        hooks=[hook],
        checkpoint_manager=make_manager(trainer, 7),
        train_actions=[lambda output: order.append(f"action {output['steps']}")],
    ).train(14)
    assert order[1:-1] == ["action 7", "on_checkpoint ckpt-7", "action 7", "on_checkpoint ckpt-14"]


def test_finished_run_is_evaluated_once_by_train_and_evaluate(make_trainer, make_controller):
    trainer = make_trainer()
    trainer.global_step.assign(10)
    controller = make_controller(trainer)
    controller.train(10)
    assert trainer.events == []
    assert "accuracy" in controller.train_and_evaluate(10, eval_interval=5)
    assert trainer.events == ["eval 10"]


def test_training_steps_per_second_exclude_evaluation_time(
    make_trainer, make_controller, recording_writer, monkeypatch
):
    hours, now = [], time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + 3600 * len(hours))
    controller = make_controller(make_trainer(), steps_per_loop=10, eval_actions=[hours.append])
    controller.train_and_evaluate(30, eval_interval=10)
    rates = [
        record.values["steps_per_second"]
        for record in recording_writer.records
        if record.split == "train"
    ]
    assert rates[-1] > 10 / 3600


class Puts(orbit.Hook):
    """A hook that logs a number at each step and at the end, and fails at step `fails_at`."""

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


def test_reports_contain_the_values_logged_to_the_event_storage(
    make_trainer, make_controller, recording_writer
):
    controller = make_controller(make_trainer(), hooks=[Puts()], steps_per_loop=2)
    controller.train(4)
    values = [record.flat() for record in recording_writer.records]
    assert [value.get("seen") for value in values] == [0.5, 2.5, None]
    assert values[-1] == {"end": 1.0}
    assert controller.train_logs["seen"] == 2.5
    assert controller.train_logs["end"] == 1.0


def test_evaluation_without_training_reports_values_that_hooks_log_in_after_eval(
    make_trainer, make_controller, recording_writer
):
    hook = orbit.hooks.LambdaHook(after_eval=lambda *_: telemetry.put_scalar("mistakes", 3.0))
    controller = make_controller(make_trainer(), hooks=[hook])
    controller.train(2)
    controller.evaluate()
    last = recording_writer.records[-1]
    assert (last.step, last.split, last.flat()) == (2, "validation", {"mistakes": 3.0})
    assert controller.storage.history("mistakes").values() == [(3.0, 2)]


def test_failed_training_reports_all_logged_values(make_trainer, make_controller, recording_writer):
    hooks = [Puts(fails_at=5), Puts()]
    with pytest.raises(ValueError, match="a broken hook"):
        make_controller(make_trainer(), hooks=hooks, steps_per_loop=4).train(8)
    assert [hook.ends for hook in hooks] == [[False], [False]]
    last = recording_writer.records[-1]
    assert (last.step, last.flat()) == (5, {"seen": 4.0, "end": 1.0})


def test_training_reports_are_written_at_multiples_of_the_log_interval(
    make_trainer, make_controller, recording_writer
):
    trainer = make_trainer()
    make_controller(trainer, steps_per_loop=4, log_interval=10).train(25)
    assert recording_writer.steps("train") == [10, 20, 25]
    assert [record.values["steps"] for record in recording_writer.records] == [10, 10, 5]


def test_stop_requested_in_after_train_does_not_stop_the_next_train_call(
    make_trainer, make_controller
):
    class Late(orbit.Hook):
        def after_train(self, success):
            self.controller.request_stop("late")

    controller = make_controller(make_trainer(), hooks=[Late()])
    controller.train(5)
    controller.train(10)
    assert (controller.step, controller.stop_reason) == (10, None)


def test_stop_reason_is_set_if_the_stop_is_requested_at_the_last_step(
    make_trainer, make_controller
):
    class AtTheEnd(orbit.Hook):
        def after_eval(self, logs):
            self.controller.request_stop("good enough")

    controller = make_controller(make_trainer(), hooks=[AtTheEnd()])
    controller.train_and_evaluate(5)
    assert controller.stop_reason == "good enough"
