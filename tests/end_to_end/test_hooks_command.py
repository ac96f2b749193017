"""Failures of hooks that a config names."""

import json
import pathlib
import re
import subprocess

from tests import commands

# A task whose score depends only on the step and is best at step 20, and several hooks.
HOOKS = """
import os
import signal

from experiments.vision.digits import configs, task
from official_lite import orbit, pipeline, telemetry
from official_lite.core import exp_factory, task_factory

SCORES = {10: 0.1, 20: 0.5, 30: 0.2, 40: 0.3, 50: 0.4, 60: 0.4, 70: 0.4, 80: 0.4}


class ScoredConfig(configs.DigitsConfig):
    pass


@task_factory.register_task_cls(ScoredConfig)
class ScoredTask(task.DigitsTask):
    def aggregate_logs(self, state=None, step_outputs=None):
        return 0

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
        return {"score": SCORES[int(global_step.numpy())]}


@exp_factory.register_config_factory("test/scored")
def scored():
    params = configs.digits_mlp()
    params.task = ScoredConfig(model=params.task.model)
    return params


class Killer(orbit.Hook):
    every_n_steps = 1

    def after_step(self):
        if self.iter + 1 == 35 and os.environ.get("KILL"):
            # Once the checkpoint of step 30 is complete.
            self.controller.checkpoint_manager.sync()
            os.kill(os.getpid(), signal.SIGKILL)


class Failing(orbit.Hook):
    every_n_steps = 1

    def after_step(self):
        telemetry.put_scalar("seen", self.iter)
        if self.iter + 1 == 5:
            raise ValueError("broken at step 5")


class Witness(orbit.Hook):
    def after_train(self, success):
        print("after_train", success, flush=True)


class Finalize(pipeline.Finalize):
    def __call__(self, ctx):
        print("finalize", type(ctx.error).__name__, flush=True)
"""
TRAINER = "trainer: {train_steps: 80, validation_interval: 10, checkpoint_interval: 10, hooks: %s}"


def _train(directory: pathlib.Path, config: str, **environment: str) -> subprocess.CompletedProcess:
    (directory / "hooks.py").write_text(HOOKS)
    (directory / "config.yaml").write_text(config)
    command = ["train.py", f"--import={directory / 'hooks.py'}"]
    command += ["--experiment=test/scored", "--mode=train_and_eval"]
    command += [f"--model_dir={directory / 'run'}", f"--config_file={directory / 'config.yaml'}"]
    return commands.run(command, env=environment)


def _records(directory: pathlib.Path, split: str) -> list[dict]:
    lines = (directory / "run" / "metrics.json").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["split"] == split]


def test_failed_hook_does_not_prevent_after_train_finalize_or_metric_records(
    tmp_path: pathlib.Path,
) -> None:
    hooks = '["{workspace}/hooks.py:Failing", "{workspace}/hooks.py:Witness"]'
    config = TRAINER % hooks + '\npipeline: {finalize: "{workspace}/hooks.py:Finalize"}\n'
    done = _train(tmp_path, config)
    assert done.returncode == 1
    assert done.stdout.splitlines() == ["after_train False", "finalize ValueError"]
    log = (tmp_path / "run" / "log.txt").read_text()
    assert len(re.findall(r"^Traceback", log, re.MULTILINE)) == 1
    assert "ValueError: broken at step 5" in log
    assert [(r["step"], r["seen"]) for r in _records(tmp_path, "train")] == [(5, 2.0)]
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["status"] == "failed"
