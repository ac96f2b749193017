"""An experiment of another project, found in each of the three ways that a command supports."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from tests import commands

CONFIGS = """
import dataclasses

from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory, task_factory


@dataclasses.dataclass
class SineConfig(cfg.TaskConfig):
    width: int = 4


task_factory.register_task_cls(SineConfig, "acme_sine.task:SineTask")


@exp_factory.register_config_factory("acme/sine")
def sine() -> cfg.ExperimentConfig:
    params = cfg.ExperimentConfig(task=SineConfig())
    params.override({
        "task": {
            "train_data": {"global_batch_size": 8, "is_training": True},
            "validation_data": {"global_batch_size": 10, "is_training": False},
        },
        "trainer": {
            "train_steps": 6,
            "checkpoint_interval": 3,
            "writers": ["jsonl"],
            "optimizer_config": {
                "optimizer": {"type": "sgd"},
                "learning_rate": {"type": "constant"},
            },
        },
        "runtime": {"distribution_strategy": "one_device", "execution": "graph"},
    })
    return params
"""

TASK = """
import keras
import numpy as np
import tensorflow as tf

from official_lite.core import base_task
from official_lite.data import arrays


class SineTask(base_task.Task):
    def build_model(self):
        width = self.task_config.width
        return keras.Sequential([keras.Input((1,)), keras.layers.Dense(width, "tanh"),
                                 keras.layers.Dense(1)])

    def build_inputs(self, params, input_context=None):
        x = np.linspace(-3, 3, 40, dtype=np.float32)[:, np.newaxis]
        return arrays.from_arrays((x, np.sin(x)), params.global_batch_size,
                                  shuffle=params.is_training, repeat=params.is_training,
                                  input_context=input_context)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return tf.reduce_mean(tf.square(labels - model_outputs))
"""


def _write_package(directory: pathlib.Path) -> None:
    package = directory / "acme_sine"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "configs.py").write_text(CONFIGS)
    (package / "task.py").write_text(TASK)


def _note_as_installed(directory: pathlib.Path, name: str, module: str) -> None:
    """Write the metadata of an installed distribution that has an entry point for experiments."""
    notes = directory / f"{name}-2.0.dist-info"
    notes.mkdir()
    (notes / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.0\n")
    (notes / "entry_points.txt").write_text(f"[official_lite.experiments]\nmine = {module}\n")


def _arguments(experiment: str = "acme/sine") -> list[str]:
    return [f"--experiment={experiment}", "--mode=train_and_eval", "--model_dir=run"]


def _assert_trained(directory: pathlib.Path) -> None:
    assert json.loads((directory / "run" / "run.json").read_text())["status"] == "done"
    records = [json.loads(x) for x in (directory / "run" / "metrics.json").read_text().splitlines()]
    assert [r["step"] for r in records if r["split"] == "validation"] == [6]


@pytest.mark.slow
def test_installed_experiments_are_found_despite_a_broken_entry_point(
    tmp_path: pathlib.Path,
) -> None:
    installed, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    _write_package(installed)
    _note_as_installed(installed, "acme_sine", "acme_sine.configs")
    _note_as_installed(installed, "acme_broken", "acme_sine.gone")
    elsewhere.mkdir()

    def run(experiment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(commands.ROOT / "train.py"), *_arguments(experiment)],
            cwd=elsewhere,
            env={**os.environ, "PYTHONPATH": str(installed)},
            capture_output=True,
            text=True,
        )

    done = run("acme/sine")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "`mine = acme_sine.gone` of acme_broken 2.0 can't be imported" in done.stderr
    _assert_trained(elsewhere)
    unknown = run("acme/sin")
    assert unknown.returncode == 2
    assert "Did you mean `acme/sine`?" in unknown.stderr
    assert unknown.stderr.splitlines()[-1].count("acme_broken") == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("way", ["--import", "registry_imports.py"])
def test_experiment_outside_the_repository_trains_with_a_copy_of_train_py(
    tmp_path: pathlib.Path, way: str
) -> None:
    _write_package(tmp_path)
    shutil.copy(commands.ROOT / "train.py", tmp_path)
    names_it = way == "registry_imports.py"
    (tmp_path / "registry_imports.py").write_text("import acme_sine.configs" if names_it else "")
    command = [tmp_path / "train.py", *_arguments()]
    if not names_it:
        command.append("--import=acme_sine.configs")
    done = commands.run(command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    _assert_trained(tmp_path)
