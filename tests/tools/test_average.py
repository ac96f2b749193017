"""Tests of `python -m official_lite.tools average`."""

import json
import os

import pytest
import tensorflow as tf

from official_lite.tools import __main__ as tools
from tests import commands, rounding

# Keras itself triggers this warning with NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def test_average_command_averages_the_last_checkpoints_of_a_run(trained, tmp_path, capsys):
    arguments = ["average", trained, "--last=2", f"--output={tmp_path / 'mean'}"]
    assert tools.main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {
        "path": str(tmp_path / "mean" / "ckpt-6"),
        "checkpoints": [os.path.join(trained, f"ckpt-{step}") for step in (4, 6)],
    }
    assert tools.main(arguments) == 0
    assert "Averaged 2 checkpoints into" in capsys.readouterr().out


def test_averaging_a_single_checkpoint_exits_with_code_5(trained, capsys):
    assert tools.main(["average", trained, "--last=1"]) == 5
    assert "ckpt-6" in capsys.readouterr().err


@pytest.mark.slow
def test_tools_accept_a_multitask_run_or_explain_that_they_need_a_single_task(tmp_path, capsys):
    run_dir = str(tmp_path / "run")
    settings = [
        "task.model={filters: [4], units: [8]}",
        "trainer.train_steps=4",
        "trainer.validation_interval=4",
        "trainer.checkpoint_interval=2",
        "trainer.writers=[jsonl]",
        "runtime.execution=graph",
    ]
    command = ["train.py", "--experiment=vision/digits_multitask", "--mode=train_and_eval"]
    command += [f"--model_dir={run_dir}", *(f"--set={each}" for each in settings)]
    assert commands.run(command).returncode == 0

    assert tools.main(["average", run_dir, f"--output={tmp_path / 'mean'}"]) == 0
    paths = [f"{run_dir}/ckpt-2", f"{run_dir}/ckpt-4", str(tmp_path / "mean" / "ckpt-4")]
    one, two, mean = (tf.train.load_checkpoint(path) for path in paths)
    names = [name for name in mean.get_variable_to_shape_map() if "_trainable_variables" in name]
    # Kernels and biases of two shared layers and of the last layer of each task.
    assert len(names) == 8
    for name in names:
        expected = (one.get_tensor(name) + two.get_tensor(name)) / 2
        rounding.assert_close(mean.get_tensor(name), expected, roundings=2)

    output = f"--output={tmp_path / 'page.html'}"
    for arguments in (
        ["report", run_dir, output],
        ["runs", "list", str(tmp_path)],
        ["checkpoints", "list", run_dir],
        ["checkpoints", "inspect", f"{run_dir}/ckpt-4"],
        ["config", "show", run_dir, "task.task_routines"],
    ):
        assert tools.main(arguments) == 0
    capsys.readouterr()
    for arguments, answer in (
        (
            ["average", run_dir, "--recalibration_steps=1"],
            "supports only experiments with one task",
        ),
        (["average", run_dir, f"--output={tmp_path}/mean.keras"], "one per task"),
        (["export", run_dir], r"write_model(model.sub_tasks[name]"),
        (["tune", "lr", run_dir], "`tools runs compare`"),
    ):
        assert tools.main(arguments) == 2
        assert answer in capsys.readouterr().err
