import json
import math
import os
import pathlib
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from official_lite import pipeline
from official_lite.common import errors
from official_lite.core import preflight
from official_lite.execution import execution_record
from official_lite.reports import page
from official_lite.run import model_dir_lock, run_reading
from official_lite.tools import smoke_run
from tests import made_runs


def test_read_run_returns_the_data_of_a_finished_training_run(tmp_path: pathlib.Path) -> None:
    before = time.time()
    params = smoke_run.experiment(20)
    pipeline.RunPipeline(params, "train_and_eval", str(tmp_path / "run")).run()
    run = run_reading.read_run(str(tmp_path / "run"))
    assert (run.name, run.status, run.mode, run.problems) == ("run", "done", "train_and_eval", ())
    assert (run.step, run.train_steps, run.num_parameters) == (20, 20, 3)
    assert run.series["validation"]["validation_loss"].steps == (10, 20)
    times = run.series["train"]["training_loss"].wall_times
    assert all(before - 1 < each <= time.time() for each in times)
    assert [each.step for each in run.checkpoints] == [20]
    assert run.checkpoints[0].is_committed
    assert run.config["trainer"]["train_steps"] == run.given["trainer.train_steps"] == 20
    assert run.environment.keys() >= {"host", "platform", "python", "tensorflow"}
    assert run.examples_per_second == pytest.approx(32 * run.steps_per_second)
    assert run.start_time <= run.end_time


def test_read_run_returns_experiment_execution_mode_best_checkpoint_and_last_metrics(
    tmp_path: pathlib.Path,
) -> None:
    directory = str(made_runs.make_run(tmp_path / "a"))
    execution = execution_record.ExecutionRecord(execution="xla", reason="faster", train_steps=9)
    execution_record.save(execution, directory)
    run = run_reading.read_run(directory)
    assert run.execution == execution
    # The last start set the mode, so the earlier choice of `auto` no longer says how it trained.
    other = str(made_runs.make_run(tmp_path / "c", record={"params": {"runtime.execution": "xla"}}))
    execution_record.save(execution, other)
    assert run_reading.read_run(other).execution is None
    assert run.experiment == "vision/digits_cnn"
    assert (run.best.step, run.best.metrics, run.best.path) == (800, {"accuracy": 0.9}, None)
    assert run.last_metrics()["validation/accuracy"] == pytest.approx(0.88)
    assert [each.is_committed for each in run.checkpoints] == [False, False]
    argv = ["train.py", "--experiment", "other", "--mode=train"]
    made_runs.make_run(tmp_path / "b", record={"argv": argv})
    assert run_reading.read_run(str(tmp_path / "b")).experiment == "other"


def test_runs_are_found_in_nested_directories_despite_a_symlink_loop(
    tmp_path: pathlib.Path,
) -> None:
    for name in ("b", "study/trials/0000", "study/trials/0001"):
        made_runs.make_run(tmp_path / name)
    (tmp_path / "loop").symlink_to(tmp_path)
    names = [run.name for run in run_reading.read_runs(str(tmp_path))]
    assert names == ["b", "study/trials/0000", "study/trials/0001"]
    assert [run.name for run in run_reading.read_runs(str(tmp_path / "b"))] == ["b"]
    for read in (run_reading.read_runs, run_reading.read_run):
        with pytest.raises(errors.ConfigValueError, match="does not exist"):
            read(str(tmp_path / "c"))


def test_run_directory_may_have_the_name_of_a_subdirectory_that_runs_create(
    tmp_path: pathlib.Path,
) -> None:
    for name in ("train", "profile/export", "profile/export/best_ckpt/part"):
        made_runs.make_run(tmp_path / name)
    names = [run.name for run in run_reading.read_runs(str(tmp_path))]
    assert names == ["profile/export", "train"]


def test_run_reader_reports_the_best_checkpoint_that_test_and_predict_modes_use(
    tmp_path: pathlib.Path,
) -> None:
    hooks = [
        {"name": "best_checkpoint", "metric": "validation_loss", "directory": "z/kept"},
        {
            "name": "best_checkpoint",
            "metric": "validation_loss",
            "direction": "maximize",
            "directory": "a",
        },
    ]
    params = smoke_run.experiment(20).replace(trainer={"hooks": hooks})
    pipeline.RunPipeline(params, "train_and_eval", str(tmp_path)).run()
    best = run_reading.read_run(str(tmp_path)).best
    assert best.path == str(tmp_path / "z" / "kept" / "best_ckpt-20")
    assert best.path == preflight.find_best_checkpoint(params, str(tmp_path))


def test_truncated_files_of_a_run_are_reported_and_the_other_files_are_read(
    tmp_path: pathlib.Path,
) -> None:
    directory = made_runs.make_run(tmp_path / "a")
    (directory / "run.json").write_text('{"status"')
    (directory / "execution.json").write_text("[]")
    (directory / "params.yaml").write_bytes(b"\xff")
    run = run_reading.read_run(str(directory))
    assert (run.status, run.config, run.execution) == ("unknown", {}, None)
    assert run.step == 1000
    assert run.best.step == 800
    assert len(run.problems) == 3


