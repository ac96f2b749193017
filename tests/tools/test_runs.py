import json
import math
import pathlib

import pytest

from official_lite.common import errors
from official_lite.run import run_reading
from official_lite.tools import __main__ as tools
from official_lite.tools import runs as runs_tool
from official_lite.tools.runs import Facts
from tests import made_runs


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> str:
    """Return a directory with two runs; b is better, has another config and is nested deeper."""
    made_runs.make_run(tmp_path / "a")
    config = {**made_runs.CONFIG, "task": {"model": {"units": [8]}}}
    record = {"versions": {"python": "3.12.0"}, "seconds": 3700.0}
    made_runs.make_run(tmp_path / "more" / "b", offset=0.05, config=config, record=record)
    return str(tmp_path)


def _out(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert tools.main(["runs", *arguments]) == 0
    return capsys.readouterr().out


def test_runs_list_has_a_line_for_each_run(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    head, *rows = _out(capsys, "list", folder, "--sort=accuracy", "--descending").splitlines()
    assert head.split()[:4] == ["name", "status", "step", "validation/accuracy"]
    assert [row.split()[:3] for row in rows] == [
        ["more/b", "done", "1000/1000"],
        ["a", "done", "1000/1000"],
    ]
    assert "1:01:40" in rows[0]


def test_runs_list_uses_the_validation_metric_even_if_a_test_metric_exists(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = {"step": 1000, "split": "test", "accuracy": 0.99}
    pathlib.Path(folder, "a", "metrics.test.json").write_text(json.dumps(line) + "\n")
    columns = "--columns=name,accuracy,test/accuracy"
    shown = _out(capsys, "list", folder, columns, "--sort=accuracy", "--descending")
    assert shown.split()[:3] == ["name", "validation/accuracy", "test/accuracy"]
    assert [row.split()[0] for row in shown.splitlines()[1:]] == ["more/b", "a"]
    assert [row.split()[2] for row in shown.splitlines()[1:]] == ["-", "0.99"]


def test_runs_list_shows_goodput_and_filters_by_goodput(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "goodput" not in _out(capsys, "list", folder)
    record = {"begin": 100.0, "end": 180.0, "seconds": {"starting": 20.0, "stepping": 60.0}}
    pathlib.Path(folder, "a", "goodput.json").write_text(json.dumps(record))
    head, first, second = _out(capsys, "list", folder).splitlines()
    assert "goodput" in head
    assert "75.0 %" in first
    assert "more/b" in second
    assert _out(capsys, "list", folder, "--where=goodput>0.7", "--columns=name").split() == [
        *("name", "a"),
    ]


def test_runs_list_shows_the_chosen_columns_and_filters_and_limits_the_runs(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = "--columns=name,accuracy,model.units"
    assert _out(capsys, "list", folder, columns, "--where=accuracy>0.9").split() == [
        *("name", "validation/accuracy", "task.model.units"),
        *("more/b", "0.93", "8"),
    ]
    assert len(_out(capsys, "list", folder, "--limit=1").splitlines()) == 2
    assert _out(capsys, "list", folder, "--where=status=failed") == "Found no matching runs.\n"
    assert tools.main(["runs", "list", folder, "--sort=acuracy"]) == 2
    assert "`accuracy`" in capsys.readouterr().err


def test_runs_list_as_json_contains_the_fields_and_metrics_of_each_run(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _ = json.loads(_out(capsys, "list", folder, "--json"))
    assert first["name"] == "a"
    assert (first["num_parameters"], first["best_step"], first["problems"]) == (151308, 800, [])
    assert first["metrics"]["validation/accuracy"] == pytest.approx(0.88)
    assert first["metrics"]["best/accuracy"] == pytest.approx(0.9)


def test_runs_compare_shows_only_the_fields_that_differ(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [f"{folder}/a", f"{folder}/more/b"]
    lines = _out(capsys, "compare", *paths).splitlines()
    assert lines[0].split() == paths
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:]}
    assert rows["task.model.units"] == ["64,", "64", "8"]
    assert rows["task.train_data.global_batch_size"] == ["64", "-"]
    assert rows["best/accuracy"] == ["0.9", "0.95"]
    assert rows["python"] == ["3.11.7", "3.12.0"]
    assert "runtime.distribution_strategy" not in rows
    document = json.loads(_out(capsys, "compare", *paths, "--json"))
    assert document["differing"] == ["task.model.units", "task.train_data.global_batch_size"]
    assert document["runs"][1]["config"]["task.model.units"] == [8]


@pytest.fixture
def runs(tmp_path: pathlib.Path) -> list[Facts]:
    """Return three runs, of which c has failed and has no metrics."""
    made_runs.make_run(tmp_path / "a", offset=0.0)
    made_runs.make_run(tmp_path / "b", offset=0.05, record={"seed": 1})
    directory = made_runs.make_run(tmp_path / "c", record={"status": "failed"})
    made_runs.write_metrics(directory, [])
    return [runs_tool.facts_of(run) for run in run_reading.read_runs(str(tmp_path))]


def _names(runs: list[Facts]) -> list[str]:
    return [facts.run.name for facts in runs]


def test_short_metric_name_is_resolved_to_the_validation_metric_first(runs: list[Facts]) -> None:
    assert runs_tool.resolve("accuracy", runs) == "validation/accuracy"
    assert runs_tool.resolve("training_loss", runs) == "train/training_loss"
    assert runs_tool.resolve("model.units", runs) == "task.model.units"
    with pytest.raises(errors.UnknownNameError, match="Did you mean `accuracy`"):
        runs_tool.resolve("acuracy", runs)


def test_ambiguous_short_field_name_raises(runs: list[Facts]) -> None:
    fields = {"a.rate": 1, "b.rate": 2}
    facts = Facts(run=runs[0].run, fields={}, metrics={}, config=fields)
    with pytest.raises(errors.UnknownNameError, match=r"`a\.rate` or `b\.rate`"):
        runs_tool.resolve("rate", [facts])


def test_short_name_of_a_metric_that_several_tasks_have_raises(runs: list[Facts]) -> None:
    metrics = {"train/accuracy": 0.5, "validation/a/accuracy": 0.7, "validation/b/accuracy": 0.9}
    facts = Facts(run=runs[0].run, fields={}, metrics=metrics, config={})
    with pytest.raises(errors.UnknownNameError, match="`validation/a/accuracy` or `validation/b"):
        runs_tool.resolve("accuracy", [facts])
    assert runs_tool.resolve("b/accuracy", [facts]) == "validation/b/accuracy"
    facts.metrics["validation/accuracy"] = 0.8
    assert runs_tool.resolve("accuracy", [facts]) == "validation/accuracy"


CONDITIONS = [
    (["status=done"], ["a", "b"]),
    (["status!=done"], ["c"]),
    (["accuracy>0.9"], ["b"]),
    (["accuracy <= 0.9"], ["a"]),
    (["accuracy!=3"], ["a", "b", "c"]),
    (["name~[ab]", "seed=1"], ["b"]),
    (["experiment~digits"], ["a", "b", "c"]),
    (["global_batch_size>=64", "seed=0"], ["a", "c"]),
    (["global_batch_size=none"], []),
]


def test_runs_list_selects_only_runs_that_satisfy_all_where_conditions(runs: list[Facts]) -> None:
    for conditions, names in CONDITIONS:
        assert _names(runs_tool.select(runs, conditions)) == names, conditions


def test_invalid_where_condition_raises(runs: list[Facts]) -> None:
    for condition in ("status", "status>1", "nothing=1"):
        with pytest.raises(errors.ConfigError, match=condition.partition("=")[0]):
            runs_tool.select(runs, [condition])


def test_runs_without_the_sort_value_come_last_in_ascending_and_descending_order(
    runs: list[Facts],
) -> None:
    assert _names(runs_tool.sort(runs, "accuracy")) == ["a", "b", "c"]
    assert _names(runs_tool.sort(runs, "accuracy", descending=True)) == ["b", "a", "c"]
    assert _names(runs_tool.sort(runs, "status", descending=True)) == ["c", "a", "b"]
    assert math.isclose(runs[0].get("steps_per_second"), 101.5)
