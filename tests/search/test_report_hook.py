"""The hook that tells a study of evaluations."""

import pytest

from official_lite import search
from official_lite.common import errors
from official_lite.search import report_hook
from tests.search import toys


class Loop:
    step = 7
    stopped = ""

    def request_stop(self, reason: str) -> None:
        self.stopped = reason


def _run(act, tmp_path, **fields):
    def evaluate(trial: search.TrialRun) -> float:
        hook = report_hook.ReportTrial()
        hook.controller, hook.trainer = Loop(), None
        hook.before_train()
        act(hook)
        hook.after_train(True)
        return 1.0

    config = toys.config(metric="a/loss", num_trials=1, **fields)
    return search.run_study(evaluate, config, str(tmp_path)).trials[0]


def test_metric_is_reported_at_its_step(tmp_path) -> None:
    trial = _run(lambda hook: hook.after_eval({"a": {"loss": 3.0}}), tmp_path)
    assert trial.intermediate_values == {7: 3.0}


def test_pruner_stops_the_loop_and_not_by_an_error(tmp_path) -> None:
    def act(hook: report_hook.ReportTrial) -> None:
        hook.after_eval({"a": {"loss": 3.0}})
        assert "pruned: at step 7" in hook.controller.stopped
        assert hook.state_dict() == {"is_pruned": True}

    trial = _run(act, tmp_path, pruner={"name": "threshold", "upper": 2.0})
    assert trial.state.name == "PRUNED"


def test_pruned_trial_does_not_train_on_when_it_is_taken_up(tmp_path) -> None:
    def act(hook: report_hook.ReportTrial) -> None:
        hook.load_state_dict({"is_pruned": True})
        hook.before_train()
        assert hook.controller.stopped

    assert _run(act, tmp_path).state.name == "PRUNED"


def test_metric_that_is_not_there_fails_the_trial(tmp_path) -> None:
    with pytest.raises(errors.OfficialLiteError, match="None of the 1 trials"):
        _run(lambda hook: hook.after_eval({"a": {"accuracy": 3.0}}), tmp_path)


def test_outside_of_a_study_it_does_nothing() -> None:
    hook = report_hook.ReportTrial()
    hook.controller = Loop()
    hook.before_train()
    hook.after_eval({})
    hook.after_train(True)
    assert hook.state_dict() == {"is_pruned": False}
