import pytest

from official_lite import search
from official_lite.reports import study_sections
from official_lite.reports.markup import tag
from official_lite.reports.study_sections import Study, is_study, read_study
from tests.search import toys


def _shown(tmp_path, evaluate, **fields) -> dict[str, str]:
    search.run_study(evaluate, toys.config(**fields), str(tmp_path))
    sections = study_sections.study_sections(read_study(str(tmp_path)))
    return {section.name: tag("div", section.content) for section in sections}


def test_trial_table_is_sortable_and_highlights_the_best_trial(tmp_path) -> None:
    shown = _shown(tmp_path, toys.error_in_the_third)
    assert "no such file" in shown["overview"]
    assert "-4 … 4" in shown["space"]
    assert "100 %" in shown["space"]
    assert 'class="sortable"' in shown["trials"]
    assert shown["trials"].count('class="best"') == 1
    assert shown["trials"].count('scope="row"') == 5
    assert "minimize value" in shown["overview"]


SPACE = {
    "rate": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
    "kind": ["a", [1, 2]],
}


def _study(tmp_path, **fields) -> Study:
    def evaluate(trial: search.TrialRun):
        rate = trial.params["rate"]
        return rate if "metric" not in fields else {"up": rate, "down": 1.0 - rate}

    search.run_study(evaluate, toys.config(space=SPACE, num_trials=9, **fields), str(tmp_path))
    return read_study(str(tmp_path))


def test_best_value_so_far_in_the_history_chart_never_gets_worse(tmp_path) -> None:
    study = _study(tmp_path)
    (chart,) = study_sections.history_charts(study)
    best = chart.series[-1]
    values = [value for _, value in best.points]
    assert best.look == "steps"
    assert values == sorted(values, reverse=True)
    assert values[-1] == min(trial.values[0] for trial in study.trials)
    assert study_sections.pareto_charts(study) == []


def test_slice_charts_use_log_axes_for_log_parameters_and_names_for_categories(tmp_path) -> None:
    by_title = {chart.title: chart for chart in study_sections.slice_charts(_study(tmp_path))}
    assert by_title["rate"].x_is_log
    assert set(by_title["kind"].x_names) == {"a", "[1, 2]"}
    assert {x for one in by_title["kind"].series for x, _ in one.points} == {0, 1}


def test_study_with_several_metrics_shows_a_pareto_front(tmp_path) -> None:
    fields = {"metric": ["up", "down"], "direction": ["maximize", "maximize"]}
    study = _study(tmp_path, **fields, strategy="nsga2")
    (chart,) = study_sections.pareto_charts(study)
    assert len(study_sections.history_charts(study)) == 2
    # The two metrics always sum to 1, so no trial is dominated by another.
    assert [(one.name, len(one.points)) for one in chart.series] == [("Pareto front", 9)]


def test_learning_curve_of_the_best_trial_is_drawn_last(tmp_path) -> None:
    search.run_study(toys.curve, toys.config(), str(tmp_path))
    study = read_study(str(tmp_path))
    chart = study_sections.report_chart(study)
    assert chart.series[-1].name == f"trial {study.ranking[0]}, the best"
    assert len(chart.series) == 5


def test_read_study_returns_values_ranking_and_best_trials(tmp_path) -> None:
    config = toys.config(space={"a.x": toys.SPACE["x"], "b.x": ["u", "v"]}, num_trials=8)
    study = search.run_study(lambda trial: abs(trial.params["a.x"]), config, str(tmp_path / "s"))
    found = read_study(str(tmp_path / "s"))
    assert is_study(found.study_dir)
    assert [trial.values[0] for trial in found.trials] == [t.value for t in study.trials]
    assert found.ranking[0] == study.best_trial.number
    assert [trial.number for trial in found.trials if trial.is_best] == [found.ranking[0]]
    # The value depends on `a.x` only.
    assert [param.short_name for param in found.params] == ["a.x", "b.x"]
    assert sum(param.importance for param in found.params) == pytest.approx(1.0)


def test_read_study_returns_the_error_of_a_failed_trial(tmp_path) -> None:
    search.run_study(toys.error_in_the_third, toys.config(num_trials=4), str(tmp_path))
    failed = read_study(str(tmp_path)).trials[2]
    assert (failed.state, failed.reason) == ("fail", "DataError: no such file")
