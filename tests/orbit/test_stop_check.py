import pytest
import tensorflow as tf

from official_lite import orbit
from official_lite.common import errors, preemption
from tests import stop_signals


@pytest.fixture
def check():
    return preemption.StopCheck(tf.distribute.get_strategy())


def test_steps_are_not_split_for_signal_checks_if_signals_are_not_caught(check):
    assert list(check.slices(3, 1000, is_splittable=True)) == [(3, 1000)]


def test_number_of_steps_between_signal_checks_grows_while_the_steps_are_fast(check):
    with preemption.catch_signals():
        slices = list(check.slices(0, 500, is_splittable=True))
        assert slices == [(0, 1), (1, 11), (11, 111), (111, 500)]
        # The next check is at the same step as if the call had not ended at step 500.
        assert next(check.slices(500, 5000, is_splittable=True)) == (500, 1111)


def test_signals_are_checked_at_the_same_steps_however_training_is_split_into_calls(check):
    other = preemption.StopCheck(tf.distribute.get_strategy())
    with preemption.catch_signals():
        ends = {end for _, end in check.slices(0, 2000, is_splittable=True)}
        for start in range(0, 2000, 500):
            for _, end in other.slices(start, start + 500, is_splittable=True):
                if end % 500:
                    assert end in ends


def test_stop_request_raises_before_the_next_slice_of_steps_but_not_after_the_last_slice(check):
    with preemption.catch_signals():
        slices = check.slices(0, 100, is_splittable=True)
        assert next(slices) == (0, 1)
        stop_signals.request_stop()
        with pytest.raises(errors.PreemptedError):
            next(slices)
        assert list(check.slices(1, 2, is_splittable=True)) == [(1, 2)]
        with pytest.raises(errors.PreemptedError):
            check.check()


def test_steps_that_cannot_be_split_run_without_intermediate_signal_checks(check):
    with preemption.catch_signals():
        assert list(check.slices(0, 100, is_splittable=False)) == [(0, 100)]


def test_signal_saves_a_checkpoint_and_ends_training_without_an_evaluation(
    make_trainer, make_controller, make_manager, make_log, recording_writer
):
    trainer, log = make_trainer(), make_log(every_n_steps=0)
    hooks = [stop_signals.SignalAt(7), log]
    controller = make_controller(trainer, hooks=hooks, checkpoint_manager=make_manager(trainer))
    where = r"Start the same command again to resume it, from .*/ckpt-7\.$"
    with preemption.catch_signals(), pytest.raises(errors.PreemptedError, match=where):
        controller.train_and_evaluate(20, eval_interval=10)
    assert trainer.events == ["begin 0", "end 7"]
    assert log.events == ["before_train", "on_checkpoint ckpt-7", "after_train True"]
    assert recording_writer.steps("train") == [7]
    controller = make_controller(trainer, checkpoint_manager=make_manager(trainer))
    controller.train_and_evaluate(20, eval_interval=10)
    assert trainer.weight.numpy() == 20
    assert [event for event in trainer.events if "eval" in event] == ["eval 10", "eval 20"]


def test_evaluation_prevented_by_a_signal_runs_first_after_the_restart(
    make_trainer, make_controller, make_manager
):
    trainer = make_trainer()
    hooks = [stop_signals.SignalAt(10)]
    controller = make_controller(
        trainer, hooks=hooks, checkpoint_manager=make_manager(trainer, 100)
    )
    with preemption.catch_signals(), pytest.raises(errors.PreemptedError):
        controller.train_and_evaluate(20, eval_interval=10)
    assert trainer.events.pop() == "eval 10"
    controller = make_controller(trainer, checkpoint_manager=make_manager(trainer, 100))
    assert controller.step == 10
    controller.train_and_evaluate(20, eval_interval=10)
    assert [event for event in trainer.events if "eval" in event] == ["eval 10", "eval 20"]
    trainer.events.clear()
    make_controller(trainer, checkpoint_manager=make_manager(trainer, 100)).train_and_evaluate(
        30, eval_interval=10
    )
    assert [event for event in trainer.events if "eval" in event] == ["eval 30"]


