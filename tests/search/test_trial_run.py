"""The values that a trial reports, and the state in which it ends."""

import json
import math

import optuna
import pytest

from official_lite import search
from official_lite.common import errors
from official_lite.search import report_hook, trial_run
from tests.search import toys


def _outcome(result, **fields) -> trial_run.Outcome:
    study = optuna.create_study(directions=toys.config(**fields).directions)
    trial = search.TrialRun(study.ask(), {"x": 1.0}, toys.config(**fields), "unused")
    return trial.outcome_of(result)


@pytest.mark.parametrize(
    ("result", "fields", "values"),
    [
        (0.5, {}, [0.5]),
        ({"loss": 0.5, "other": 1.0}, {"metric": "loss"}, [0.5]),
        ({"a/loss": 0.5}, {"metric": "a|loss"}, [0.5]),
        ([1, 2], {"direction": ["minimize", "maximize"]}, [1.0, 2.0]),
    ],
)
def test_trial_may_return_a_number_several_numbers_or_named_metrics(result, fields, values) -> None:
    assert _outcome(result, **fields).values == values


def test_restarted_trial_records_each_reported_step_once(tmp_path) -> None:
    stops = iter([True, False])

    def evaluate(trial: search.TrialRun) -> float:
        trial.report(3.0)
        trial.report(2.0)
        if next(stops):
            raise errors.PreemptedError("SIGTERM")
        return 1.0

    with pytest.raises(errors.PreemptedError):
        search.run_study(evaluate, toys.config(num_trials=1), str(tmp_path))
    study = search.run_study(evaluate, toys.config(num_trials=1), str(tmp_path))
    assert study.trials[0].intermediate_values == {0: 3.0, 1: 2.0}


def test_value_reported_again_after_a_recovery_replaces_the_discarded_value(tmp_path) -> None:
    # After the third report, the trial has returned to step 1; the values 0.5 and 0.1 are lost.
    reports = [(1, 3.0), (2, 0.5), (3, 0.1), (2, 2.0), (3, 2.5)]

    def evaluate(trial: search.TrialRun) -> float:
        for step, value in reports:
            trial.report(value, step)
        return 2.5

    config = toys.config(final_value="best", num_trials=1)
    (trial,) = search.run_study(evaluate, config, str(tmp_path / "best")).trials
    assert trial.value == 2.0
    assert trial.intermediate_values == {1: 3.0, 2: 2.0, 3: 2.5}
    # The pruner compares the new value of the repeated step, and not the later discarded ones.
    reports[-2] = (2, 9.0)
    pruner = {"name": "threshold", "upper": 4.0}
    config = toys.config(pruner=pruner, num_trials=1)
    (trial,) = search.run_study(evaluate, config, str(tmp_path / "pruned")).trials
    assert trial.state.name == "PRUNED"
    assert trial.value == 9.0


def test_best_value_of_a_pruned_trial_ignores_values_discarded_by_a_recovery(
    tmp_path,
) -> None:
    def evaluate(trial: search.TrialRun) -> float:
        for step, value in [(1, 3.0), (2, 0.5), (3, 0.1), (2, 2.0)]:
            trial.report(value, step)
        return 2.0

    config = toys.config(final_value="best", num_trials=1)
    (trial,) = search.run_study(evaluate, config, str(tmp_path)).trials
    assert trial.value == 2.0


def test_successive_halving_uses_the_value_reported_after_a_recovery_instead_of_the_discarded_one(
    tmp_path,
) -> None:
    # The first trial returns to the beginning after its report; other trials see only 5.0.
    reports = iter([[0.1, 5.0], [2.0]])

    def evaluate(trial: search.TrialRun) -> float:
        for value in next(reports):
            trial.report(value, 1)
        return 1.0

    halving = {"name": "successive_halving", "min_resource": 1, "reduction_factor": 2}
    config = toys.config(pruner=halving, num_trials=2)
    study = search.run_study(evaluate, config, str(tmp_path))
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "COMPLETE"]


def test_trial_killed_after_optuna_decided_to_prune_it_is_pruned_when_it_resumes(tmp_path) -> None:
    kills = iter([True, False])

    def evaluate(trial: search.TrialRun) -> float:
        try:
            trial.report(float(trial.number), 1)
        except optuna.TrialPruned:
            if next(kills):
                raise KeyboardInterrupt from None
            raise
        return 1.0

    halving = {"name": "successive_halving", "min_resource": 1, "reduction_factor": 2}
    config = toys.config(pruner=halving, num_trials=2)
    with pytest.raises(KeyboardInterrupt):
        search.run_study(evaluate, config, str(tmp_path))
    study = search.run_study(evaluate, config, str(tmp_path))
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED"]


