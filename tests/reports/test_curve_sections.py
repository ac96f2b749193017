import json
import re

from official_lite.reports import run_sections
from official_lite.reports.markup import tag
from official_lite.run import run_reading
from tests import made_runs


def _charts(section) -> dict[str, dict]:
    found = re.findall(
        r'<script type="application/json">(.*?)</script>', tag("div", section.content)
    )
    return {chart["title"]: chart for chart in map(json.loads, found)}


def _runs(tmp_path, number: int) -> list[run_reading.Run]:
    directories = [made_runs.make_run(tmp_path / f"run{n}", offset=n / 10) for n in range(number)]
    return [run_reading.read_run(str(one)) for one in directories]


def test_training_and_validation_share_a_chart(tmp_path) -> None:
    section = run_sections.curves(_runs(tmp_path, 1))
    charts = _charts(section)
    assert list(charts) == ["loss", "accuracy", "learning_rate"]
    assert [one["name"] for one in charts["loss"]["series"]] == ["train", "validation"]
    assert {one["colour"] for one in charts["loss"]["series"]} == {0, 1}
    assert charts["loss"]["smooth"] is True


def test_no_two_rows_have_the_same_name(tmp_path) -> None:
    run = made_runs.make_run(tmp_path / "run")
    values = {"training_loss": 0.5, "loss": 0.0, "training_accuracy": 0.1, "accuracy": 0.2}
    made_runs.write_metrics(run, [{"step": n, "split": "train", **values} for n in (1, 2)])
    page = tag("div", run_sections.curves([run_reading.read_run(str(run))]).content)
    heads = re.findall(r'<th scope="row">(.*?)</th>', page)
    assert sorted(heads) == [
        "train/accuracy",
        "train/accuracy (metric)",
        "train/loss",
        "train/loss (metric)",
    ]


def test_curves_can_be_drawn_over_time(tmp_path) -> None:
    (run,) = _runs(tmp_path, 1)
    section = run_sections.curves([run])
    series = _charts(section)["loss"]["series"][0]
    # The first report came after 50 steps.
    assert series["minutes"][:2] == [0.0, 0.05]
    assert len(series["minutes"]) == len(series["x"])
    assert "data-clock" in tag("div", section.content)


def test_each_of_several_runs_has_its_colour_and_switch(tmp_path) -> None:
    section = run_sections.curves(_runs(tmp_path, 3))
    series = _charts(section)["loss"]["series"]
    assert {(one["run"], one["colour"]) for one in series} == {(0, 0), (1, 1), (2, 2)}
    assert {one["look"] for one in series if one["split"] == "train"} == {"dashed"}
    assert all(f'data-run="{number}"' in tag("div", section.content) for number in range(3))


def test_speed_has_a_section_of_its_own(tmp_path) -> None:
    runs = _runs(tmp_path, 1)
    section = run_sections.throughput(runs)
    assert list(_charts(section)) == ["steps_per_second"]
    assert "6,496" in tag("div", section.content)


def test_run_without_numbers_has_a_word_about_it(tmp_path) -> None:
    (tmp_path / "params.yaml").write_text("{}")
    runs = [run_reading.read_run(str(tmp_path))]
    assert "No metrics" in tag("div", run_sections.curves(runs).content)
    assert run_sections.throughput(runs) is None