def test_running_status_without_a_live_process_is_read_as_killed(tmp_path: pathlib.Path) -> None:
    directory = made_runs.make_run(tmp_path / "a", record={"status": "running"})
    assert run_reading.read_run(str(directory)).status == "killed"
    with model_dir_lock.ModelDirLock(str(directory)):
        assert run_reading.read_run(str(directory)).status == "running"
        holder = json.loads((directory / ".lock").read_text())
    (directory / ".lock").write_text(json.dumps({**holder, "host": "elsewhere"}))
    assert run_reading.read_run(str(directory)).status == "running"
    assert os.listdir(directory).count(".lock") == 1


def test_metrics_of_a_separate_evaluation_job_are_read_with_the_training_metrics(
    tmp_path: pathlib.Path,
) -> None:
    trained = {"step": 10, "split": "train", "loss": 1.0}
    evaluated = {"step": 10, "split": "validation", "accuracy": 0.5}
    (tmp_path / "metrics.json").write_text(json.dumps(trained) + "\n")
    (tmp_path / "metrics.continuous_eval.json").write_text(json.dumps(evaluated) + "\n")
    assert run_reading.read_run(str(tmp_path)).last_metrics() == {
        "train/loss": 1.0,
        "validation/accuracy": 0.5,
    }


def test_validation_metrics_of_training_and_a_separate_evaluation_job_form_one_series(
    tmp_path: pathlib.Path,
) -> None:
    trained = [_line(step, "validation", accuracy=0.5) for step in (100, 300)]
    evaluated = [_line(step, "validation", accuracy=0.9) for step in (200, 300, 400)]
    (tmp_path / "metrics.json").write_text(_text(*trained))
    (tmp_path / "metrics.continuous_eval.json").write_text(_text(*evaluated))
    accuracy = run_reading.read_run(str(tmp_path)).series["validation"]["accuracy"]
    assert accuracy.steps == (100, 200, 300, 400)
    # Both jobs have evaluated step 300.
    assert accuracy.values == (0.5, 0.9, 0.5, 0.9)


@pytest.mark.parametrize("value", [1e308, math.nan, "x", [[1]], True])
def test_run_file_with_a_wrong_type_is_reported_and_its_run_is_still_listed(
    tmp_path: pathlib.Path, value: Any
) -> None:
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "run.json").write_text(json.dumps({"status": "done"}))
    for number, key in enumerate(run_reading._TYPES):
        bad = tmp_path / f"bad{number}"
        (bad / "best_ckpt").mkdir(parents=True)
        (bad / "run.json").write_text(json.dumps({key: value}))
        (bad / "best_ckpt" / "info.json").write_text(
            json.dumps({"best_ckpt_global_step": 1, "accuracy": value})
        )
        line = {"step": 1, "split": "train", "wall_time": value, "loss": 1.0}
        (bad / "metrics.json").write_text(json.dumps(line) + "\n")
        (bad / "params.yaml").write_text(json.dumps({"task": 1, "trainer": {"train_steps": 1}}))
        assert page.build_page([str(bad)])
    runs = run_reading.read_runs(str(tmp_path))
    assert len(runs) == 1 + len(run_reading._TYPES)
    assert all(run.problems for run in runs if run.name != "good")


def _text(*lines: object) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


def _line(step: int, split: str = "train", **values: object) -> dict[str, object]:
    return {"step": step, "split": split, "wall_time": 100.0 + step, **values}


def test_parse_metrics_returns_one_series_for_each_metric_and_split() -> None:
    text = _text(_line(1, loss=0.5), _line(2, loss=None, a=1), _line(2, "validation", loss=0.25))
    series, problems = run_reading.parse_metrics(text.splitlines(keepends=True))
    assert problems == []
    loss = series["train"]["loss"]
    assert (loss.steps, loss.wall_times, loss.finite()) == ((1, 2), (101.0, 102.0), [0.5])
    assert math.isnan(loss.last)
    assert series["validation"]["loss"].values == (0.25,)
    assert series["train"]["a"].steps == (2,)


def test_metrics_of_a_restarted_run_replace_values_at_and_after_its_first_step() -> None:
    first = [_line(step, loss=float(step)) for step in (10, 20, 30)]
    again = [_line(step, loss=step + 0.5) for step in (20, 25)]
    series, _ = run_reading.parse_metrics(_text(*first, *again).splitlines(keepends=True))
    loss = series["train"]["loss"]
    assert (loss.steps, loss.values) == ((10, 20, 25), (10.0, 20.5, 25.5))


def test_only_an_incomplete_last_line_of_a_metrics_file_is_ignored() -> None:
    text = '{"split": "train"}\n' + _text(_line(1, loss="high"), _line(2, loss=1.0)) + '{"step": 3'
    series, problems = run_reading.parse_metrics(text.splitlines(keepends=True))
    assert series["train"]["loss"].steps == (2,)
    assert [problem.partition(" can't")[0] for problem in problems] == ["line 1", "line 2"]


def test_reading_metrics_does_not_keep_the_file_text_in_memory() -> None:
    def lines() -> Iterator[str]:
        for step in range(20_000):
            yield f'{{"step": {step}, "split": "train", "loss": 0.5, "note": null}}\n'

    tracemalloc.start()
    try:
        series, _ = run_reading.parse_metrics(lines())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(series["train"]["loss"].steps) == 20_000
    assert peak < 20_000 * 200
