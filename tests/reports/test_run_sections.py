import copy
import dataclasses
import json
import re

from official_lite.common import goodput
from official_lite.nas import architecture
from official_lite.reports import markup, run_sections
from official_lite.reports.markup import tag
from official_lite.run import run_reading
from tests import made_runs


def _read(directory) -> run_reading.Run:
    return run_reading.read_run(str(directory))


def test_overview_shows_exit_reasons_and_unreadable_files(tmp_path) -> None:
    reason = "DivergedError: loss is <nan>"
    record = {"status": "failed", "exit_reason": reason, "global_step": 400}
    run = _read(made_runs.make_run(tmp_path / "a", record=record))
    shown = tag("div", run_sections.overview([run]).content)
    assert "DivergedError: loss is &lt;nan&gt;" in shown
    assert "400 of 1,000" in shown
    assert "accuracy 0.9 at step 800" in shown
    directory = made_runs.make_run(tmp_path / "b")
    (directory / "run.json").write_text("{torn")
    several = tag("div", run_sections.overview([run, _read(directory)]).content)
    assert several.count('scope="col"') == 3
    assert several.count("accuracy 0.9 at step 800") == 2
    assert "run.json" in several


def test_checkpoint_section_shows_the_size_of_each_checkpoint(tmp_path) -> None:
    shown = tag(
        "div", run_sections.checkpoints([_read(made_runs.make_run(tmp_path / "a"))]).content
    )
    assert "ckpt-500" in shown
    assert "0.052" in shown


def test_time_section_shows_the_share_of_time_in_each_state(tmp_path) -> None:
    """A run without a goodput record has no section of its own but is shown next to others."""
    old = _read(made_runs.make_run(tmp_path / "old"))
    assert run_sections.time_spent([old]) is None
    record = goodput.TimeRecord(begin=100.0, end=100.0, starts=2)
    for state, until in (("starting", 110.0), ("stepping", 170.0), ("stopped", 200.0)):
        record.spend(state, until)
    directory = made_runs.make_run(tmp_path / "new")
    (directory / goodput.NAME).write_text(json.dumps(dataclasses.asdict(record)))
    shown = tag("div", run_sections.time_spent([old, _read(directory)]).content)
    assert "0:01:00 · 60.0 %" in shown
    assert "30.0 s · 30.0 %" in shown
    assert "not measured" in shown
    assert "85.7 %" in shown


def test_architecture_section_shows_choices_and_their_history(tmp_path) -> None:
    directory = made_runs.make_run(tmp_path / "a")
    assert run_sections.architectures([_read(directory)]) is None
    space, probs = {"first": ["conv", "pool"]}, {"first": [0.9, 0.1]}
    architecture.write_arch(str(directory), {"first": "conv"}, space=space, probs=probs, step=20)
    lines = [
        architecture.to_history_line(n, {"first": [p, 1 - p]}) for n, p in ((10, 0.5), (20, 0.9))
    ]
    (directory / architecture.HISTORY_FILE).write_text("\n".join(lines) + "\n")
    shown = tag("div", run_sections.architectures([_read(directory)]).content)
    assert "conv 90.0 %" in shown
    data = json.loads(shown.partition('application/json">')[2].partition("</script>")[0])
    assert [one["y"] for one in data["series"]] == [[0.5, 0.9], [0.5, 0.1]]


def test_damaged_architecture_file_is_reported_in_the_architecture_section(tmp_path) -> None:
    directory = made_runs.make_run(tmp_path / "a")
    (directory / "arch.json").write_text("{torn")
    assert "is not valid JSON" in tag("div", run_sections.architectures([_read(directory)]).content)


def _content(section: markup.Section) -> str:
    return tag("div", section.content)


def test_config_fields_that_differ_between_runs_are_highlighted(tmp_path) -> None:
    other = copy.deepcopy(made_runs.CONFIG)
    other["runtime"]["distribution_strategy"] = "one_device"
    # The string "1000" differs from the number 1000.
    other["trainer"]["train_steps"] = "1000"
    directories = [
        made_runs.make_run(tmp_path / "a"),
        made_runs.make_run(tmp_path / "b", config=other),
    ]
    shown = _content(run_sections.config([run_reading.read_run(str(one)) for one in directories]))
    assert "2 of 6 fields differ" in shown
    assert shown.count('class="differs"') == 2
    row = shown.partition('class="differs"')[2].partition("</tr>")[0]
    assert all(text in row for text in ("≠", "distribution_strategy", "mirrored", "one_device"))