@pytest.fixture
def interrupted_at(make_trainer, make_controller, make_manager):
    """Return a function that trains up to a signal, which prevents an evaluation at that step."""

    def interrupt(step, hook, **arguments):
        trainer = make_trainer()
        manager = make_manager(trainer, 100)
        controller = make_controller(
            trainer,
            hooks=[stop_signals.SignalAt(step), hook],
            checkpoint_manager=manager,
            **arguments,
        )
        with preemption.catch_signals(), pytest.raises(errors.PreemptedError):
            controller.train_and_evaluate(20, eval_interval=10)

    return interrupt


def test_evaluation_prevented_by_a_signal_runs_first_even_if_the_interval_has_changed(
    interrupted_at, make_trainer, make_controller, make_manager
):
    interrupted_at(10, orbit.Hook())
    trainer = make_trainer()
    controller = make_controller(trainer, checkpoint_manager=make_manager(trainer, 100))
    controller.train_and_evaluate(20, eval_interval=15)
    evaluations = [event for event in trainer.events if "eval" in event]
    assert evaluations == ["eval 10", "eval 15", "eval 20"]


def test_recovery_repeats_an_evaluation_that_is_newer_than_the_restored_checkpoint(
    interrupted_at, make_trainer, make_controller, make_manager
):
    interrupted_at(10, orbit.Hook())
    trainer = make_trainer()
    manager = make_manager(trainer, 100)
    paths = []

    def recover(output):
        if controller.step == 15 and not paths:
            paths.append(manager.restore_or_initialize())

    controller = make_controller(trainer, checkpoint_manager=manager, train_actions=[recover])
    controller.train_and_evaluate(20, eval_interval=15)
    evaluations = [event for event in trainer.events if "eval" in event]
    assert evaluations == ["eval 10", "eval 10", "eval 15", "eval 20"]


def test_evaluation_prevented_by_a_signal_is_omitted_if_training_resumes_without_evaluations(
    interrupted_at, make_trainer, make_controller, make_manager
):
    interrupted_at(10, orbit.Hook())
    trainer = make_trainer()
    controller = make_controller(
        trainer, hooks=[stop_signals.SignalAt(13)], checkpoint_manager=make_manager(trainer, 100)
    )
    with preemption.catch_signals(), pytest.raises(errors.PreemptedError):
        controller.train(20)
    trainer = make_trainer()
    controller = make_controller(trainer, checkpoint_manager=make_manager(trainer, 100))
    assert controller.step == 13
    controller.train_and_evaluate(20)
    assert [event for event in trainer.events if "eval" in event] == ["eval 20"]


def test_resumed_run_calls_after_epoch_even_if_it_omits_the_evaluation_that_a_signal_prevented(
    interrupted_at, make_trainer, make_controller, make_manager, make_log
):
    log = make_log(every_n_steps=0)
    interrupted_at(10, log, steps_per_epoch=5)
    assert log.events.count("after_epoch") == 1
    trainer, log = make_trainer(), make_log(every_n_steps=0)
    manager = make_manager(trainer, 100)
    controller = make_controller(
        trainer, hooks=[log], checkpoint_manager=manager, steps_per_epoch=5
    )
    controller.train(15)
    assert trainer.events == ["begin 10", "end 15"]
    assert log.events[:3] == ["before_train", "after_epoch", "after_epoch"]


def test_weights_that_a_hook_sets_after_an_evaluation_repeated_on_restart_are_saved(
    interrupted_at, make_trainer, make_controller, make_manager
):
    class SetsWeight(orbit.Hook):
        def after_eval(self, logs):
            if self.controller.step == 20:
                self.trainer.weight.assign(-1.0)

    interrupted_at(20, SetsWeight())
    trainer = make_trainer()
    manager = make_manager(trainer, 100)
    controller = make_controller(trainer, hooks=[SetsWeight()], checkpoint_manager=manager)
    assert trainer.weight.numpy() == 20
    controller.train_and_evaluate(20, eval_interval=10)
    assert manager.latest_checkpoint.endswith("ckpt-20")
    saved = tf.train.load_variable(manager.latest_checkpoint, "weight/.ATTRIBUTES/VARIABLE_VALUE")
    assert saved == -1


def test_signal_before_the_first_step_saves_no_checkpoint(
    make_trainer, make_controller, make_manager
):
    trainer = make_trainer()
    controller = make_controller(trainer, checkpoint_manager=make_manager(trainer))
    with preemption.catch_signals():
        stop_signals.request_stop()
        with pytest.raises(errors.PreemptedError):
            controller.train(10)
    assert controller.step == 0
    assert controller.checkpoint_manager.latest_checkpoint is None
