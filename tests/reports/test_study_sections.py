from official_lite import search
from official_lite.reports.markup import tag
from official_lite.reports.study_reading import read_study
from official_lite.reports.study_sections import study_sections
from tests.search import toys


def _shown(tmp_path, evaluate, **fields) -> dict[str, str]:
    search.run_study(evaluate, toys.config(**fields), str(tmp_path))
    sections = study_sections(read_study(str(tmp_path)))
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