def test_environment_section_shows_versions_and_host(tmp_path) -> None:
    run = run_reading.read_run(str(made_runs.make_run(tmp_path / "a")))
    shown = _content(run_sections.environment([run]))
    assert all(text in shown for text in ("tensorflow", "2.21.0", "localhost"))
    assert "differs" not in shown


def _charts(section) -> dict[str, dict]:
    found = re.findall(
        r'<script type="application/json">(.*?)</script>', tag("div", section.content)
    )
    return {chart["title"]: chart for chart in map(json.loads, found)}


def _runs(tmp_path, number: int) -> list[run_reading.Run]:
    directories = [made_runs.make_run(tmp_path / f"run{n}", offset=n / 10) for n in range(number)]
    return [run_reading.read_run(str(one)) for one in directories]


def test_training_and_validation_metrics_share_a_chart_over_steps_or_time(tmp_path) -> None:
    section = run_sections.curves(_runs(tmp_path, 1))
    charts = _charts(section)
    assert list(charts) == ["loss", "accuracy", "learning_rate"]
    assert [one["name"] for one in charts["loss"]["series"]] == ["train", "validation"]
    assert {one["colour"] for one in charts["loss"]["series"]} == {0, 1}
    assert charts["loss"]["smooth"] is True
    # The first report came after 50 steps.
    assert charts["loss"]["series"][0]["minutes"][:2] == [0.0, 0.05]
    assert "data-clock" in tag("div", section.content)


def test_charts_show_epochs_on_the_x_axis_if_all_runs_set_train_epochs(tmp_path) -> None:
    def made(name: str, **params) -> run_reading.Run:
        return _read(made_runs.make_run(tmp_path / name, record={"params": params}))

    runs = [made(f"{n} epochs", **{"trainer.train_epochs": n}) for n in (10.0, 5.0)]
    chart = _charts(run_sections.curves(runs))["loss"]
    assert chart["xLabel"] == "epoch"
    first, second = (one for one in chart["series"] if one["split"] == "validation")
    assert (first["x"], second["x"]) == ([2.5, 5.0, 7.5, 10.0], [1.25, 2.5, 3.75, 5.0])
    table = tag("div", run_sections.curves(runs[:1]).content)
    assert "at step" in table

    chart = _charts(run_sections.curves([*runs, made("steps")]))["loss"]
    assert chart["xLabel"] == "step"
    assert chart["series"][0]["x"][-1] == 1000


def test_results_of_test_mode_are_shown_as_a_separate_test_split(tmp_path) -> None:
    run = made_runs.make_run(tmp_path / "run")
    line = {"step": 800, "split": "test", "test_loss": 0.25, "accuracy": 0.75}
    (run / "metrics.test.json").write_text(json.dumps(line) + "\n")
    section = run_sections.curves([run_reading.read_run(str(run))])
    names = [one["name"] for one in _charts(section)["loss"]["series"]]
    assert names == ["train", "validation", "test"]
    assert '<th scope="row">test/loss</th>' in tag("div", section.content)


def test_metrics_with_the_same_display_name_get_different_row_names(tmp_path) -> None:
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


def test_each_run_in_a_report_has_its_own_color_and_visibility_switch(tmp_path) -> None:
    section = run_sections.curves(_runs(tmp_path, 3))
    series = _charts(section)["loss"]["series"]
    assert {(one["run"], one["colour"]) for one in series} == {(0, 0), (1, 1), (2, 2)}
    assert {one["look"] for one in series if one["split"] == "train"} == {"dashed"}
    assert all(f'data-run="{number}"' in tag("div", section.content) for number in range(3))


def test_throughput_metrics_are_shown_in_their_own_section(tmp_path) -> None:
    runs = _runs(tmp_path, 1)
    section = run_sections.throughput(runs)
    assert list(_charts(section)) == ["steps_per_second"]
    assert "6,496" in tag("div", section.content)


def test_report_of_a_run_without_metrics_shows_a_message(tmp_path) -> None:
    (tmp_path / "params.yaml").write_text("{}")
    runs = [run_reading.read_run(str(tmp_path))]
    assert "No metrics" in tag("div", run_sections.curves(runs).content)
    assert run_sections.throughput(runs) is None
