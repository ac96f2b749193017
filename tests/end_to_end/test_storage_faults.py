"""Runs whose files are damaged or truncated, or don't fit on the disk.

The faults are listed in docs/reliability.md.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import registry_imports  # noqa: F401  (imported for its registrations)
from official_lite import pipeline, telemetry
from official_lite.checkpoint import commit, committed_checkpoint_manager, latest
from official_lite.common import errors
from official_lite.core import exp_factory
from tests import commands, waiting

ROOT = pathlib.Path(__file__).parents[2]
DATA = "data-00000-of-00001"


def _train(
    model_dir: pathlib.Path,
    train_steps: int,
    *,
    mode: str = "train",
    may_change: bool = False,
    units: tuple[int, ...] = (),
    **trainer: Any,
) -> keras.Model:
    params = exp_factory.get_exp_config("vision/digits_mlp")
    params.override(
        {
            "runtime": {"execution": "graph", "distribution_strategy": "off"},
            "trainer": {
                "train_steps": train_steps,
                "checkpoint_interval": 10,
                "max_to_keep": 3,
                "writers": ["jsonl"],
                **trainer,
            },
        }
    )
    if units:
        params.override({"task": {"model": {"units": units}}})
    run = pipeline.RunPipeline(params, mode, str(model_dir), allow_config_change=may_change)
    model, _ = run.run()
    return model


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Train for 30 steps, with checkpoints at steps 10, 20 and 30."""
    model_dir = tmp_path_factory.mktemp("runs") / "trained"
    _train(model_dir, 30)
    return model_dir


