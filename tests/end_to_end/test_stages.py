"""Custom stages and phases, run by the command."""

import json
import pathlib
import re
import shlex
import subprocess

import portpicker
import pytest

from tests import commands, rounding

SHORT = "trainer: {train_steps: 20, validation_interval: 20}\n"
REPORTS = """
from official_lite import pipeline

class Prepare(pipeline.Prepare):
    def __call__(self, ctx):
        print("prepare", ctx.engine.name, flush=True)

class Finalize(pipeline.Finalize):
    def __call__(self, ctx):
        print("finalize", ctx.engine.name, repr(ctx.error), flush=True)

class FailingRun(pipeline.Run):
    def train(self, ctx):
        super().train(ctx)
        raise RuntimeError("on purpose")

class OtherPrepare(pipeline.Prepare):
    pass
"""
STAGES = 'pipeline: {prepare: "{workspace}/reports.py:Prepare", '
STAGES += 'finalize: "{workspace}/reports.py:Finalize"}\n'


def _command(workspace: pathlib.Path, config: str, *args: str, mode: str) -> list[str]:
    (workspace / "config.yaml").write_text(config)
    (workspace / "reports.py").write_text(REPORTS)
    command = [str(commands.ROOT / "train.py"), "--experiment=vision/digits_mlp"]
    command += [f"--mode={mode}", f"--model_dir={workspace / 'run'}"]
    return [*command, f"--config_file={workspace / 'config.yaml'}", *args]


def _train(
    workspace: pathlib.Path, config: str, *args: str, mode: str = "train_and_eval"
) -> subprocess.CompletedProcess[str]:
    command = _command(workspace, config, *args, mode=mode)
    return commands.run(command, cwd=workspace)


def _last_line(workspace: pathlib.Path) -> str:
    return (workspace / "run" / "log.txt").read_text().splitlines()[-1]


def test_after_a_stage_fails_finalize_runs_and_the_command_exits_with_1(
    tmp_path: pathlib.Path,
) -> None:
    done = _train(tmp_path, SHORT + STAGES, "--set=pipeline.run={workspace}/reports.py:FailingRun")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "prepare SINGLE",
        "finalize SINGLE RuntimeError('on purpose')",
    ]
    assert "Traceback" in done.stderr
    assert _last_line(tmp_path).endswith("Experiment finished: status=failed, step=20.")


@pytest.mark.parametrize(
    ("spec", "code", "answer"),
    [
        ("{workspace}/reports.py", 2, "`Prepare` and `OtherPrepare`"),
        ("{workspace}/broken.py", 1, 'broken.py", line 1, in <module>'),
    ],
)
def test_invalid_stage_is_refused_before_anything_is_written(
    tmp_path: pathlib.Path, spec: str, code: int, answer: str
) -> None:
    (tmp_path / "broken.py").write_text("import no_such_package")
    workspace = f"--set=workspace={tmp_path}"
    done = _train(tmp_path, SHORT, workspace, f"--set=pipeline.prepare={spec}")
    assert (done.returncode, answer in done.stderr) == (code, True), done.stderr[-2000:]
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_only_the_chief_of_two_workers_writes_metrics_and_logs(tmp_path: pathlib.Path) -> None:
    config = SHORT + STAGES + "runtime: {distribution_strategy: multi_worker_mirrored}\n"
    command = _command(tmp_path, config, mode="train_and_eval")
    hosts = [f"localhost:{portpicker.pick_unused_port()}" for _ in range(2)]
    workers = []
    for index in range(2):
        cluster = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}}
        environment = {"TF_CONFIG": json.dumps(cluster)}
        workers.append(commands.Command(command, env=environment, cwd=tmp_path))
    assert [worker.wait() for worker in workers] == [0, 0]
    printed = [worker.stdout.splitlines() for worker in workers]
    assert printed == [["prepare CLUSTER", "finalize CLUSTER None"]] * 2
    assert len((tmp_path / "run" / "metrics.json").read_text().splitlines()) == 2
    assert (tmp_path / "run" / "log.txt").read_text().count("] stage prepare: Prepare") == 1
    assert _last_line(tmp_path).endswith("Experiment finished: status=done, step=20.")


PHASES = """
phases:
  - {name: pretrain, mode: train, overrides: {trainer.train_steps: 40}}
  - {name: finetune, init_from: previous, overrides: {trainer.train_steps: 20}}
  - {name: check, mode: eval, init_from: finetune}
"""


def _phases_told(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr[-3000:]
    told = ("Phase ", "Experiment finished", "Stage initialize: ", "The run in ")
    return [line for line in done.stderr.splitlines() if line.startswith(told)]


@pytest.mark.slow
def test_one_command_runs_all_unfinished_phases_in_order(tmp_path: pathlib.Path) -> None:
    run = tmp_path / "run"
    assert _phases_told(_train(tmp_path, SHORT + PHASES)) == [
        f"Phase `pretrain` in {run / 'pretrain'}.",
        "Experiment finished: status=done, step=40.",
        f"Phase `finetune` in {run / 'finetune'}.",
        f"Stage initialize: warm start from {run / 'pretrain'}.",
        "Experiment finished: status=done, step=20.",
        f"Phase `check` in {run / 'check'}.",
        f"Stage initialize: warm start from {run / 'finetune'}.",
        "Experiment finished: status=done, step=0.",
    ]
    evaluated = json.loads((run / "check" / "metrics.eval.json").read_text())
    trained = json.loads((run / "finetune" / "metrics.json").read_text().splitlines()[-1])
    # The loss is a mean over 360 examples.
    rounding.assert_close(evaluated["validation_loss"], trained["validation_loss"], roundings=360)
    again = _train(tmp_path, SHORT + PHASES)
    assert _phases_told(again)[:4] == [
        f"Phase `pretrain` in {run / 'pretrain'}.",
        f"The run in {run / 'pretrain'} is already finished: step 40 of 40. Nothing to do.",
        f"Phase `finetune` in {run / 'finetune'}.",
        f"The run in {run / 'finetune'} is already finished: step 20 of 20. Nothing to do.",
    ]


@pytest.mark.slow
def test_dry_run_takes_one_step_in_each_training_phase_and_writes_nothing(
    tmp_path: pathlib.Path,
) -> None:
    told = _phases_told(_train(tmp_path, SHORT + PHASES, "--dry_run"))
    assert [line[-7:] for line in told if "finished" in line] == ["step=1.", "step=1.", "step=0."]
    assert not (tmp_path / "run").exists()


def test_example_on_the_stages_page_runs_its_custom_stage(tmp_path: pathlib.Path) -> None:
    page = (commands.ROOT / "docs" / "stages.md").read_text()
    blocks = dict(re.findall(r"<!-- (\S+) -->\n```\w+\n(.*?)```", page, re.DOTALL))
    command = shlex.split(blocks.pop("command"))
    for name, text in blocks.items():
        (tmp_path / name).write_text(text)
    command[:2] = [str(commands.ROOT / "train.py")]
    command = [arg.replace("/tmp/frequencies", str(tmp_path / "run")) for arg in command]
    assert commands.run(command, cwd=tmp_path).returncode == 0
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "stage initialize: Frequencies" in log
    assert "The 10 classes start from their frequencies." in log
