"""One command trains a registered experiment, resumes it and writes the documented files."""

import contextlib
import json
import os
import pathlib
import pty
import re
import subprocess
import sys

import pytest

from tests import commands


def _command(model_dir: pathlib.Path, *args: str, mode: str = "train_and_eval") -> list[str]:
    command = ["train.py", "--experiment=vision/digits_mlp", f"--mode={mode}"]
    return [*command, f"--model_dir={model_dir}", *args]


def _train(model_dir: pathlib.Path, *args: str, mode: str = "train_and_eval") -> str:
    result = commands.run(_command(model_dir, *args, mode=mode))
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stderr


def _records(model_dir: pathlib.Path, split: str, name: str = "metrics.json") -> list[dict]:
    lines = (model_dir / name).read_text().splitlines()
    return [r for r in map(json.loads, lines) if r["split"] == split]


SHORT = ("--set=trainer.train_steps=40", "--set=trainer.validation_interval=20")


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    model_dir = tmp_path_factory.mktemp("runs") / "digits"
    subprocess.run([sys.executable, *_command(model_dir, *SHORT)], check=True, cwd=commands.ROOT)
    return model_dir


def test_train_command_writes_all_documented_files(finished_run: pathlib.Path) -> None:
    names = {p.name for p in finished_run.iterdir()}
    assert {
        "params.yaml",
        "operative_config.train_and_eval.gin",
        "ckpt-40.index",
        "best_ckpt",
        "train",
        "validation",
        "metrics.json",
        "run.json",
        "log.txt",
    } <= names
    assert json.loads((finished_run / "best_ckpt" / "info.json").read_text())["accuracy"] > 0
    assert list((finished_run / "train").glob("events*"))
    assert list((finished_run / "validation").glob("events*"))
    assert json.loads((finished_run / "run.json").read_text())["status"] == "done"


def test_each_evaluation_is_recorded_with_its_step(finished_run: pathlib.Path) -> None:
    assert [r["step"] for r in _records(finished_run, "validation")] == [20, 40]
    assert [r["step"] for r in _records(finished_run, "train")] == [20, 40]


@pytest.mark.sample(1)
@pytest.mark.parametrize("record", ["config_file=params.yaml", "gin_file=operative_config"])
def test_run_started_from_a_recorded_yaml_or_gin_config_reproduces_the_original_bit_for_bit(
    finished_run: pathlib.Path, tmp_path: pathlib.Path, record: str
) -> None:
    flag, _, name = record.partition("=")
    (path,) = finished_run.glob(f"{name}*")
    _train(tmp_path / "again", f"--{flag}={path}")
    first, second = _records(finished_run, "validation"), _records(tmp_path / "again", "validation")
    for a, b in zip(first, second, strict=True):
        assert (a["accuracy"], a["validation_loss"]) == (b["accuracy"], b["validation_loss"])


def test_finished_run_is_reported_as_finished_and_resumes_only_with_more_train_steps(
    tmp_path: pathlib.Path,
) -> None:
    printed = _train(tmp_path / "run", *SHORT, "--import=json")
    assert f"official_lite.tools export {tmp_path}/run/best_ckpt --import=json" in printed
    assert "finished" in _train(tmp_path / "run", *SHORT)
    _train(tmp_path / "run", "--set=trainer.train_steps=60", SHORT[1])
    assert [r["step"] for r in _records(tmp_path / "run", "validation")] == [20, 40, 60]


def test_evaluation_of_a_finished_run_reproduces_its_metrics(finished_run: pathlib.Path) -> None:
    _train(finished_run, mode="eval")
    last, again = (
        _records(finished_run, "validation", name)[-1]
        for name in ("metrics.json", "metrics.eval.json")
    )
    assert (again["step"], again["accuracy"]) == (last["step"], last["accuracy"])


@pytest.mark.slow
def test_tensorboard_events_are_written_without_tensorboard_installed(
    tmp_path: pathlib.Path,
) -> None:
    # If the entry in `sys.modules` is None, the import fails as if the module were not installed.
    script = (
        "import runpy, sys\n"
        "sys.modules.update(dict.fromkeys(['tensorboard', 'tensorboard.plugins'], None))\n"
        "sys.argv[0] = 'train.py'\n"
        "runpy.run_path('train.py', run_name='__main__')\n"
    )
    command = [sys.executable, "-c", script, *_command(tmp_path, *SHORT)[1:]]
    subprocess.run(command, check=True, cwd=commands.ROOT)
    assert list((tmp_path / "train").glob("events*"))


@pytest.mark.slow
def test_training_in_a_terminal_prints_fewer_than_40_lines_and_updates_a_progress_bar(
    tmp_path,
) -> None:
    command = [sys.executable, "train.py", "--experiment=vision/digits_cnn", "--mode=train"]
    steps = [
        f"--set=trainer.{n}=200" for n in ("train_steps", "steps_per_loop", "summary_interval")
    ]
    shown = _on_a_terminal([*command, f"--model_dir={tmp_path}", *steps])
    assert "Experiment finished: status=done, step=200." in shown
    assert shown.count("\n") < 40
    drawn = {int(step) for step in re.findall(r"(\d+)/200 ━", shown)}
    assert drawn - {0, 200}, "The bar moved only at the report."
    for chatter in ("oneDNN", "cuda drivers", "cuInit", "'global_batch_size'"):
        assert chatter not in shown
    assert "Versions: python" in (tmp_path / "log.txt").read_text()


@pytest.mark.slow
def test_first_readme_command_prints_fewer_than_40_lines_to_a_pipe(tmp_path) -> None:
    # A new process is needed, because a forked one has already imported TensorFlow.
    command = [sys.executable, "train.py", "--experiment=vision/digits_cnn"]
    result = subprocess.run(
        [*command, "--mode=train_and_eval", f"--model_dir={tmp_path}"],
        cwd=commands.ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Experiment finished: status=done, step=1500." in result.stderr
    assert len((result.stdout + result.stderr).splitlines()) < 40


def _on_a_terminal(command: list[str]) -> str:
    """Return what a command shows on a terminal of 120 columns."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment):
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # Reading fails after the command has ended.
            while part := os.read(ours, 65536):
                shown += part
    os.close(ours)
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown.decode())