@pytest.fixture
def run(trained: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a copy of the trained run for a test to damage."""
    return pathlib.Path(shutil.copytree(trained, tmp_path / "run"))


def _checkpoints(model_dir: pathlib.Path) -> list[int]:
    return [commit.step_of(path) for path in latest.find_checkpoints(str(model_dir))]


def _trained_from(model_dir: pathlib.Path) -> int:
    """Return the step from which the latest start of the run continued."""
    lines = [line for line in _log(model_dir) if "Training from step" in line]
    return int(lines[-1].partition("from step ")[2].split()[0])


def _log(model_dir: pathlib.Path) -> list[str]:
    return (model_dir / "log.txt").read_text().splitlines()


def _contents(model_dir: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in model_dir.glob("ckpt-*")}


def _cut(path: pathlib.Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def _flip(path: pathlib.Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _empty(path: pathlib.Path) -> None:
    path.write_bytes(b"")


def test_resume_ignores_a_checkpoint_without_a_commit_file(
    run: pathlib.Path, log_as_train_py_does: None
) -> None:
    (run / "ckpt-30.commit.json").unlink()
    _train(run, 30)
    assert _trained_from(run) == 20
    assert _checkpoints(run) == [10, 20, 30]


def test_run_from_an_older_version_skips_checkpoints_with_damaged_commit_files(
    run: pathlib.Path, log_as_train_py_does: None
) -> None:
    for path in run.glob("*.chain.jsonl"):
        path.unlink()
    for step in (10, 20, 30):
        commit.write(str(run / f"ckpt-{step}"))  # Older versions did not chain their commit files.
    _cut(run / "ckpt-30.commit.json")
    _train(run, 30)
    assert _trained_from(run) == 20
    assert _checkpoints(run) == [10, 20, 30]


def test_next_save_deletes_an_old_checkpoint_left_by_a_killed_run(run: pathlib.Path) -> None:
    for path in run.glob("ckpt-10.*"):
        shutil.copy(path, run / path.name.replace("-10", "-5"))
    commit.write(str(run / "ckpt-5"))
    state = run / "checkpoint"
    listed = 'all_model_checkpoint_paths: "ckpt-5"\n'
    state.write_text(state.read_text().replace("all_model", listed + "all_model", 1))
    _train(run, 40)
    assert _checkpoints(run) == [20, 30, 40]


SAVE_AGAIN_AND_AGAIN = """
import itertools, sys
import tensorflow as tf
from absl import logging
from official_lite.checkpoint import async_checkpoint_manager

step, weights = tf.Variable(0), tf.Variable(tf.zeros([5_000_000]))
manager = async_checkpoint_manager.AsyncCheckpointManager(
    tf.train.Checkpoint(step=step, weights=weights), sys.argv[1], max_to_keep=2
)
manager.restore_or_initialize()
assert set(weights.numpy()) == {float(step)}, "the weights are of another step"
print(f"restored step {int(step)}", file=sys.stderr, flush=True)
while True:
    step.assign_add(1)
    weights.assign_add(tf.ones_like(weights))
    manager.save(step, options=tf.train.CheckpointOptions(enable_async=True))
"""


def _is_saving(directory):
    try:
        return any(directory.glob("*_temp/*"))
    except FileNotFoundError:  # The temporary directory was removed while it was listed.
        return False


@pytest.mark.slow
def test_kills_during_saves_leave_at_most_one_extra_checkpoint_on_disk(
    tmp_path: pathlib.Path,
) -> None:
    directory, restored = tmp_path / "run", []
    (tmp_path / "save.py").write_text(SAVE_AGAIN_AND_AGAIN)
    for delay in (0.0, 0.01, 0.02, 0.05):
        process = commands.Command([tmp_path / "save.py", directory])
        process.wait_for("restored step ")
        restored.append(int(process.stderr.partition("restored step ")[2].split()[0]))
        waiting.wait_for(lambda: _is_saving(directory) and _newest(directory) > restored[-1])
        time.sleep(delay)
        process.kill()
    assert restored == sorted(restored)
    assert restored[-1] > 0
    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    # There are two kept checkpoints, one that will replace the older one, and an unfinished one.
    assert size < 4.2 * 5_000_000 * 4


def _newest(directory: pathlib.Path) -> int:
    paths = commit.list_committed(str(directory))
    return commit.step_of(paths[-1]) if paths else 0


@pytest.fixture
def small_disk(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    with _disk(tmp_path / "disk", "480k") as directory:
        yield directory


@contextlib.contextmanager
def _disk(directory: pathlib.Path, size: str) -> Iterator[pathlib.Path]:
    """Mount a file system of a given size at a new directory."""
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system is not permitted")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def _fill(disk: pathlib.Path, room: int) -> pathlib.Path:
    """Fill the disk except for `room` bytes, and return the file that fills it."""
    filler = disk / "filler"
    filler.write_bytes(bytes(max(0, shutil.disk_usage(disk).free - room)))
    return filler


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("reserve", "said"),
    [(1.2, "Can't save a checkpoint"), (0.0, "The disk is full")],
    ids=["foreseen", "unforeseen"],
)
def test_full_disk_is_reported_and_existing_checkpoints_are_kept(
    tmp_path: pathlib.Path, reserve: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide: dict[str, Any] = {"max_to_keep": 2, "units": (4000,)}
    with _disk(tmp_path / "disk", "16m") as disk:
        model_dir = disk / "run"
        _train(model_dir, 20, **wide)
        before = _contents(model_dir)
        monkeypatch.setattr(committed_checkpoint_manager, "_RESERVE", reserve)
        # A checkpoint needs more than three times this space, but all other files need far less.
        filler = _fill(disk, 1_000_000)
        with pytest.raises(errors.CheckpointError, match=said) as error:
            _train(model_dir, 30, **wide)
        assert error.value.exit_code == errors.ExitCode.CHECKPOINT
        assert _contents(model_dir) == before
        assert not list(model_dir.glob("*_temp"))
        filler.unlink()
        _train(model_dir, 30, **wide)
        assert _checkpoints(model_dir) == [20, 30]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("file", "damage"),
    [
        (DATA, _cut),
        (DATA, pathlib.Path.unlink),
        (DATA, _flip),
        ("index", _cut),
        ("index", _empty),
        ("commit.json", _cut),
    ],
)
def test_run_restores_the_checkpoint_before_a_damaged_one_and_logs_both_paths(
    run: pathlib.Path, log_as_train_py_does: None, file: str, damage: Callable[[pathlib.Path], None]
) -> None:
    damage(run / f"ckpt-30.{file}")
    _train(run, 40)
    assert _trained_from(run) == 20
    said = [line for line in _log(run) if "Restoring" in line]
    assert f"Restoring {run / 'ckpt-20'}" in said[0]
    assert f"{run / 'ckpt-30'} is damaged" in said[0]
    assert (run / "damaged" / "ckpt-30").is_dir()
    assert _checkpoints(run) == [20, 30, 40]


def test_evaluation_uses_the_checkpoint_before_a_damaged_one_and_moves_no_files(
    run: pathlib.Path,
) -> None:
    _flip(run / f"ckpt-30.{DATA}")
    before = _contents(run)
    _train(run, 30, mode="eval")
    assert json.loads((run / "run.eval.json").read_text())["global_step"] == 20
    assert _contents(run) == before
    assert not (run / "damaged").exists()


@pytest.mark.slow
def test_run_resumed_from_the_checkpoint_before_a_damaged_one_equals_an_uninterrupted_run(
    run: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    _flip(run / f"ckpt-30.{DATA}")
    unbroken = _train(tmp_path / "unbroken", 40).get_weights()
    for a, b in zip(_train(run, 40).get_weights(), unbroken, strict=True):
        np.testing.assert_array_equal(a, b)


def test_run_with_only_damaged_checkpoints_is_refused_and_keeps_its_files(
    run: pathlib.Path,
) -> None:
    for step in (10, 20, 30):
        _cut(run / f"ckpt-{step}.{DATA}")
    before = _contents(run)
    for _ in range(2):
        with pytest.raises(errors.CheckpointError, match="ckpt-30, ckpt-20, ckpt-10") as error:
            _train(run, 40)
        assert error.value.exit_code == errors.ExitCode.CHECKPOINT
    assert _contents(run) == before


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "content",
    [b"garbage", b"", None, b"\xff\xfe\x00", b'model_checkpoint_path: "../outside/ckpt-99"\n'],
    ids=["garbage", "empty", "missing", "not utf-8", "outside"],
)
def test_training_resumes_from_the_latest_checkpoint_whatever_the_checkpoint_state_file_contains(
    run: pathlib.Path, log_as_train_py_does: None, content: bytes | None
) -> None:
    outside = run.parent / "outside"
    shutil.copytree(run, outside)
    for path in outside.glob("ckpt-30.*"):
        path.rename(outside / path.name.replace("30", "99"))
    state = run / "checkpoint"
    state.unlink() if content is None else state.write_bytes(content)
    _train(run, 40)
    assert _trained_from(run) == 30
    assert tf.train.latest_checkpoint(str(run)) == str(run / "ckpt-40"), (
        "the state file is repaired"
    )


def test_latest_checkpoint_is_chosen_by_step_and_not_by_time(
    run: pathlib.Path, log_as_train_py_does: None
) -> None:
    yesterday = time.time() - 86_400
    for path in run.glob("ckpt-30.*"):
        os.utime(path, (yesterday, yesterday))
    state = run / "checkpoint"
    lines = [line for line in state.read_text().splitlines() if "timestamp" not in line]
    lines.append(f"last_preserved_timestamp: {time.time() + 86_400}")
    state.write_text("\n".join(lines) + "\n")
    _train(run, 40)
    assert _trained_from(run) == 30
    assert _checkpoints(run) == [20, 30, 40]


def test_commit_file_describes_the_run_in_less_than_2_percent_of_the_checkpoint_size(
    run: pathlib.Path,
) -> None:
    said = json.loads((run / "ckpt-30.commit.json").read_text())
    assert said["step"] == 30
    state = said["state"]
    assert state["optimizer"]["class"] == "AdamWeightDecay"
    assert (state["global_batch_size"], state["execution"]) == (64, "graph")
    assert ["logits/kernel", [64, 10]] in state["model"]["variables"]
    plain = sum(said["files"].values())
    assert (run / "ckpt-30.commit.json").stat().st_size < 0.02 * plain


def test_checkpoint_of_a_different_optimizer_is_refused_even_with_allow_config_change(
    run: pathlib.Path,
) -> None:
    before = _contents(run)
    adam = {"optimizer": {"type": "adam"}}
    with pytest.raises(errors.ConfigValueError, match=r"optimizer\.type: adamw -> adam"):
        _train(run, 40, optimizer_config=adam)
    with pytest.raises(errors.CheckpointError, match="AdamWeightDecay; this run uses Adam"):
        _train(run, 40, may_change=True, optimizer_config=adam)
    assert _contents(run) == before


def test_training_on_a_full_disk_loses_metrics_with_a_warning_but_continues(
    small_disk: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = small_disk / "metrics.json"
    writers = [telemetry.JsonLinesWriter(path), telemetry.TensorBoardWriter(small_disk / "events")]

    def write(step: int) -> None:
        # The values are larger than the buffer of an event file.
        values = {f"value_{index}": float(index) for index in range(2000)}
        for one in writers:
            one.write(telemetry.Record(step=step, split="train", values=values))
            one.flush()

    write(1)
    filler = small_disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(b"0" * 1000):
            pass
    write(2)
    write(3)
    filler.unlink()
    write(4)
    for one in writers:
        one.close()
    steps = [json.loads(line)["step"] for line in path.read_text().splitlines()]
    assert steps[0] == 1
    assert steps[-1] == 4
    assert 3 not in steps
    assert "metrics.json, so lines are lost" in caplog.text


_RUN = [
    "train.py",
    "--experiment=vision/digits_mlp",
    "--set=runtime.execution=graph",
    "--set=runtime.distribution_strategy=off",
    "--set=trainer.steps_per_loop=5",
    "--set=trainer.summary_interval=5",
    "--set=trainer.validation_interval=20",
    "--set=trainer.checkpoint_interval=20",
    "--set=trainer.writers=[jsonl,csv,tensorboard]",
]
_SEARCH = [
    *_RUN,
    "--mode=search",
    "--set=trainer.train_steps=20",
    "--set=search={space: {task.model.units: [[8], [16]]}, metric: accuracy, direction: maximize, "
    "strategy: random, num_trials: 2}",
]
_TOOL = ["-m", "official_lite.tools"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "room", "file"),
    [
        ([*_RUN, "--mode=train_and_eval"], 0, ".lock"),
        ([*_RUN, "--mode=train_and_eval"], 8_000, "checkpoints.chain.jsonl"),
        ([*_RUN, "--mode=train_and_eval"], 16_000, "params.yaml"),
        ([*_RUN, "--mode=train_and_eval"], 40_000, "run.json"),
        ([*_RUN, "--mode=train_and_eval"], 64_000, "best_ckpt"),  # No room for events, CSV, log.
        ([*_RUN, "--mode=train_and_eval"], 200_000, "run"),
        ([*_TOOL, "report", "DISK/run", "--output=DISK/report.html"], 0, "report.html"),
        ([*_TOOL, "export", "DISK/run", "--output=DISK/export"], 16_000, "export"),
        ([*_TOOL, "export", "DISK/run", "--format=litert"], 16_000, "export"),
        ([*_TOOL, "export", "DISK/run", "--format=onnx"], 16_000, "export"),
        (_SEARCH, 0, "study.journal"),
        (_SEARCH, 4_000, "study.journal"),
        (_SEARCH, 60_000, "trials/0000"),
        ([*_SEARCH, "--set=search.storage=sqlite:///DISK/study.db"], 8_000, "database"),
        # The database or the first trial fills the disk, whichever comes first.
        ([*_SEARCH, "--set=search.storage=sqlite:///DISK/study.db"], 150_000, "database|DISK/run"),
    ],
)
def test_command_that_fails_on_a_full_disk_reports_it_and_can_be_repeated(
    tmp_path: pathlib.Path, command: list[str], room: int, file: str
) -> None:
    with _disk(tmp_path / "disk", "4m") as disk:
        args = [arg.replace("DISK", str(disk)) for arg in command]
        train = [*_RUN, "--mode=train_and_eval", f"--model_dir={disk / 'run'}"]
        if "train.py" in args:
            args.append(f"--model_dir={disk / 'run'}")
        else:
            assert commands.run([*train, "--set=trainer.train_steps=20"]).returncode == 0
        if "--mode=train_and_eval" in args:
            args.append("--set=trainer.train_steps=60")
        before = {path: path.read_bytes() for path in disk.rglob("*") if path.is_file()}
        filler = _fill(disk, room)
        failed = commands.run(args)
        said = failed.stderr.splitlines()[-1]
        assert failed.returncode == errors.ExitCode.CHECKPOINT, failed.stderr
        assert "The disk is full" in said or "bytes are free" in said
        assert any(name.replace("DISK", str(disk)) in said for name in file.split("|"))
        assert "Traceback" not in failed.stderr
        assert all(path.read_bytes() == content for path, content in before.items())
        filler.unlink()
        again = commands.run(args)
        assert again.returncode == 0, again.stderr
        assert not [path for path in disk.rglob("*") if re.search(r"_temp|\.tmp$", path.name)]


@pytest.mark.slow
def test_launched_processes_finish_although_their_log_files_fill_the_disk(
    tmp_path: pathlib.Path,
) -> None:
    said_all = tmp_path / "said_all"
    code = (
        f"import pathlib\nfor _ in range(5000): print('x' * 100)\npathlib.Path({str(said_all)!r})"
    )
    program = [sys.executable, "-c", code + ".touch()"]
    with _disk(tmp_path / "disk", "100k") as disk:
        launch = [*_TOOL, "launch", "--workers=2", f"--log_dir={disk}", "--", *program]
        launched = commands.run(launch)
        assert launched.returncode == 0, launched.stderr
        lost = [line for line in launched.stderr.splitlines() if "so lines are lost" in line]
        assert all("No space left on device" in line for line in lost)
        assert {line.partition("Can't write ")[2].partition(",")[0] for line in lost} == {
            str(disk / "worker_0.log"),
            str(disk / "worker_1.log"),
        }
        assert launched.stdout.count("worker 0 | xxx") == 5000
    assert said_all.exists()
