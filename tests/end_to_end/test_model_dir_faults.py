"""Invalid model directories, concurrent runs in one, and changes between restarts.

The faults are listed in docs/reliability.md.
"""

import json
import os
import pathlib
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

import registry_imports  # noqa: F401  (imported for its registrations)
from official_lite import orbit, pipeline
from official_lite.checkpoint import latest
from official_lite.common import errors
from official_lite.core import exp_factory, task_factory, train_lib
from official_lite.run import run_record
from tests import commands, waiting

ROOT = pathlib.Path(__file__).parents[2]


def _params(train_steps: int = 10, **overrides: Any) -> Any:
    params = exp_factory.get_exp_config("vision/digits_mlp")
    params.override(
        {
            "runtime": {"execution": "graph", "distribution_strategy": "off"},
            "trainer": {
                "train_steps": train_steps,
                "checkpoint_interval": 5,
                "validation_interval": 0,
                "writers": ["jsonl"],
            },
        }
    )
    params.override(overrides)
    return params


def _run(model_dir: str, train_steps: int = 10, mode: str = "train", **overrides: Any) -> None:
    pipeline.RunPipeline(_params(train_steps, **overrides), mode, model_dir).run()


def _records(model_dir: pathlib.Path, split: str) -> list[dict[str, Any]]:
    records = map(json.loads, (model_dir / "metrics.json").read_text().splitlines())
    return [record for record in records if record["split"] == split]


def _command(model_dir: pathlib.Path, mode: str, *args: str) -> list[str]:
    command = ["train.py", "--experiment=vision/digits_mlp"]
    return [*command, f"--mode={mode}", f"--model_dir={model_dir}", *args]


