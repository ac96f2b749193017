"""Tests that every second of a run is counted once, however its processes end."""

import json
import pathlib
import random
import shutil
import signal
import time
from typing import Any

import pytest
import tensorflow as tf

from official_lite import orbit
from official_lite.common import errors, goodput
from official_lite.core import task_factory, train_lib
from tests import commands, waiting
from tests.line_experiment import LineConfig, LineTask, line_experiment

task_factory.register_task_cls(LineConfig)(LineTask)


def _train(model_dir: pathlib.Path, mode: str = "train_and_eval", **trainer: Any) -> None:
    params = line_experiment(trainer=trainer)
    task = LineTask(params.task)
    strategy = tf.distribute.get_strategy()
    hooks = [orbit.hooks.InputWait(every_n_steps=2)]
    train_lib.run_experiment(strategy, task, mode, params, str(model_dir), hooks=hooks)


def _read(model_dir: pathlib.Path) -> goodput.TimeRecord:
    record = goodput.read(str(model_dir))
    assert record is not None
    return record


def _run_json(model_dir: pathlib.Path) -> dict[str, Any]:
    return json.loads((model_dir / "run.json").read_text())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return the directory of an 8-step run, for tests that only read it."""
    directory = tmp_path_factory.mktemp("trained")
    _train(directory)
    return directory


@pytest.fixture
def model_dir(trained: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a copy of the 8-step run's directory."""
    return pathlib.Path(shutil.copytree(trained, tmp_path / "run"))


def test_goodput_times_of_an_uninterrupted_run_add_up_to_its_wall_time(
    trained: pathlib.Path,
) -> None:
    recorded = _run_json(trained)["goodput"]
    spent = recorded["seconds"]
    assert list(spent) == list(goodput.STATES)
    assert sum(spent.values()) == pytest.approx(recorded["wall_seconds"], abs=0.01)
    assert spent["lost"] == spent["stopped"] == 0
    assert all(
        spent[each] > 0 for each in ("starting", "compiling", "stepping", "evaluating", "saving")
    )
    assert recorded["starts"] == 1
    assert 0 < recorded["share"] < 1


def test_goodput_counts_the_time_between_two_starts_of_a_run_as_stopped(
    model_dir: pathlib.Path,
) -> None:
    first, ended = _read(model_dir), time.time()
    waiting.wait_for(lambda: time.time() > ended + 1)
    _train(model_dir, train_steps=24)
    both = _read(model_dir)
    assert both.starts == first.starts + 1
    assert both.seconds["stopped"] > 1
    assert both.seconds["lost"] == 0
    assert both.seconds["compiling"] > first.seconds["compiling"]
    assert sum(both.seconds.values()) == pytest.approx(both.wall_seconds)
    assert both.measures_input
    assert both.seconds["waiting_for_input"] > 0


def test_goodput_of_a_resumed_run_counts_work_after_the_restored_step_as_lost(
    model_dir: pathlib.Path,
) -> None:
    for path in model_dir.glob("ckpt-8.*"):
        path.unlink()
    before = _read(model_dir)
    kept = dict(before.checkpoints)[4]
    _train(model_dir)
    after = _read(model_dir)
    work = ("stepping", "evaluating", "waiting_for_input")
    lost = sum(before.seconds[state] - kept[state] for state in work)
    assert after.seconds["lost"] == pytest.approx(lost)
    assert 0 < after.seconds["lost"] < after.wall_seconds


def test_evaluation_job_writes_its_own_goodput_record(model_dir: pathlib.Path) -> None:
    before = (model_dir / "goodput.json").read_bytes()
    _train(model_dir, mode="eval")
    assert (model_dir / "goodput.json").read_bytes() == before
    spent = json.loads((model_dir / "run.eval.json").read_text())["goodput"]["seconds"]
    assert spent["evaluating"] > 0
    assert spent["stepping"] == 0


@pytest.mark.parametrize(
    "content",
    [
        *("{", "[]", '{"begin": 1}', '{"begin": 2, "end": "x"}', '{"begin": NaN, "end": NaN}'),
        '{"begin": 1, "end": 2, "starts": Infinity}',
        '{"begin": 1, "end": 2, "measures_input": "x"}',
        '{"begin": 1, "end": 2, "seconds": {"lost": Infinity}}',
        '{"begin": 1, "end": 2, "seconds": {"lost": 1' + "0" * 400 + "}}",
        '{"begin": 1, "end": 2, "checkpoints": [[Infinity, {}]]}',
        '{"begin": 1, "end": 2, "checkpoints": [[1, {"stepping": NaN}]]}',
    ],
)
def test_damaged_goodput_record_is_set_aside_and_replaced_by_a_new_one(
    tmp_path: pathlib.Path, content: str
) -> None:
    path = tmp_path / "goodput.json"
    path.write_text(content)
    with goodput.Goodput(str(path)), goodput.measuring("evaluating"):
        pass
    assert _read(tmp_path).starts == 1
    assert (tmp_path / "goodput.json.damaged").read_text() == content


