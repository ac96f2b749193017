"""`train.py --mode=search` as a command, also in several processes and after SIGKILL."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from tests import commands, waiting

ROOT = pathlib.Path(__file__).parents[2]
SEARCH = """
search:
  space:
    trainer.optimizer_config.learning_rate.cosine.initial_learning_rate:
      {type: float, low: 1.e-4, high: 1.e-1, log: true}
    task.model.units: [[8], [16]]
  metric: accuracy
  direction: maximize
  strategy: random
trainer:
  train_steps: 12
  steps_per_loop: 4
  validation_interval: 6
  validation_steps: 1
  checkpoint_interval: 4
  best_checkpoint_export_subdir: ""
  best_checkpoint_eval_metric: ""
  writers: [jsonl]
runtime: {execution: graph}
"""


def _args(directory: pathlib.Path, *more: str, study: str = "study") -> list[str]:
    (directory / "search.yaml").write_text(SEARCH)
    flags = [f"--config_file={directory}/search.yaml", "--mode=search"]
    return [
        "train.py",
        "--experiment=vision/digits_mlp",
        *flags,
        f"--model_dir={directory}/{study}",
        *more,
    ]


def _outcomes(study_dir: pathlib.Path) -> dict[str, dict]:
    paths = sorted(study_dir.glob("trials/*/trial.json"))
    return {path.parent.name: json.loads(path.read_text()) for path in paths}


@pytest.mark.slow
def test_search_of_20_trials_on_two_workers_resumes_after_sigkill(tmp_path) -> None:
    args = _args(tmp_path, "--set=search.num_trials=20", "--set=search.num_workers=2")
    command = [sys.executable, *args]
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    study_dir = tmp_path / "study"
    waiting.wait_for(lambda: len(_outcomes(study_dir)) >= 6, alive=lambda: process.poll() is None)
    before = _outcomes(study_dir)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    subprocess.run(command, cwd=ROOT, check=True)
    after = _outcomes(tmp_path / "study")
    assert list(after) == [f"{n:04d}" for n in range(20)]
    assert {name: after[name] for name in before} == before
    begun = {
        name: (tmp_path / "study" / "trials" / name / "log.txt").read_text().count("Command:")
        for name in after
    }
    assert all(begun[name] == 1 for name in before)
    assert sum(begun.values()) <= 22
    assert {outcome["state"] for outcome in after.values()} == {"complete"}


@pytest.mark.slow
def test_trial_gives_the_same_result_with_and_without_process_isolation(tmp_path) -> None:
    values = []
    for isolation in ("none", "process"):
        more = ("--set=search.num_trials=1", f"--set=search.isolation={isolation}")
        command = [sys.executable, *_args(tmp_path, *more, study=isolation)]
        subprocess.run(command, cwd=ROOT, check=True)
        metrics = _outcomes(tmp_path / isolation)["0000"]["metrics"]
        values.append({name: metrics[name] for name in metrics if name != "steps_per_second"})
    assert values[0] == values[1]
    assert values[0].keys() == {"accuracy", "validation_loss", "num_parameters"}


def test_invalid_search_space_exits_with_2_and_writes_nothing(tmp_path) -> None:
    done = commands.run(_args(tmp_path, "--set=search.space={task.model.unitz: [[8]]}"))
    assert done.returncode == 2
    assert "units" in done.stderr
    assert not (tmp_path / "study").exists()


def test_search_without_a_search_block_is_refused(tmp_path) -> None:
    flags = ["--mode=search", f"--model_dir={tmp_path}/study"]
    done = commands.run(["train.py", "--experiment=vision/digits_mlp", *flags])
    assert done.returncode == 2
    assert "Set its `space`" in done.stderr
