import math

import pytest

from official_lite import orbit
from official_lite.orbit import hooks

# The accuracy at each evaluated step: the best is at 20, and a patience of 3 runs out at 50.
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
    """Return a function that starts or resumes training to step 100 and returns the controller."""

    def run(*others, checkpoint_interval=5, patience=3, direction="maximize"):
        trainer = make_scripted_trainer(_accuracy_at)
        controller = make_controller(
            trainer,
            hooks=[hooks.EarlyStopping("accuracy", patience, direction=direction), *others],
            checkpoint_manager=make_manager(trainer, checkpoint_interval),
        )
        controller.train_and_evaluate(100, eval_interval=10)
        return controller

    return run


def test_early_stopping_stops_training_with_a_reason_when_patience_runs_out(run):
    controller = run()
    assert controller.global_step.numpy() == 50
    assert controller.stop_reason == (
        "early stopping: `accuracy` has not improved on 0.7 at step 20 in 3 evaluations"
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize("killed_at", [12, 30, 50])
def test_killed_and_resumed_run_stops_early_at_the_same_step_as_an_uninterrupted_run(
    run, killed_at
):
    with pytest.raises(Killed):
        run(KillAfterStep(killed_at))
    controller = run()
    assert controller.global_step.numpy() == 50
    assert "0.7 at step 20" in controller.stop_reason


def test_run_killed_after_an_early_stop_trains_no_more_steps_when_resumed(run):
    with pytest.raises(Killed):
        run(KillAfterCheckpoint(50))
    controller = run()
    assert controller.global_step.numpy() == 50
    assert controller.trainer.weight.numpy() == 50
    assert controller.stop_reason


def test_early_stopped_run_trains_no_steps_when_restarted(run):
    run()
    for _ in range(2):
        controller = run()
        assert not [event for event in controller.trainer.events if event.startswith("begin")]
        assert controller.global_step.numpy() == 50


def test_repeated_evaluation_of_a_step_does_not_count_against_patience(run):
    controller = run()
    hook = hooks.EarlyStopping("accuracy", 1, direction="maximize")
    hook.controller = controller
    for _ in range(3):
        hook.after_eval(_accuracy_at(50))
    assert not hook.state_dict()["stopped"]


def test_increased_patience_lets_an_early_stopped_run_continue(run):
    run()
    assert run(patience=5).global_step.numpy() == 70


def test_early_stopped_run_continues_from_a_new_best_value_if_the_direction_changes(run):
    run()
    # The first evaluation, at step 60, is the best one; then a patience of 3 runs out.
    assert run(direction="minimize").global_step.numpy() == 90


def test_early_stopping_state_saved_for_a_different_metric_is_reset():
    hook = hooks.EarlyStopping("accuracy", 3)
    hook.load_state_dict(
        {**hook.state_dict(), "metric": "loss", "best_value": 0.1, "bad_evaluations": 3}
    )
    assert hook.best_value is None
    assert not hook.state_dict()["stopped"]


@pytest.mark.parametrize(
    ("accuracy", "arguments", "best_step", "last_step"),
    [
        (lambda step: step / 1000, {"min_delta": 0.1}, 10, 30),
        (lambda step: step / 1000, {"baseline": 0.5}, 20, 20),
        (lambda step: -step, {"start_step": 40}, 40, 60),
        (lambda step: math.inf, {}, None, 20),
    ],
    ids=["too small a gain", "below the baseline", "before the start step", "never finite"],
)
def test_evaluation_without_sufficient_improvement_counts_against_patience(
    make_scripted_trainer, make_controller, accuracy, arguments, best_step, last_step
):
    hook = hooks.EarlyStopping("accuracy", patience=2, direction="maximize", **arguments)
    trainer = make_scripted_trainer(lambda step: {"accuracy": accuracy(step)})
    controller = make_controller(trainer, hooks=[hook])
    controller.train_and_evaluate(100, eval_interval=10)
    assert (hook.best_step, controller.step) == (best_step, last_step)
