import copy
import dataclasses
import json

from official_lite.common import goodput
from official_lite.nas import architecture
from official_lite.reports import markup, run_sections
from official_lite.reports.markup import tag
from official_lite.run import run_reading
from tests import made_runs


def _read(directory) -> run_reading.Run:
    return run_reading.read_run(str(directory))


def test_overview_says_how_it_ended(tmp_path) -> None:
    reason = "DivergedError: loss is <nan>"
    record = {"status": "failed", "exit_reason": reason, "global_step": 400}
    run = _read(made_runs.make_run(tmp_path / "a", record=record))
    shown = tag("div", run_sections.overview([run]).content)
    assert "DivergedError: loss is &lt;nan&gt;" in shown
    assert "400 of 1,000" in shown
    assert "accuracy 0.9 at step 800" in shown


def test_several_runs_stand_in_a_table(tmp_path) -> None:
    runs = [_read(made_runs.make_run(tmp_path / name)) for name in "ab"]
    shown = tag("div", run_sections.overview(runs).content)
    assert shown.count('scope="col"') == 3
    assert shown.count("accuracy 0.9 at step 800") == 2


def test_what_cannot_be_read_is_told(tmp_path) -> None:
    directory = made_runs.make_run(tmp_path / "a")
    (directory / "run.json").write_text("{torn")
    assert "run.json" in tag("div", run_sections.overview([_read(directory)]).content)


def test_checkpoints_have_their_size(tmp_path) -> None:
    shown = tag(
        "div", run_sections.checkpoints([_read(made_runs.make_run(tmp_path / "a"))]).content
    )
    assert "ckpt-500" in shown
    assert "0.052" in shown


def test_time_of_each_state_has_its_share(tmp_path) -> None:
    """A folder from before goodput was recorded has none, alone and beside others."""
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


def test_architecture_has_its_choices_and_how_they_came(tmp_path) -> None:
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


def test_damaged_architecture_does_not_hide_the_run(tmp_path) -> None:
    directory = made_runs.make_run(tmp_path / "a")
    (directory / "arch.json").write_text("{torn")
    assert "is not valid JSON" in tag("div", run_sections.architectures([_read(directory)]).content)


def _content(section: markup.Section) -> str:
    return tag("div", section.content)


def test_fields_that_differ_stand_out(tmp_path) -> None:
    other = copy.deepcopy(made_runs.CONFIG)
    other["runtime"]["distribution_strategy"] = "one_device"
    directories = [
        made_runs.make_run(tmp_path / "a"),
        made_runs.make_run(tmp_path / "b", config=other),
    ]
    shown = _content(run_sections.config([run_reading.read_run(str(one)) for one in directories]))
    assert "1 of 6 fields differ" in shown
    assert shown.count('class="differs"') == 1
    row = shown.partition('class="differs"')[2].partition("</tr>")[0]
    assert all(text in row for text in ("≠", "distribution_strategy", "mirrored", "one_device"))


def test_text_and_number_differ(tmp_path) -> None:
    for name, value in (("a", 3), ("b", "3")):
        made_runs.make_run(tmp_path / name, config={"trainer": {"train_steps": value}})
    runs = [run_reading.read_run(str(tmp_path / name)) for name in ("a", "b")]
    assert "1 of 1 fields differ" in _content(run_sections.config(runs))


def test_environment_says_what_it_ran_with(tmp_path) -> None:
    run = run_reading.read_run(str(made_runs.make_run(tmp_path / "a")))
    shown = _content(run_sections.environment([run]))
    assert all(text in shown for text in ("tensorflow", "2.21.0", "localhost"))
    assert "differs" not in shown
