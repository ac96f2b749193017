import pytest

from official_lite import search
from official_lite.reports.study_sections import is_study, read_study
from tests.search import toys


def test_study_is_read_as_it_was_run(tmp_path) -> None:
    config = toys.config(space={"a.x": toys.SPACE["x"], "b.x": ["u", "v"]}, num_trials=8)
    study = search.run_study(lambda trial: abs(trial.params["a.x"]), config, str(tmp_path / "s"))
    found = read_study(str(tmp_path / "s"))
    assert is_study(found.study_dir)
    assert [trial.values[0] for trial in found.trials] == [t.value for t in study.trials]
    assert found.ranking[0] == study.best_trial.number
    assert [trial.number for trial in found.trials if trial.is_best] == [found.ranking[0]]
    # The value depends on one of them only.
    assert [param.short_name for param in found.params] == ["a.x", "b.x"]
    assert sum(param.importance for param in found.params) == pytest.approx(1.0)


def test_trial_that_failed_says_why(tmp_path) -> None:
    search.run_study(toys.error_in_the_third, toys.config(num_trials=4), str(tmp_path))
    failed = read_study(str(tmp_path)).trials[2]
    assert (failed.state, failed.reason) == ("fail", "DataError: no such file")


def test_reports_on_the_way_are_kept(tmp_path) -> None:
    search.run_study(toys.curve, toys.config(num_trials=2), str(tmp_path))
    first = read_study(str(tmp_path)).trials[0]
    assert [step for step, _ in first.reports] == list(range(1, 10))
