import copy

from official_lite.reports import comparison, layout, run_reading
from official_lite.reports.markup import tag
from tests.reports import made_runs


def _content(section: layout.Section) -> str:
    return tag("div", section.content)


def test_fields_that_differ_stand_out(tmp_path) -> None:
    other = copy.deepcopy(made_runs.CONFIG)
    other["runtime"]["distribution_strategy"] = "one_device"
    directories = [
        made_runs.make_run(tmp_path / "a"),
        made_runs.make_run(tmp_path / "b", config=other),
    ]
    shown = _content(comparison.config([run_reading.read_run(str(one)) for one in directories]))
    assert "1 of 6 fields differ" in shown
    assert shown.count('class="differs"') == 1
    row = shown.partition('class="differs"')[2].partition("</tr>")[0]
    assert all(text in row for text in ("≠", "distribution_strategy", "mirrored", "one_device"))


def test_text_and_number_differ(tmp_path) -> None:
    for name, value in (("a", 3), ("b", "3")):
        made_runs.make_run(tmp_path / name, config={"trainer": {"train_steps": value}})
    runs = [run_reading.read_run(str(tmp_path / name)) for name in ("a", "b")]
    assert "1 of 1 fields differ" in _content(comparison.config(runs))


def test_environment_says_what_it_ran_with(tmp_path) -> None:
    run = run_reading.read_run(str(made_runs.make_run(tmp_path / "a")))
    shown = _content(comparison.environment([run]))
    assert all(text in shown for text in ("tensorflow", "2.21.0", "localhost"))
    assert "differs" not in shown