@pytest.fixture
def read_only(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    directory = tmp_path / "read_only"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro,size=100k", "tmpfs", str(directory)]
    if os.geteuid() != 0:
        directory.chmod(0o500)
    elif subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system is not permitted")
    yield directory
    if os.geteuid() == 0:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def test_read_only_model_directory_is_refused(read_only: pathlib.Path) -> None:
    for model_dir in (read_only, read_only / "run"):
        with pytest.raises(errors.ConfigValueError, match="not writable"):
            _run(str(model_dir))
    assert list(read_only.iterdir()) == []


def test_model_directory_that_is_a_file_is_refused_and_missing_parents_are_created(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "file").write_text("precious")
    result = commands.run(_command(tmp_path / "file", "train"))
    assert result.returncode == errors.ExitCode.CONFIG
    assert "is a file" in result.stderr
    assert (tmp_path / "file").read_text() == "precious"
    _run(str(tmp_path / "no" / "such" / "parent"), train_steps=5)
    assert (tmp_path / "no" / "such" / "parent" / "ckpt-5.index").exists()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "name",
    [
        "größe-模型 🙂/",
        "link",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("n" * 200, "relative")),
    ],
)
def test_model_directory_path_may_be_relative_a_symlink_long_or_non_ascii(
    tmp_path: pathlib.Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if name == "link":
        (tmp_path / "target").mkdir()
        (tmp_path / "link").symlink_to("target")
    model_dir = name if name == "relative" else f"{tmp_path}/{name}"
    _run(model_dir, train_steps=10)
    _run(model_dir, train_steps=25, mode="train_and_eval")
    saved = [int(path.rpartition("-")[2]) for path in latest.find_checkpoints(model_dir)]
    assert saved == [5, 10, 15, 20, 25]
    steps = [record["step"] for record in _records(pathlib.Path(model_dir), "validation")]
    assert steps == [25]


@pytest.mark.slow
def test_second_training_run_in_a_busy_directory_is_refused_but_evaluation_is_allowed(
    tmp_path: pathlib.Path,
) -> None:
    model_dir = tmp_path / "run"
    args = ["--set=trainer.train_steps=100000000", "--set=trainer.checkpoint_interval=1000"]
    args += ["--set=runtime.execution=graph", "--set=trainer.steps_per_loop=100"]
    first = commands.Command(_command(model_dir, "train", *args))
    waiting.wait_for(
        lambda: latest.find_checkpoints(str(model_dir)), alive=lambda: first.returncode is None
    )
    second = commands.run(_command(model_dir, "train", *args))
    assert second.returncode == errors.ExitCode.BUSY
    assert f"process {first.pid} on" in second.stderr
    assert commands.run(_command(model_dir, "eval", *args)).returncode == 0
    assert first.returncode is None
    first.kill()
    assert (model_dir / ".lock").exists()
    step = int(latest.latest_checkpoint(str(model_dir)).rpartition("-")[2])
    again = [*args, f"--set=trainer.train_steps={step + 10}"]
    third = commands.run(_command(model_dir, "train", *again))
    assert third.returncode == 0, third.stderr[-2000:]
    assert f"process {first.pid} on" in third.stderr, (
        "the message names the former owner of the lock"
    )
    assert not (model_dir / ".lock").exists()


def test_restart_after_the_last_step_runs_only_a_missing_evaluation(
    tmp_path: pathlib.Path,
) -> None:
    _run(str(tmp_path))
    assert run_record.is_finished(_params(), "train", str(tmp_path))
    assert not run_record.is_finished(_params(), "train_and_eval", str(tmp_path))
    trained = _records(tmp_path, "train")
    _run(str(tmp_path), mode="train_and_eval")
    assert _records(tmp_path, "train") == trained
    assert [record["step"] for record in _records(tmp_path, "validation")] == [10]
    assert run_record.is_finished(_params(), "train_and_eval", str(tmp_path))


class BreaksTheDisk(orbit.Hook):
    """A hook that makes the background save of step 5 fail as if the disk were gone."""

    every_n_steps = 1

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.last_step = 0

    def before_train(self) -> None:
        def fail(*args: Any) -> None:
            raise tf.errors.UnavailableError(None, None, "the disk is gone")

        self._monkeypatch.setattr("official_lite.checkpoint.commit.write", fail)

    def after_step(self) -> None:
        self.last_step = self.controller.step
        manager = self.controller.checkpoint_manager
        if self.last_step == 6:
            waiting.wait_for(lambda: not manager.is_saving)


def test_background_save_error_is_raised_at_the_next_step(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params, hook = _params(1000), BreaksTheDisk(monkeypatch)
    task = task_factory.get_task(params.task)
    with pytest.raises(tf.errors.UnavailableError, match="the disk is gone"):
        train_lib.run_experiment(None, task, "train", params, str(tmp_path), hooks=[hook])
    assert hook.last_step == 6
    assert latest.latest_checkpoint(str(tmp_path)) is None


def test_first_metrics_after_a_restart_cover_only_the_steps_since_the_restart(
    tmp_path: pathlib.Path, two_replicas: tf.distribute.MirroredStrategy
) -> None:
    def run(name: str, train_steps: int, log_interval: int) -> None:
        # Recovery is disabled, because with it there would be a report before each checkpoint.
        trainer = {"log_interval": log_interval, "recovery_max_trials": -1}
        params = _params(train_steps, trainer=trainer)
        with two_replicas.scope():
            task = task_factory.get_task(params.task)
        train_lib.run_experiment(two_replicas, task, "train", params, str(tmp_path / name))

    run("unbroken", 20, log_interval=5)
    run("broken", 15, log_interval=10)
    run("broken", 20, log_interval=10)
    unbroken, broken = (_records(tmp_path / name, "train") for name in ("unbroken", "broken"))
    assert [record["step"] for record in broken] == [10, 15, 20]
    for name in ("training_loss", "accuracy"):
        assert broken[-1][name] == unbroken[-1][name], "the metrics cover only steps 16 to 20"


def test_run_restarted_without_its_checkpoints_warns_only_on_the_first_restart(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    _run(str(tmp_path), train_steps=5)
    for path in tmp_path.glob("ckpt-*"):
        path.unlink()
    (tmp_path / "checkpoint").unlink()
    _run(str(tmp_path), train_steps=5)
    assert "has reached step 5, but its checkpoints are gone" in caplog.text
    caplog.clear()
    _run(str(tmp_path), train_steps=10)
    assert "are gone" not in caplog.text


@pytest.mark.slow
def test_changed_config_is_shown_and_refused_without_allow_config_change(
    tmp_path: pathlib.Path,
) -> None:
    model_dir = tmp_path / "run"
    args = ["--set=trainer.train_steps=20", "--set=trainer.checkpoint_interval=10"]

    def start(*more: str) -> subprocess.CompletedProcess[str]:
        return commands.run(_command(model_dir, "train", *args, *more))

    _run(str(model_dir))
    before = {path.name: path.stat().st_mtime_ns for path in model_dir.iterdir()}
    changed = ("--set=task.train_data.global_batch_size=32",)
    refused = start(*changed)
    assert refused.returncode == errors.ExitCode.CONFIG
    assert "task.train_data.global_batch_size: 64 -> 32" in refused.stderr
    assert {path.name: path.stat().st_mtime_ns for path in model_dir.iterdir()} == before
    allowed = start(*changed, "--allow_config_change")
    assert allowed.returncode == 0, allowed.stderr[-2000:]
    assert "global_batch_size: 64" in (model_dir / "params.1.yaml").read_text()
    assert "global_batch_size: 32" in (model_dir / "params.yaml").read_text()
