import pytest
import tensorflow as tf

from official_lite import orbit
from official_lite.orbit import hooks


@pytest.fixture
def profiled(monkeypatch):
    """Return a function that records the steps at which the profiler is started and stopped."""
    events = []

    def attach(controller):
        step = controller.global_step
        profiler = tf.profiler.experimental
        monkeypatch.setattr(profiler, "start", lambda path: events.append(("start", int(step))))
        monkeypatch.setattr(profiler, "stop", lambda: events.append(("stop", int(step))))
        return events

    return attach


class FailsAtStep4(orbit.Hook):
    every_n_steps = 4

    def after_step(self):
        raise ArithmeticError("bad step")


def _profiles(tmp_path):
    return list((tmp_path / "profile/plugins/profile").glob("*/*.xplane.pb"))


def test_tensorboard_profile_of_the_selected_steps_is_written(
    make_trainer, make_controller, tmp_path
):
    hook = hooks.Profiler(start_step=3, num_steps=2)
    make_controller(make_trainer(), hooks=[hook], model_dir=tmp_path).train(10)
    assert len(_profiles(tmp_path)) == 1


def test_profiles_begin_and_end_at_exactly_the_selected_steps(
    make_trainer, make_controller, profiled, tmp_path
):
    hook = hooks.Profiler(at_steps=[0, 3, 5], num_steps=2)
    controller = make_controller(make_trainer(), hooks=[hook], model_dir=tmp_path)
    events = profiled(controller)
    controller.train(6)
    assert events == [
        ("start", 0),
        ("stop", 2),
        ("start", 3),
        ("stop", 5),
        ("start", 5),
        ("stop", 6),
    ]


def test_train_loop_pauses_only_where_a_profile_begins_or_ends(
    make_trainer, make_controller, tmp_path
):
    controller = make_controller(make_trainer(), hooks=[hooks.Profiler(3, 2)], model_dir=tmp_path)
    assert [controller._hooks.next_step(step) for step in (0, 3, 5)] == [3, 5, float("inf")]


def test_run_resumed_within_the_profiled_range_profiles_its_remaining_steps(
    make_trainer, make_controller, profiled, tmp_path
):
    trainer = make_trainer()
    trainer.global_step.assign(4)
    controller = make_controller(trainer, hooks=[hooks.Profiler(3, 4)], model_dir=tmp_path)
    events = profiled(controller)
    controller.train(10)
    assert events == [("start", 4), ("stop", 7)]


def test_profile_is_written_and_its_session_ends_when_the_run_fails(
    make_trainer, make_controller, tmp_path
):
    listed = [hooks.Profiler(start_step=2, num_steps=100), FailsAtStep4()]
    with pytest.raises(ArithmeticError):
        make_controller(make_trainer(), hooks=listed, model_dir=tmp_path).train(10)
    assert len(_profiles(tmp_path)) == 1
    with tf.profiler.experimental.Profile(str(tmp_path / "next")):
        pass  # `Profile` would raise if the session were still active.


def test_profiling_is_skipped_while_another_profiler_session_is_active(
    make_trainer, make_controller, log_lines, tmp_path
):
    hook = hooks.Profiler(start_step=2, num_steps=2)
    controller = make_controller(make_trainer(), hooks=[hook], model_dir=tmp_path)
    with tf.profiler.experimental.Profile(str(tmp_path / "other")):
        controller.train(10)
    assert any("another profiler session is active" in line for line in log_lines)
    assert not _profiles(tmp_path)


def test_profiler_session_stopped_by_other_code_is_logged_and_does_not_fail(
    make_trainer, make_controller, log_lines, tmp_path
):
    def stop(hook):
        tf.profiler.experimental.stop()

    listed = [hooks.Profiler(2, 4), hooks.LambdaHook(after_step=stop, every_n_steps=5)]
    make_controller(make_trainer(), hooks=listed, model_dir=tmp_path).train(8)
    assert any("The profiler was stopped by other code" in line for line in log_lines)
