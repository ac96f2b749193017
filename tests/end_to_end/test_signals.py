"""SIGTERM and SIGINT in each part of a run; docs/reliability.md lists their effects."""

import json
import pathlib
import signal
import time

import portpicker
import pytest
import tensorflow as tf

from tests import commands

# A module that makes one part of a run wait for a signal, or forever, and prints a line when that
# part begins.
SLOW = """
import os
import sys
import threading

import tensorflow as tf

from experiments.vision.digits import task
from official_lite.checkpoint import async_checkpoint_manager
from official_lite.common import preemption
from tests import waiting


def slow(cls, name, what, first_call=1):
    if os.environ.get("SLOW") != what:
        return
    method, calls = getattr(cls, name), []

    def wait(*args, **kwargs):
        calls.append(name)
        if len(calls) >= first_call:
            print("slow", what, file=sys.stderr, flush=True)
            if "FOR_GOOD" in os.environ:
                threading.Event().wait()
            waiting.wait_for(preemption.requested)
        return method(*args, **kwargs)

    setattr(cls, name, wait)


slow(task.DigitsTask, "train_step", "trace")
slow(task.DigitsTask, "validation_step", "evaluation")
slow(tf.train.CheckpointManager, "save", "second save", first_call=2)
slow(async_checkpoint_manager.AsyncCheckpointManager, "restore_or_initialize", "restore")


def say_when_in_the_loop(method):
    def slices(*args, **kwargs):
        for number, part in enumerate(method(*args, **kwargs)):
            if number == 2:
                print("in the loop", file=sys.stderr, flush=True)
            yield part

    return slices


preemption.StopCheck.slices = say_when_in_the_loop(preemption.StopCheck.slices)
"""
LONG = tuple(
    f"{name}=10000000"
    for name in (
        "train_steps",
        "steps_per_loop",
        "validation_interval",
        "checkpoint_interval",
        "summary_interval",
    )
)
SHORT = ("train_steps=40", "validation_interval=20", "checkpoint_interval=10", "steps_per_loop=10")


class Run:
    """A training run in a separate process."""

    def __init__(self, directory: pathlib.Path, *settings: str, **environment: str) -> None:
        self.model_dir = directory / "run"
        (directory / "slow.py").write_text(SLOW)
        command = ["train.py", f"--import={directory / 'slow.py'}"]
        command += ["--experiment=vision/digits_mlp", "--mode=train_and_eval"]
        command += [f"--model_dir={self.model_dir}"]
        command += [f"--set={s if '.' in s else 'trainer.' + s}" for s in settings]
        self.process = commands.Command(command, env=environment)

    @property
    def said(self) -> str:
        return self.process.stderr

    def wait_for(self, text: str) -> None:
        self.process.wait_for(text)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def exit_code(self) -> int:
        code = self.process.wait()
        assert "Traceback" not in self.said, self.said[-3000:]
        return code

    def record(self) -> dict:
        return json.loads((self.model_dir / "run.json").read_text())

    def steps(self, split: str) -> list[int]:
        lines = (self.model_dir / "metrics.json").read_text().splitlines()
        return [r["step"] for r in map(json.loads, lines) if r["split"] == split]

    def saved_step(self) -> int:
        path = tf.train.latest_checkpoint(str(self.model_dir))
        assert path is not None
        name = "global_step/.ATTRIBUTES/VARIABLE_VALUE"
        return int(tf.train.load_checkpoint(path).get_tensor(name))


def between_two_requests() -> None:
    """Wait until the next signal is treated as a new request to stop."""
    time.sleep(0.7)


@pytest.mark.slow
@pytest.mark.parametrize("execution", ["graph", "xla_loop"])
def test_sigterm_in_a_long_training_loop_saves_a_checkpoint_and_exits_with_code_42(
    tmp_path: pathlib.Path, execution: str
) -> None:
    run = Run(tmp_path, *LONG, f"runtime.execution={execution}")
    run.wait_for("in the loop")
    run.send(signal.SIGTERM)
    assert run.exit_code() == 42
    # The whole loop would take many minutes.
    step = run.saved_step()
    assert 0 < step < 10000000
    assert (run.record()["status"], run.record()["global_step"]) == ("preempted", step)
    assert run.steps("train") == [step]
    assert run.steps("validation") == []


@pytest.mark.slow
def test_sigterm_during_tracing_evaluation_save_or_restore_loses_no_step(
    tmp_path: pathlib.Path,
) -> None:
    saved = []
    for part in ("trace", "evaluation", "second save", "restore"):
        run = Run(tmp_path, *SHORT, SLOW=part)
        run.wait_for(f"slow {part}")
        run.send(signal.SIGTERM)
        assert run.exit_code() == 42, part
        saved.append(run.saved_step())
    # Tracing ends with the first step. The first save of the third process is the best checkpoint.
    assert saved == [1, 20, 30, 30]
    run = Run(tmp_path, *SHORT)
    assert run.exit_code() == 0
    assert run.steps("validation") == [20, 40]
    assert run.record()["status"] == "done"


@pytest.mark.slow
def test_second_sigterm_during_a_save_ends_the_run_immediately_with_exit_code_143(
    tmp_path: pathlib.Path,
) -> None:
    run = Run(tmp_path, *SHORT, SLOW="second save", FOR_GOOD="1")
    run.wait_for("slow second save")
    run.send(signal.SIGTERM)
    run.wait_for("Stopping after the current step")
    between_two_requests()
    run.send(signal.SIGTERM)
    assert run.exit_code() == 143
    assert run.saved_step() == 10
    run = Run(tmp_path, *SHORT)
    assert run.exit_code() == 0
    assert run.steps("validation") == [20, 40]


@pytest.mark.slow
def test_first_sigint_saves_a_checkpoint_and_a_second_one_ends_the_run_immediately(
    tmp_path: pathlib.Path,
) -> None:
    run = Run(tmp_path, *LONG)
    run.wait_for("in the loop")
    run.send(signal.SIGINT)
    assert run.exit_code() == 130
    assert run.saved_step() > 0
    *_, last = run.said.splitlines()
    assert last.endswith(f"to resume it, from {tmp_path / 'run'}/ckpt-{run.saved_step()}.")
    run = Run(tmp_path, *LONG, SLOW="trace", FOR_GOOD="1")
    run.wait_for("slow trace")
    run.send(signal.SIGINT)
    run.wait_for("Stopping after the current step")
    between_two_requests()
    run.send(signal.SIGINT)
    assert run.exit_code() == 130
    assert "Stopped immediately" in run.said


@pytest.mark.slow
def test_sigterm_to_one_worker_stops_all_workers_at_the_same_saved_step(
    tmp_path: pathlib.Path,
) -> None:
    hosts = [f"localhost:{portpicker.pick_unused_port()}" for _ in range(2)]
    workers = []
    for index in range(2):
        cluster = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}}
        settings = (
            "train_steps=10000000",
            "steps_per_loop=10",
            "validation_interval=10000000",
            "runtime.execution=graph",
        )
        strategy = "runtime.distribution_strategy=multi_worker_mirrored"
        workers.append(Run(tmp_path, *settings, strategy, TF_CONFIG=json.dumps(cluster)))
    workers[1].wait_for("train | step 50")
    workers[1].send(signal.SIGTERM)
    assert [worker.exit_code() for worker in workers] == [42, 42]
    ends = [worker.said.partition("Stopped at step ")[2].split(" ")[0] for worker in workers]
    assert ends == [str(workers[0].saved_step())] * 2