@pytest.mark.parametrize("result", [None, [1.0, 2.0], {"accuracy": 0.5}])
def test_invalid_result_fails_only_its_trial(result, tmp_path) -> None:
    config = toys.config(metric="loss", num_trials=2)
    results = iter([result, 1.0])
    study = search.run_study(lambda trial: next(results), config, str(tmp_path))
    assert [trial.state.name for trial in study.trials] == ["FAIL", "COMPLETE"]


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not valid JSON")


@pytest.mark.parametrize(
    ("value", "direction"),
    [(math.nan, "minimize"), (-math.inf, "minimize"), (math.inf, "maximize")],
)
def test_non_finite_value_fails_only_its_trial(value, direction, tmp_path) -> None:
    values = iter([value, 1.0])
    config = toys.config(direction=direction, metric="loss", num_trials=2)
    study = search.run_study(lambda trial: {"loss": next(values)}, config, str(tmp_path))
    assert [trial.state.name for trial in study.trials] == ["FAIL", "COMPLETE"]
    assert study.best_value == 1.0
    for path in [tmp_path / "top_k.json", *tmp_path.glob("trials/*/trial.json")]:
        json.loads(path.read_text(), parse_constant=_refuse)


@pytest.mark.parametrize(
    ("final_value", "returned", "expected"),
    [("last", 2.0, 2.0), ("best", 2.0, 1.0), ("best", 0.5, 0.5), ("best", math.nan, 1.0)],
)
def test_final_value_setting_selects_the_returned_or_the_best_value(
    final_value, returned, expected, tmp_path
) -> None:
    def evaluate(trial: search.TrialRun) -> float:
        for value in (3.0, 1.0, 2.0):
            trial.report(value)
        return returned

    config = toys.config(final_value=final_value, num_trials=1)
    study = search.run_study(evaluate, config, str(tmp_path))
    assert study.best_value == expected
    assert study.trials[0].intermediate_values == {0: 3.0, 1: 1.0, 2: 2.0}


def test_nni_report_functions_apply_to_the_current_trial_and_only_log_outside_a_study(
    tmp_path,
) -> None:
    def evaluate(trial: search.TrialRun) -> None:
        assert search.current_trial() is trial
        search.report_intermediate_result(7.0)
        search.report_final_result(9.0)

    study = search.run_study(evaluate, toys.config(num_trials=1), str(tmp_path))
    assert study.trials[0].intermediate_values == {0: 7.0}
    assert study.best_value == 9.0
    # Outside a study, there is no current trial, and the report functions only log.
    assert search.current_trial() is None
    search.report_intermediate_result(1.0)
    search.report_final_result(1.0)


def test_trial_json_records_how_the_trial_ended(tmp_path) -> None:
    search.run_study(toys.error_in_the_third, toys.config(), str(tmp_path))
    record = json.loads((tmp_path / "trials" / "0002" / "trial.json").read_text())
    assert record["state"] == "fail"
    assert record["reason"] == "DataError: no such file"
    other = json.loads((tmp_path / "trials" / "0003" / "trial.json").read_text())
    assert other["state"] == "complete"
    assert other["params"].keys() == {"x"}


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


def test_report_trial_hook_reports_the_metric_at_the_current_step(tmp_path) -> None:
    trial = _run(lambda hook: hook.after_eval({"a": {"loss": 3.0}}), tmp_path)
    assert trial.intermediate_values == {7: 3.0}


def test_pruned_trial_stops_its_training_loop_without_an_error(tmp_path) -> None:
    def act(hook: report_hook.ReportTrial) -> None:
        hook.after_eval({"a": {"loss": 3.0}})
        assert "pruned: at step 7" in hook.controller.stopped
        assert hook.state_dict() == {"is_pruned": True}

    trial = _run(act, tmp_path, pruner={"name": "threshold", "upper": 2.0})
    assert trial.state.name == "PRUNED"


def test_evaluation_after_training_is_reported_at_the_last_step_and_prunes_nothing(
    tmp_path,
) -> None:
    def act(hook: report_hook.ReportTrial) -> None:
        hook.after_train(True)
        hook.after_eval({"a": {"loss": 3.0}})

    trial = _run(act, tmp_path, pruner={"name": "threshold", "upper": 2.0})
    assert trial.state.name == "COMPLETE"
    assert trial.intermediate_values == {7: 3.0}


def test_pruned_trial_stays_pruned_when_it_is_resumed(tmp_path) -> None:
    def act(hook: report_hook.ReportTrial) -> None:
        hook.load_state_dict({"is_pruned": True})
        hook.before_train()
        assert hook.controller.stopped

    assert _run(act, tmp_path).state.name == "PRUNED"


def test_report_trial_hook_has_no_effect_outside_a_study() -> None:
    hook = report_hook.ReportTrial()
    hook.controller = Loop()
    hook.before_train()
    hook.after_eval({})
    hook.after_train(True)
    assert hook.state_dict() == {"is_pruned": False}
