"""The trainer and the launcher of the Model Garden's page, run by name from everywhere."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SOURCE = pathlib.Path(__file__).parent / "projects" / "custom_launcher.py.txt"
SHORT = ["--set=trainer.train_steps=40", "--set=trainer.validation_interval=20"]


def _launch(directory: pathlib.Path, *args: str) -> dict[str, float]:
    """Runs the launcher; returns the metrics that it sent to its channel."""
    script = directory / "launcher.py"
    script.write_text(SOURCE.read_text())
    command = [sys.executable, str(script), "--experiment=vision/digits_mlp"]
    command += ["--mode=train_and_eval", f"--model_dir={directory / 'run'}", *SHORT, *args]
    (directory / "run").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, cwd=directory, env=environment)
    start, metrics = (directory / "run" / "notifications.txt").read_text().splitlines()
    assert start == "start"
    assert (directory / "run" / "operative_config.train_and_eval.gin").exists()
    return json.loads(metrics)


@pytest.mark.parametrize("by", ["yaml", "gin", "python"])
@pytest.mark.slow
def test_custom_trainer_is_found_by_name(tmp_path: pathlib.Path, by: str) -> None:
    config = tmp_path / "trainer.yaml"
    config.write_text("trainer: {name: custom}")
    flag = {
        "yaml": f"--config_file={config}",
        "gin": "--gin_params=create_trainer.trainer_cls = @CustomTrainer",
        "python": "--from_python",
    }[by]
    metrics = _launch(tmp_path, flag)
    assert metrics["from_custom_trainer"] == 1.0
    assert 0 < metrics["accuracy"] <= 1
    report = json.loads((tmp_path / "run" / "metrics.json").read_text().splitlines()[-2])
    assert (report["step"], report["optimizer_iterations"], report["model_global_step"]) == (
        40,
        40,
        40,
    )
