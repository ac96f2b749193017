import math

import pytest

from official_lite import orbit
from official_lite.common import errors
from official_lite.orbit import hooks

# Evaluated every 10 steps: the best is at step 20, and patience 3 is used up at step 50.
ACCURACY = {10: 0.5, 20: 0.7, 30: 0.6, 40: math.nan, 50: 0.7}


def _accuracy_at(step):
    return {"accuracy": ACCURACY.get(step, 0.0)}


class Killed(BaseException):
    pass


class KillAfterStep(orbit.Hook):
    every_n_steps = 1

    def __init__(self, step):
        self.killing_step = step

    def after_step(self):
        if self.controller.step == self.killing_step:
            raise Killed


class KillAfterCheckpoint(orbit.Hook):
    def __init__(self, step):
        self.killing_step = step

    def on_checkpoint(self, path):
        if self.controller.step == self.killing_step:
            raise Killed


@pytest.fixture
def run(make_scripted_trainer, make_controller, make_manager):
    """Starts, or restarts, a process that trains to step 100; returns the controller."""

    def run(*others, checkpoint_interval=5, patience=3):
        trainer = make_scripted_trainer(_accuracy_at)
        controller = make_controller(
            trainer,
            hooks=[hooks.EarlyStopping("accuracy", patience, direction="maximize"), *others],
            checkpoint_manager=make_manager(trainer, checkpoint_interval),
        )
        controller.train_and_evaluate(100, eval_interval=10)
        return controller

    return run


def _early_stopping(make_scripted_trainer, make_controller, logs_at=_accuracy_at, **arguments):
    arguments = {"metric": "accuracy", "patience": 2, "direction": "maximize"} | arguments
    hook = hooks.EarlyStopping(**arguments)
    controller = make_controller(make_scripted_trainer(logs_at), hooks=[hook])
    controller.train_and_evaluate(100, eval_interval=10)
    return hook, controller


def test_stops_after_patience_with_a_reason(run):
    controller = run()
    assert controller.global_step.numpy() == 50
    assert controller.stop_reason == (
        "early stopping: `accuracy` has not improved on 0.7 of step 20 in 3 evaluations"
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize("killed_at", [12, 23, 30, 38, 50])
def test_run_that_was_killed_stops_where_an_unbroken_one_does(run, killed_at):
    with pytest.raises(Killed):
        run(KillAfterStep(killed_at))
    controller = run()
    assert controller.global_step.numpy() == 50
    assert "0.7 of step 20" in controller.stop_reason


def test_run_that_was_killed_after_the_decision_does_not_train_on(run):
    with pytest.raises(Killed):
        run(KillAfterCheckpoint(50))
    controller = run()
    assert controller.global_step.numpy() == 50
    assert controller.trainer.weight.numpy() == 50
    assert controller.stop_reason


def test_stopped_run_stays_stopped_however_often_it_is_started(run):
    run()
    for _ in range(2):
        controller = run()
        assert not [event for event in controller.trainer.events if event.startswith("begin")]
        assert controller.global_step.numpy() == 50


def test_second_evaluation_of_a_step_does_not_count(run):
    controller = run()
    hook = hooks.EarlyStopping("accuracy", 1, direction="maximize")
    hook.controller = controller
    for _ in range(3):
        hook.after_eval(_accuracy_at(50))
    assert not hook.state_dict()["stopped"]


def test_more_patience_lets_a_stopped_run_go_on(run):
    run()
    assert run(patience=5).global_step.numpy() == 70


def test_other_metric_begins_anew():
    hook = hooks.EarlyStopping("accuracy", 3)
    hook.load_state_dict(
        {**hook.state_dict(), "metric": "loss", "best_value": 0.1, "bad_evaluations": 3}
    )
    assert hook.best_value is None
    assert not hook.state_dict()["stopped"]


def test_min_delta_is_asked_for(make_scripted_trainer, make_controller):
    hook, controller = _early_stopping(
        make_scripted_trainer,
        make_controller,
        lambda step: {"accuracy": step / 1000},
        min_delta=0.1,
    )
    assert (hook.best_step, controller.global_step.numpy()) == (10, 30)


def test_improvement_below_the_baseline_does_not_count(make_scripted_trainer, make_controller):
    hook, controller = _early_stopping(
        make_scripted_trainer, make_controller, lambda step: {"accuracy": step / 1000}, baseline=0.5
    )
    assert (hook.best_step, controller.global_step.numpy()) == (20, 20)


def test_evaluations_before_start_step_are_not_looked_at(make_scripted_trainer, make_controller):
    hook, controller = _early_stopping(
        make_scripted_trainer, make_controller, lambda step: {"accuracy": -step}, start_step=40
    )
    assert (hook.best_step, controller.global_step.numpy()) == (40, 60)


def test_what_is_never_finite_stops_too(make_scripted_trainer, make_controller):
    hook, controller = _early_stopping(
        make_scripted_trainer, make_controller, lambda step: {"accuracy": math.inf}
    )
    assert hook.best_value is None
    assert controller.global_step.numpy() == 20


def test_nested_metric_can_be_watched(make_scripted_trainer, make_controller):
    hook, _ = _early_stopping(
        make_scripted_trainer,
        make_controller,
        lambda step: {"digits": _accuracy_at(step)},
        metric="digits|accuracy",
    )
    assert hook.best_value == 0.7


def test_unknown_metric_fails_at_the_first_evaluation(make_scripted_trainer, make_controller):
    with pytest.raises(errors.UnknownKeyError, match="Did you mean `accuracy`"):
        _early_stopping(make_scripted_trainer, make_controller, metric="acuracy")


def test_two_replicas(make_keras_trainer, make_controller, two_replicas):
    trainer = make_keras_trainer(strategy=two_replicas)
    hook = hooks.EarlyStopping("loss", 2, min_delta=0.4)
    controller = make_controller(trainer, hooks=[hook], strategy=two_replicas)
    controller.train_and_evaluate(20, eval_interval=1)
    assert hook.best_step == 1
    assert controller.global_step.numpy() == 3


@pytest.mark.parametrize("arguments", [{"patience": 0}, {"patience": 1, "min_delta": -1.0}])
def test_arguments_out_of_range_are_refused(arguments):
    with pytest.raises(errors.ConfigValueError, match="EarlyStopping requires"):
        hooks.EarlyStopping("loss", **arguments)
