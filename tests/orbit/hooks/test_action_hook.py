import pytest

from official_lite.orbit import actions, hooks

ALERT = """
class Alert:
    seen = []

    def __init__(self, above=0.0):
        self.above = above

    def __call__(self, output):
        self.seen.append((self.above, float(output["accuracy"])))
"""


def test_orbit_action_runs_unchanged_after_each_evaluation(make_trainer, make_controller, tmp_path):
    best = actions.NewBestMetric("accuracy", filename=str(tmp_path / "best.json"))
    make_controller(make_trainer(), hooks=[hooks.ActionHook(best)]).train_and_evaluate(5)
    assert best.best_value == 5


def test_action_on_reports_receives_the_logs_of_each_training_report(
    make_trainer, make_controller, make_manager
):
    outputs = []
    trainer = make_trainer()
    controller = make_controller(
        trainer,
        hooks=[hooks.ActionHook(outputs.append, when="report")],
        checkpoint_manager=make_manager(trainer, 2),
    )
    controller.train(2)
    controller.train(4)
    assert [float(output["loss"]) for output in outputs] == [2, 4]


def test_action_at_the_end_of_training_receives_the_logs_of_the_last_report(
    make_trainer, make_controller
):
    outputs = []
    hook = hooks.ActionHook(outputs.append, when="end")
    make_controller(make_trainer(), hooks=[hook]).train(4)
    assert [float(output["loss"]) for output in outputs] == [4]


@pytest.mark.parametrize(("above", "expected"), [(None, 0.0), (10.0, 10.0)])
def test_action_is_imported_by_its_path_and_receives_its_arguments(
    make_trainer, make_controller, tmp_path, above, expected
):
    (tmp_path / "alerts.py").write_text(ALERT)
    place = f"{tmp_path}/alerts.py:Alert"
    hook = hooks.ActionHook(place if above is None else {"name": place, "above": above})
    make_controller(make_trainer(), hooks=[hook]).train_and_evaluate(3)
    assert hook._action.seen == [(expected, 3.0)]
