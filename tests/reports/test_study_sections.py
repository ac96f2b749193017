from official_lite import search
from official_lite.reports import study_sections
from official_lite.reports.markup import tag
from official_lite.reports.study_sections import Study, read_study
from tests.search import toys


def _shown(tmp_path, evaluate, **fields) -> dict[str, str]:
    search.run_study(evaluate, toys.config(**fields), str(tmp_path))
    sections = study_sections.study_sections(read_study(str(tmp_path)))
    return {section.name: tag("div", section.content) for section in sections}


def test_trials_can_be_sorted_and_the_best_stands_out(tmp_path) -> None:
    shown = _shown(tmp_path, toys.parabola)
    assert 'class="sortable"' in shown["trials"]
    assert shown["trials"].count('class="best"') == 1
    assert shown["trials"].count('scope="row"') == 5
    assert "minimize value" in shown["overview"]


def test_failures_are_explained(tmp_path) -> None:
    assert "no such file" in _shown(tmp_path, toys.error_in_the_third)["overview"]


def test_space_says_what_counted(tmp_path) -> None:
    shown = _shown(tmp_path, toys.parabola)["space"]
    assert "-4 … 4" in shown
    assert "100 %" in shown


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


def test_best_so_far_only_gets_better(tmp_path) -> None:
    study = _study(tmp_path)
    (chart,) = study_sections.history_charts(study)
    best = chart.series[-1]
    values = [value for _, value in best.points]
    assert best.look == "steps"
    assert values == sorted(values, reverse=True)
    assert values[-1] == min(trial.values[0] for trial in study.trials)
    assert study_sections.pareto_charts(study) == []


def test_axes_fit_what_was_tried(tmp_path) -> None:
    by_title = {chart.title: chart for chart in study_sections.slice_charts(_study(tmp_path))}
    assert by_title["rate"].x_is_log
    assert set(by_title["kind"].x_names) == {"a", "[1, 2]"}
    assert {x for one in by_title["kind"].series for x, _ in one.points} == {0, 1}


def test_several_metrics_have_a_front(tmp_path) -> None:
    fields = {"metric": ["up", "down"], "direction": ["maximize", "maximize"]}
    study = _study(tmp_path, **fields, strategy="nsga2")
    (chart,) = study_sections.pareto_charts(study)
    assert len(study_sections.history_charts(study)) == 2
    # What one gains the other loses, so that none is worse in both.
    assert [(one.name, len(one.points)) for one in chart.series] == [("Pareto front", 9)]


def test_the_best_of_what_was_reported_is_in_front(tmp_path) -> None:
    search.run_study(toys.curve, toys.config(), str(tmp_path))
    study = read_study(str(tmp_path))
    chart = study_sections.report_chart(study)
    assert chart.series[-1].name == f"trial {study.ranking[0]}, the best"
    assert len(chart.series) == 5
