import re
import time

import pytest
import tensorflow as tf

from official_lite import orbit
from official_lite.core import actions as recovery
from official_lite.orbit import hooks


class Sleeps(orbit.Hook):
    every_n_steps = 5

    def after_step(self):
        time.sleep(0.03)


class FailsAtTheStart(orbit.Hook):
    def before_train(self):
        raise ArithmeticError("bad start")


class FailsAtStep5(orbit.Hook):
    every_n_steps = 5

    def after_step(self):
        raise ArithmeticError("bad step")


def test_step_times_are_reported_only_after_the_warmup(
    make_trainer, make_controller, recording_writer
):
    timer = hooks.IterationTimer(every_n_steps=5, batch_size=8)
    make_controller(make_trainer(), hooks=[timer], steps_per_loop=5).train(15)
    first, *others = [record.values for record in recording_writer.records]
    assert "seconds_per_step" not in first
    assert [values["seconds_per_step"] > 0 for values in others] == [True, True]
    for values in others:
        examples_per_step = values["examples_per_second"] * values["seconds_per_step"]
        assert examples_per_step == pytest.approx(8)
    assert others[0]["eta_seconds"] > 0
    assert others[1]["eta_seconds"] == 0


def test_examples_per_second_are_reported_if_the_trainer_has_a_global_batch_size(
    make_trainer, make_controller, recording_writer
):
    trainer = make_trainer()
    trainer.global_batch_size = 4
    timer = hooks.IterationTimer(every_n_steps=5)
    make_controller(trainer, hooks=[timer], steps_per_loop=5).train(10)
    assert "examples_per_second" in recording_writer.records[-1].values


def test_iteration_timer_pauses_the_train_loop_only_at_multiples_of_its_interval(
    make_trainer, make_controller
):
    controller = make_controller(make_trainer(), hooks=[hooks.IterationTimer(every_n_steps=40)])
    assert [controller._hooks.next_step(step) for step in (0, 39, 40)] == [40, 40, 80]


def test_iteration_timer_logs_one_summary_with_the_time_spent_in_hooks(
    make_trainer, make_controller, log_lines
):
    timer = hooks.IterationTimer()
    make_controller(make_trainer(), hooks=[timer, Sleeps()]).train(10)
    [steps] = [line for line in log_lines if "s/it" in line]
    assert re.match(r"5 iterations in \S+ s \(\S+ s/it\)", steps)
    [total] = [line for line in log_lines if line.startswith("total")]
    seconds, on_hooks = map(float, re.findall(r"([\d.e-]+) s", total))
    assert 0.06 <= on_hooks <= seconds


def test_run_that_ends_during_the_warmup_logs_a_timing_summary(
    make_trainer, make_controller, log_lines
):
    make_controller(make_trainer(), hooks=[hooks.IterationTimer()]).train(7)
    assert any(line.startswith("7 iterations in") for line in log_lines)


def test_failed_run_logs_one_timing_summary(make_trainer, make_controller, log_lines):
    with pytest.raises(ArithmeticError, match="bad step"):
        make_controller(make_trainer(), hooks=[FailsAtStep5(), hooks.IterationTimer()]).train(10)
    assert sum("s/it" in line for line in log_lines) == 1


@pytest.mark.parametrize("fails_first", [True, False])
def test_error_of_another_hook_in_before_train_is_raised_despite_the_iteration_timer(
    make_trainer, make_controller, log_lines, fails_first
):
    listed = [hooks.IterationTimer(), FailsAtTheStart()]
    if fails_first:
        listed.reverse()
    with pytest.raises(ArithmeticError, match="bad start"):
        make_controller(make_trainer(), hooks=listed).train(10)
    assert not any("also failed" in line for line in log_lines)


def test_times_of_steps_that_a_recovery_discarded_are_not_counted(
    make_trainer, make_controller, make_manager, recording_writer, log_lines, monkeypatch
):
    class CountingAllSteps(make_trainer):
        def train_step(self, iterator):
            super().train_step(iterator)
            steps_run.assign_add(1)

    def recover(output):
        if controller.step in blown_up:
            blown_up.clear()
            recovery.RecoveryAction(manager)(output)

    # Each step takes a second.
    steps_run, blown_up = tf.Variable(0), [25]
    monkeypatch.setattr(
        orbit.Controller, "train_seconds", property(lambda self: float(steps_run.numpy()))
    )
    trainer = CountingAllSteps()
    manager = make_manager(trainer, 10)
    controller = make_controller(
        trainer,
        hooks=[hooks.IterationTimer(every_n_steps=10)],
        checkpoint_manager=manager,
        train_actions=[recover],
        log_interval=5,
        steps_per_epoch=30,
    )
    controller.train(60)
    assert (blown_up, steps_run.numpy()) == ([], 65)
    records = [(r.step, r.values) for r in recording_writer.records]
    paces = [v["seconds_per_step"] for _, v in records if "seconds_per_step" in v]
    assert len(paces) >= 4
    assert set(paces) == {1.0}
    # Of the first epoch, only the part after the restored step 20 counts.
    epochs = [(step, v["epoch_seconds"]) for step, v in records if "epoch_seconds" in v]
    assert epochs == [(30, 10.0), (60, 30.0)]
    assert any("35 iterations in 35 s (1 s/it), from step 25 on" in line for line in log_lines)


def test_epoch_duration_is_logged_and_recorded_at_each_epoch_end(
    make_trainer, make_controller, log_lines, recording_writer
):
    controller = make_controller(
        make_trainer(), hooks=[hooks.IterationTimer()], steps_per_epoch=4, steps_per_loop=4
    )
    controller.train(10)
    epochs = [line for line in log_lines if "use time" in line]
    assert [line.split(",")[0] for line in epochs] == ["epoch 1 done", "epoch 2 done"]
    timed = [r for r in recording_writer.records if "epoch_seconds" in r.values]
    assert [record.step for record in timed] == [4, 8]
    assert all(record.values["epoch_seconds"] > 0 for record in timed)
