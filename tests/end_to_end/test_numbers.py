"""Runs whose values become NaN; docs/reliability.md lists these faults."""

import json
import pathlib
import subprocess

import numpy as np
import pytest
import tensorflow as tf

from tests import commands

# A task that multiplies the training batches from BEGIN to END by FACTOR, and whose score is NaN at
# step 20.
POISONED = """
import math
import os

import tensorflow as tf

from experiments.vision.digits import configs, task
from official_lite.core import exp_factory, task_factory
from official_lite.data import position

BEGIN, END, FACTOR = (float(os.environ[name]) for name in ("BEGIN", "END", "FACTOR"))


class PoisonedConfig(configs.DigitsConfig):
    pass


@task_factory.register_task_cls(PoisonedConfig)
class PoisonedTask(task.DigitsTask):
    def build_inputs(self, params, input_context=None):
        dataset = super().build_inputs(params, input_context)
        if not params.is_training:
            return dataset

        def poison(number, batch):
            number = tf.cast(number, tf.float32)
            is_bad = (number >= BEGIN) & (number < END)
            return batch[0] * tf.where(is_bad, FACTOR, 1.0), batch[1]

        return position.enumerate_batches(dataset, input_context).map(poison)

    def aggregate_logs(self, state=None, step_outputs=None):
        return 0

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
        return {"score": math.nan if int(global_step) == 20 else 1.0 / int(global_step)}


@exp_factory.register_config_factory("test/poisoned")
def poisoned():
    params = configs.digits_mlp()
    params.task = PoisonedConfig(model=params.task.model, train_data=params.task.train_data)
    return params
"""
TRAINER = {
    "train_steps": 40,
    "steps_per_loop": 10,
    "checkpoint_interval": 10,
    "validation_interval": 20,
    "max_to_keep": 9,
    "best_checkpoint_eval_metric": "score",
    "best_checkpoint_metric_comp": "lower",
    "recovery_max_trials": 1,
}


def _train(
    directory: pathlib.Path, begin: int, end: int, factor: str, **trainer: object
) -> subprocess.CompletedProcess[str]:
    (directory / "poisoned.py").write_text(POISONED)
    command = ["train.py", f"--import={directory / 'poisoned.py'}"]
    command += ["--experiment=test/poisoned", "--mode=train_and_eval"]
    command += [f"--model_dir={directory / 'run'}"]
    command += [f"--set=trainer.{name}={value}" for name, value in {**TRAINER, **trainer}.items()]
    poison = {"BEGIN": str(begin), "END": str(end), "FACTOR": factor}
    return commands.run(command, env=poison)


def _saved_steps(directory: pathlib.Path) -> list[int]:
    """Return the steps of the checkpoints, and require that all their values are finite."""
    steps = []
    for index in (directory / "run").glob("ckpt-*.index"):
        reader = tf.train.load_checkpoint(str(index.with_suffix("")))
        for name, kind in reader.get_variable_to_dtype_map().items():
            if kind.is_floating:
                assert np.isfinite(reader.get_tensor(name)).all(), (index, name)
        steps.append(int(index.stem.split("-")[1]))
    return sorted(steps)


def _records(directory: pathlib.Path, split: str) -> list[dict]:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    lines = (directory / "run" / "metrics.json").read_text().splitlines()
    records = [json.loads(line, parse_constant=refuse) for line in lines]
    return [record for record in records if record["split"] == split]


@pytest.mark.slow
def test_run_recovers_from_a_nan_loss_and_never_selects_a_nan_metric_as_best(
    tmp_path: pathlib.Path,
) -> None:
    done = _train(tmp_path, 25, 26, "nan")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "step 26, which drew batch 25" in done.stderr
    assert _saved_steps(tmp_path) == [0, 10, 20, 30, 40]
    losses = [(r["step"], r["training_loss"]) for r in _records(tmp_path, "train")]
    # The NaN loss is only logged. Its step is recorded once, with the values after the recovery.
    assert [step for step, _ in losses] == [10, 20, 30, 40]
    assert None not in dict(losses).values()
    assert [r["score"] for r in _records(tmp_path, "validation")] == [None, 1 / 40]
    info = json.loads((tmp_path / "run" / "best_ckpt" / "info.json").read_text())
    assert info["best_ckpt_global_step"] == 40
