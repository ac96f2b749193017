"""The metrics and best checkpoints of a run that was killed.

A kill leaves the files as they are at that moment. Tests therefore copy the model directory while a
run is training, and resume the run in the copy.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal

import pytest
import tensorflow as tf

import registry_imports  # noqa: F401  (imported for its registrations)
from benchmarks import chaos
from official_lite.core import exp_factory, task_factory, train_lib
from tests import commands


def _train(model_dir, hooks=(), asynchronous=True, **trainer):
    params = exp_factory.get_exp_config("vision/digits_mlp")
    params.runtime.override({"execution": "graph"})
    params.trainer.override(
        {
            "train_steps": 60,
            "steps_per_loop": 10,
            "checkpoint_interval": 20,
            "validation_interval": 10,
            "best_checkpoint_export_subdir": "best_ckpt",
            "writers": ["jsonl", "csv", "tensorboard"],
            "hooks": [
                {"name": "best_checkpoint", "metric": "accuracy", "directory": "best_of_hook"}
            ],
            **trainer,
        }
    )
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        task = task_factory.get_task(params.task, logging_dir=str(model_dir))
    train_lib.run_experiment(
        strategy,
        task,
        "train_and_eval",
        params,
        str(model_dir),
        hooks=hooks,
        enable_async_checkpointing=asynchronous,
    )


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    model_dir = tmp_path_factory.mktemp("unbroken") / "run"
    _train(model_dir)
    return chaos.what_is_left(model_dir)


def test_metric_files_are_synced_to_disk_before_a_checkpoint_is_committed(tmp_path, monkeypatch):
    """At each commit, compare the files with the synced files, which survive a power loss."""
    seen, synced = {}, set()
    fsync, replace = os.fsync, os.replace

    def noting(fd):
        fsync(fd)
        path = pathlib.Path(os.readlink(f"/proc/self/fd/{fd}"))
        if path.is_relative_to(tmp_path):
            synced.add((path.relative_to(tmp_path / "run"), path.stat().st_size))

    def committing(source, target):
        name = pathlib.Path(target).name
        if name.startswith("ckpt-") and name.endswith(".commit.json"):
            kinds = ("metrics.json", "metrics_*.csv", "train/events*", "validation/events*")
            found = [path for kind in kinds for path in (tmp_path / "run").glob(kind)]
            seen[name] = {(p.relative_to(tmp_path / "run"), p.stat().st_size) for p in found}
            assert seen[name] <= synced
            lines = (tmp_path / "run" / "metrics.json").read_text().splitlines()
            steps = [json.loads(line)["step"] for line in lines]
            assert steps[-2:] == [int(name.split("-")[1].split(".")[0])] * 2
        replace(source, target)

    monkeypatch.setattr("os.fsync", noting)
    monkeypatch.setattr("os.replace", committing)
    # There is no initial checkpoint, because no metrics would be recorded for it.
    common = {"recovery_max_trials": 0, "validation_interval": 20}
    _train(tmp_path / "run", asynchronous=False, **common)
    assert list(seen) == ["ckpt-20.commit.json", "ckpt-40.commit.json", "ckpt-60.commit.json"]
    assert all(len(files) == 5 for files in seen.values())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_run_killed_at_any_file_rename_resumes_to_the_results_of_an_uninterrupted_run(
    unbroken, tmp_path, monkeypatch
):
    copies = []
    replace = os.replace

    def copying(source, target):
        # Ignore files that other tests in this process may still be writing.
        if pathlib.Path(target).is_relative_to(tmp_path / "run"):
            copies.append(tmp_path / f"copy_{len(copies)}")
            with contextlib.suppress(shutil.Error):
                shutil.copytree(tmp_path / "run", copies[-1])
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", copying)
        _train(tmp_path / "run")
    assert len(copies) > 20
    for copy in copies:
        _train(copy)
        assert chaos.differences(unbroken, chaos.what_is_left(copy)) == [], copy


KILLS_ITSELF = '''
import os, pathlib, signal

replace = os.replace

def replace_or_die(source, target):
    """Kill the process once, before file number DIES_AT is moved into the folder DIES_IN."""
    folder, once = os.environ["DIES_IN"], pathlib.Path(os.environ["DIED"])
    if f"/{folder}/" in str(target) and not once.exists():
        with open(f"{once}.count", "a") as count:
            count.write(".")
        if os.path.getsize(f"{once}.count") == int(os.environ["DIES_AT"]):
            once.write_text(os.path.basename(target))
            os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)

os.replace = replace_or_die
'''


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("has_exporter", [True, False], ids=["exporter_and_hook", "two_hooks"])
def test_kill_during_a_best_checkpoint_export_damages_neither_of_two_best_checkpoints(
    tmp_path, has_exporter
):
    """One checkpoint is best by accuracy, and the other one by loss at a different step."""
    plugin = tmp_path / "kills_itself.py"
    plugin.write_text(KILLS_ITSELF)

    def hook(metric, way):
        return {
            "name": "best_checkpoint",
            "metric": metric,
            "direction": way,
            "directory": f"best_{metric}",
        }

    def run(name, dies_in, dies_at=0):
        trainer = {
            "train_steps": 60,
            "steps_per_loop": 10,
            "checkpoint_interval": 20,
            "validation_interval": 10,
            "writers": ["jsonl"],
            "hooks": [hook("validation_loss", "minimize")],
        }
        if has_exporter:
            trainer["best_checkpoint_export_subdir"] = "best_accuracy"
            trainer["best_checkpoint_eval_metric"] = "accuracy"
            trainer["best_checkpoint_metric_comp"] = "higher"
        else:
            trainer["hooks"].append(hook("accuracy", "maximize"))
        overrides = {"runtime": {"execution": "graph"}, "trainer": trainer}
        died = tmp_path / f"{name}.died"
        command = [
            *("train.py", "--experiment=vision/digits_mlp"),
            *("--mode=train_and_eval", f"--model_dir={tmp_path / name}", f"--import={plugin}"),
            f"--params_override={json.dumps(overrides)}",
        ]
        environment = {"DIES_IN": dies_in, "DIES_AT": str(dies_at), "DIED": str(died)}
        codes = []
        while not codes or codes[-1] == -signal.SIGKILL:
            done = commands.run(command, env=environment)
            codes.append(done.returncode)
        assert codes[-1] == 0, done.stderr[-3000:]
        assert died.exists() == (dies_at > 0)
        killed_at.append(died.read_text() if dies_at else "")
        return chaos.what_is_left(tmp_path / name)

    killed_at: list[str] = []
    unbroken = run("unbroken", "nowhere")
    for folder in ("best_accuracy", "best_validation_loss"):
        killed_at.clear()
        # The kills precede the commit file and `info.json` of the first and the second export.
        for dies_at in (1, 2, 3, 4):
            left = run(f"killed_in_{folder}_{dies_at}", folder, dies_at)
            assert chaos.differences(unbroken, left) == [], killed_at
        assert any(name.endswith(".commit.json") for name in killed_at), killed_at
        assert "info.json" in killed_at
        best = json.loads((tmp_path / "unbroken" / folder / "info.json").read_text())
        lines = (tmp_path / "unbroken" / "metrics.json").read_text().splitlines()
        found = [r for r in map(json.loads, lines) if r["split"] == "validation"]
        sign = 1 if folder == "best_accuracy" else -1
        metric = folder.removeprefix("best_")
        highest = max(found, key=lambda record: (sign * record[metric], -record["step"]))
        assert best["best_ckpt_global_step"] == highest["step"]
        assert f"best_ckpt-{highest['step']}.index" in unbroken[f"{folder}/checkpoints"]
