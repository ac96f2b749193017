"""Elastic training gives the same result for any, even changing, number of replicas and workers."""

import json
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

import pytest

from benchmarks import chaos
from tests import commands, waiting

ELASTIC = ["--experiment=tests/elastic", "--import=tests.elastic_experiment"]
OFF = "--set=runtime.distribution_strategy=off"
WORKERS = "--set=runtime.distribution_strategy=multi_worker_mirrored"


def _replicas(count: int) -> list[str]:
    devices = ",".join(f"CPU:{index}" for index in range(count))
    return ["--set=runtime.distribution_strategy=mirrored", f"--set=runtime.devices=[{devices}]"]


def _train(model_dir: pathlib.Path, *options: str) -> dict[str, Any]:
    done = commands.run(["train.py", "--mode=train_and_eval", f"--model_dir={model_dir}", *options])
    assert done.returncode == 0, done.stderr[-3000:]
    return chaos.what_is_left(model_dir)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("execution", ["graph", "xla"])
def test_elastic_training_is_bit_identical_on_any_number_of_replicas_and_workers(
    tmp_path: pathlib.Path, execution: str
) -> None:
    options = [*ELASTIC, f"--set=runtime.execution={execution}"]
    one = _train(tmp_path / "one", *options, OFF)
    for count in (2, 4):
        replicas = _train(tmp_path / f"replicas_{count}", *options, *_replicas(count))
        assert chaos.differences(one, replicas) == []
        model_dir = tmp_path / f"workers_{count}"
        arguments = ["--mode=train_and_eval", *options, WORKERS]
        assert chaos.Training(arguments, model_dir, count).run()
        assert chaos.differences(one, chaos.what_is_left(model_dir)) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "experiment", ["vision/digits_cnn", "recommendation/dlrm", "language/char_gpt"]
)
def test_experiment_with_virtual_replicas_is_bit_identical_on_one_and_two_replicas(
    tmp_path: pathlib.Path, experiment: str
) -> None:
    options = [
        f"--experiment={experiment}",
        "--set=runtime.execution=graph",
        "--set=trainer.virtual_replicas=4",
        "--set=trainer.train_steps=20",
        "--set=trainer.validation_steps=4",
    ]
    if experiment == "language/char_gpt":
        text = tmp_path / "text.txt"
        text.write_text((commands.ROOT / "CHANGELOG.md").read_text())
        options.append(f"--set=task.input_path={text}")
    one = _train(tmp_path / "one", *options, OFF)
    two = _train(tmp_path / "two", *options, *_replicas(2))
    assert chaos.differences(one, two) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_elastic_training_continues_on_one_worker_after_a_kill_and_later_on_two(
    tmp_path: pathlib.Path,
) -> None:
    options = [*ELASTIC, "--set=trainer.train_steps=400", "--set=trainer.checkpoint_interval=100"]
    options += ["--set=trainer.validation_interval=200", "--mode=train_and_eval"]
    unbroken = _train(tmp_path / "unbroken", *options, OFF)
    model_dir = tmp_path / "elastic"
    launch = ["-m", "official_lite.tools", "launch", "--elastic=1:2", "--max_restarts=3"]
    launch += ["--rejoin_secs=15", "--", "train.py", *options, WORKERS]
    launch.append("--set=trainer.hooks=[gradient_norm, tests.elastic_experiment:LoneWorkerWaits]")
    log = tmp_path / "launch.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [sys.executable, *launch, f"--model_dir={model_dir}"],
            cwd=commands.ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        waiting.wait_for(
            (model_dir / "ckpt-100.commit.json").exists, alive=lambda: process.poll() is None
        )
        workers = [
            int(path.parent.name)
            for path in pathlib.Path("/proc").glob("[0-9]*/environ")
            if b'"index": 1}' in _read(path)
            and str(model_dir).encode() in _read(path.parent / "cmdline")
        ]
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        assert process.wait() == 0, log.read_text()[-3000:]
    assert workers
    assert "with 1 worker." in log.read_text()
    assert "Continuing with 2 workers again." in log.read_text()
    different = chaos.differences(unbroken, chaos.what_is_left(model_dir))
    # Stopping the lone worker adds a training report.
    assert [name for name in different if not name.startswith("metrics/train/")] == []
    last = max(model_dir.glob("ckpt-*.commit.json"), key=os.path.getmtime)
    assert json.loads(last.read_text())["state"]["num_replicas"] == 2


def _read(path: pathlib.Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
