"""A training run that is killed and restarted equals an uninterrupted one bit for bit.

`benchmarks.chaos` compares checkpoints, the records of all file writers, and best values.
"""

import sys

import pytest

from benchmarks import chaos
from tests import commands, killed_experiments

# An experiment with all kinds of training state and of random numbers.
EXPERIMENT = '''
import keras

from experiments.vision.digits import configs, task
from official_lite import orbit, telemetry
from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory, task_factory


class WholeConfig(configs.DigitsConfig):
    pass


@task_factory.register_task_cls(WholeConfig)
class WholeTask(task.DigitsTask):
    def build_model(self):
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(8, 3, activation="relu"),
                layers.BatchNormalization(),
                layers.SpatialDropout2D(0.1),
                layers.Flatten(),
                layers.Dropout(0.3),
                layers.Dense(10),
            ]
        )


class Counter(orbit.Hook):
    """Counts its calls, saves the count in the checkpoint and reports it."""

    every_n_steps = 5
    calls = 0

    def after_step(self):
        self.calls += 1
        telemetry.put_scalar("calls", float(self.calls))

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]


@exp_factory.register_config_factory("test/whole")
def whole():
    params = configs.digits_cnn()
    params.task = WholeConfig()
    params.trainer.override(
        {
            "train_steps": 120,
            "steps_per_loop": 10,
            # Splits loops at the same steps on all workers.
            "summary_interval": 25,
            "checkpoint_interval": 15,
            "validation_interval": 20,
            "writers": ["console", "jsonl", "csv", "tensorboard"],
            "hooks": [
                {"name": "early_stopping", "metric": "accuracy", "direction": "maximize",
                 "patience": 50},
                {"name": "PLUGIN:Counter"},
            ],
        }
    )
    params.trainer.optimizer_config.override({"ema": {"average_decay": 0.9}}, is_strict=False)
    return params
'''


@pytest.fixture
def run_chaos(monkeypatch, capsys):
    """Return a function that runs `benchmarks.chaos` in this process and returns its output.

    The training runs are separate processes, each with a new hash seed.
    """

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["chaos", *arguments])
        monkeypatch.chdir(commands.ROOT)
        code = chaos.main()
        printed = capsys.readouterr().out
        assert code == 0, printed
        return printed

    return run


def _kill_and_compare(run_chaos, tmp_path, execution, strategy, *options, flags=()):
    plugin = tmp_path / "plugin.py"
    plugin.write_text(EXPERIMENT.replace("PLUGIN", str(plugin)))
    devices = ["--set=runtime.devices=[CPU:0,CPU:1]"] if strategy == "mirrored" else []
    printed = run_chaos(
        *("--runs=1", *options),
        "--",
        "--experiment=test/whole",
        "--mode=train_and_eval",
        f"--import={plugin}",
        f"--set=runtime.execution={execution}",
        f"--set=runtime.distribution_strategy={strategy}",
        *devices,
        *flags,
    )
    assert "1 of 1 runs equal the uninterrupted one, bit for bit" in printed
    assert "0 kills;" not in printed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("execution", "strategy", "workers", "kills", "flags"),
    [
        pytest.param("graph", "one_device", 1, 1, [], marks=pytest.mark.promise),
        # With two kills, the resumed run is killed and resumed again.
        ("graph", "one_device", 1, 2, ["--noenable_async_checkpointing"]),
        ("xla_loop", "one_device", 1, 1, []),
        ("xla", "mirrored", 1, 1, []),
        pytest.param("graph", "multi_worker_mirrored", 2, 1, [], marks=pytest.mark.promise),
        ("graph", "multi_worker_mirrored", 2, 2, []),
    ],
)
def test_run_killed_at_random_moments_equals_an_uninterrupted_one_bit_for_bit(
    run_chaos, execution, strategy, workers, kills, flags, tmp_path
):
    options = [f"--kills={kills}", f"--workers={workers}"]
    _kill_and_compare(run_chaos, tmp_path, execution, strategy, *options, flags=flags)


@pytest.mark.slow
def test_two_workers_resume_bit_for_bit_after_one_of_them_is_killed(run_chaos, tmp_path):
    options = ("--kills=1", "--workers=2", "--kill_one")
    _kill_and_compare(run_chaos, tmp_path, "graph", "multi_worker_mirrored", *options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kills"),
    [
        ("gan", 10),
        ("table", 10),
        ("mixture", 10),
        ("interleaved", 10),
        ("generated", 3),
        ("callbacks", 3),
    ],
)
def test_repeatedly_killed_run_equals_an_uninterrupted_one_bit_for_bit(
    run_chaos, tmp_path, monkeypatch, request, name, kills
):
    if name == "generated":
        request.getfixturevalue("bfloat16_kernels")
    killed_experiments.write_records(tmp_path)
    monkeypatch.setenv(killed_experiments.FOLDER, str(tmp_path))
    printed = run_chaos(
        *("--runs=1", f"--kills={kills}", f"--seed={name}", "--"),
        *(f"--experiment=tests/{name}", "--import=tests.killed_experiments"),
        "--mode=train_and_eval",
    )
    assert f"{kills} kills; 1 of 1 runs equal the uninterrupted one, bit for bit" in printed
