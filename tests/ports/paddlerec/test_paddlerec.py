"""The stage files of PaddleRec's page on custom training flows, run by `train.py`.

Each folder here is a user's workspace: a config and its stages. The package does not refer to
these folders.
"""

import json
import pathlib
import re
import shutil

import pytest

from tests import commands
from tests.experiments import evaluations

ROOT = pathlib.Path(__file__).parents[3]
HERE = pathlib.Path(__file__).parent


def _train(
    workspace: pathlib.Path, model_dir: pathlib.Path, *args: str, mode: str = "train"
) -> str:
    """Run the command in the parent directory of `model_dir` and return its output."""
    command = [str(ROOT / "train.py"), f"--mode={mode}"]
    command += [f"--config_file={workspace / 'config.yaml'}", f"--model_dir={model_dir}"]
    if not any(arg.startswith("--experiment") for arg in args):
        command.append("--experiment=vision/digits_mlp")
    done = commands.run([*command, *args], cwd=model_dir.parent)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def _stages(model_dir: pathlib.Path) -> list[tuple[str, str]]:
    """Return the names of the stages and of their classes from the log."""
    return re.findall(r"\] stage (\w+): (\w+) \(", (model_dir / "log.txt").read_text())


def _records(model_dir: pathlib.Path, split: str) -> list[dict]:
    lines = (model_dir / "metrics.json").read_text().splitlines()
    return [r for r in map(json.loads, lines) if r["split"] == split]


@pytest.mark.sample(1)
@pytest.mark.parametrize("is_copied", [False, True])
def test_stage_files_of_the_paddlerec_docs_replace_all_five_default_stages(
    tmp_path: pathlib.Path, is_copied: bool
) -> None:
    workspace = HERE / "five_stages"
    if is_copied:
        workspace = shutil.copytree(workspace, tmp_path / "copied" / "elsewhere")
    printed = _train(workspace, tmp_path / "run").splitlines()
    assert printed[:4] == [
        "instance",
        "network of 1210 parameters",
        "startup",
        "Running Runner.",
    ]
    assert [re.sub(r"[\d.e-]+$", "…", line) for line in printed[4:6]] == [
        "epoch 0 done, use time: …",
        "epoch 1 done, use time: …",
    ]
    assert printed[6:] == ["hello and PaddleRec Finish"]
    assert [name for _, name in _stages(tmp_path / "run")] == [
        "Instance",
        "Network",
        "Startup",
        "Runner",
        "Terminal",
    ]
    assert f"({workspace / 'your_runner.py'})" in (tmp_path / "run" / "log.txt").read_text()
    # 1437 examples are 22 steps per epoch, with a record per step and a checkpoint per epoch.
    assert [r["step"] for r in _records(tmp_path / "run", "train")] == list(range(1, 45))
    assert {p.name for p in (tmp_path / "run").glob("*.index")} == {
        "ckpt-22.index",
        "ckpt-44.index",
    }


@pytest.mark.slow
def test_epochs_with_a_fractional_number_of_batches_are_trained_to_the_end(
    tmp_path: pathlib.Path,
) -> None:
    workspace, run = HERE / "five_stages", tmp_path / "run"
    data = ("--set=task.train_data.num_examples=1437", "--set=trainer.steps_per_epoch=0")
    first = _train(workspace, run, *data, "--set=trainer.train_epochs=1")
    assert re.findall(r"epoch (\d+) done", first) == ["0", "1"]
    # 10 epochs are 224.5 batches; the first command has trained on 23 of them.
    second = _train(workspace, run, *data, "--set=trainer.train_epochs=10")
    assert len(re.findall(r"epoch \d+ done", second)) == 10
    assert [r["step"] for r in _records(run, "train")] == list(range(1, 226))


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        pytest.param("null", "single startup", marks=pytest.mark.slow),
        ("[CPU:0, CPU:1]", "cluster startup of 2 replicas"),
    ],
)
def test_paddlerec_tdm_project_replaces_only_the_startup_stage(
    tmp_path: pathlib.Path, devices: str, said: str
) -> None:
    args = (HERE / "tdm", tmp_path / "run", f"--set=runtime.devices={devices}")
    _train(*args, mode="train_and_eval")
    assert _stages(tmp_path / "run") == [
        ("prepare", "Prepare"),
        ("build", "Build"),
        ("initialize", "Startup"),
        ("run", "Run"),
        ("finalize", "Finalize"),
    ]
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "Run TDM Trainer Startup Pass" in log
    assert said in log
    assert "Experiment finished: status=done, step=23" in log
    _train(*args, mode="eval")
    evaluations.assert_recorded_as_in_training(tmp_path / "run")


def test_online_learning_predicts_each_day_before_training_on_it(tmp_path: pathlib.Path) -> None:
    workspace = HERE / "online_learning"
    args = (f"--import={workspace / 'experiment.py'}", "--experiment=clicks")
    _train(workspace, tmp_path / "run", *args, mode="train_and_eval")
    days = _records(tmp_path / "run", "validation")
    assert [day["step"] for day in days] == [0, 20, 40]
    # The slope grows by one each day, and the model has learned the slope of the day before.
    for day in days[1:]:
        assert 0.5 < day["validation_loss"] < 1.5
    assert len(list((tmp_path / "run").glob("ckpt-*.index"))) == 3
    # The last evaluation was before the last day, so remove the checkpoint of that day.
    for path in (tmp_path / "run").glob("ckpt-60.*"):
        path.unlink()
    _train(workspace, tmp_path / "run", *args, mode="eval")
    evaluations.assert_recorded_as_in_training(tmp_path / "run")