def test_time_in_a_nested_goodput_state_does_not_count_for_the_outer_state() -> None:
    now = 0.0
    with goodput.Goodput(clock=lambda: now) as clock, clock.measuring("evaluating"):
        now += 1
        with clock.measuring("saving"):
            now += 2
        now += 4
        seconds = clock.summary()["seconds"]
    assert (seconds["evaluating"], seconds["saving"]) == (5, 2)


def test_failed_remote_write_of_the_goodput_record_does_not_raise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise tf.errors.UnavailableError(None, None, "try again")

    path = "ram://goodput/goodput.json"
    with goodput.Goodput(path) as clock:
        monkeypatch.setattr(tf.io.gfile, "rename", fail)
        clock.keep(step=1)
        monkeypatch.undo()
    assert json.loads(tf.io.gfile.GFile(path).read())["checkpoints"][0][0] == 1


def test_rewinding_a_goodput_record_counts_work_after_the_restored_step_as_lost() -> None:
    record = goodput.TimeRecord(begin=100.0, end=100.0)
    record.spend("stepping", 110.0)
    record.keep(step=10)
    record.spend("evaluating", 113.0)
    record.keep(step=20)
    record.spend("stepping", 120.0)
    record.spend("compiling", 121.0)
    record.rewind(step=20)
    assert record.seconds["lost"] == 7
    record.rewind(step=15)
    assert record.seconds["lost"] == 10
    assert record.seconds["stepping"] == 10
    record.rewind(step=0)
    assert record.seconds["lost"] == 20
    assert record.seconds["compiling"] == 1
    assert sum(record.seconds.values()) == record.wall_seconds


def test_goodput_record_keeps_fewer_than_40_of_1000_checkpoints() -> None:
    record = goodput.TimeRecord(begin=100.0, end=100.0)
    for step in range(1, 1001):
        record.spend("stepping", 100.0 + step)
        record.keep(step)
    assert len(record.checkpoints) < 40
    record.rewind(995)
    assert record.seconds["lost"] == 5


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_goodput_times_add_up_to_the_wall_time_after_ten_kills(tmp_path: pathlib.Path) -> None:
    model_dir = tmp_path / "run"
    command = [
        *("train.py", "--experiment=vision/digits_mlp", "--mode=train_and_eval"),
        *(f"--model_dir={model_dir}", "--set=runtime.execution=graph"),
        # More steps than any processor runs before the signal.
        "--set=trainer.train_steps=100000000",
        "--set=trainer.checkpoint_interval=1000",
        "--set=trainer.validation_interval=1500",
        "--set=trainer.steps_per_loop=500",
    ]
    commands.run(["-m", "official_lite.tools", "--help"])  # Starts the fork server of `commands`.
    moments = random.Random(0)
    before, begin = time.time(), 0.0
    for number in range(10):
        process = commands.Command(command)
        begin = begin or time.time()
        # If the first process were killed before its first write, the record would begin later.
        waiting.wait_for(
            lambda: (model_dir / "goodput.json").exists(),
            alive=lambda process=process: process.returncode is None,
            told=lambda process=process: process.stderr[-3000:],
        )
        if number % 2:
            process.wait_for("Training from step")
        killed_at = time.monotonic() + moments.uniform(0.0, 3.0)
        waiting.wait_for(lambda killed_at=killed_at: time.monotonic() > killed_at)
        assert process.returncode is None, f"The process ended before kill {number}."
        process.kill()
        assert _run_json(model_dir)["status"] == "running"
        assert _read(model_dir).starts <= number + 1
    last_begin = time.time()
    process = commands.Command(command)
    for text in ("Training from step", "validation | step"):
        process.wait_for(text)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == errors.ExitCode.PREEMPTED
    end = time.time()
    record = _read(model_dir)
    spent = record.seconds
    assert sum(spent.values()) == pytest.approx(record.wall_seconds)
    # Allow one second, because the system may adjust its clock during the run.
    assert before - 1 <= record.begin <= begin + 1
    assert last_begin - 1 <= record.end <= end + 1
    assert record.starts <= 11
    assert all(spent[state] > 0 for state in goodput.STATES if state != "waiting_for_input"), spent
    assert _run_json(model_dir)["goodput"]["starts"] == record.starts
    assert not list(model_dir.glob("*.damaged"))
