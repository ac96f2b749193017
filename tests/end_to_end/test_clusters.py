"""Processes of a cluster find one another or name the missing one."""

import json
import pathlib
import socket
import subprocess
import sys

import portpicker
import pytest

from benchmarks import chaos
from tests import commands

ROOT = pathlib.Path(__file__).parents[2]
# A hook that kills worker 1 at step 25, but only once.
KILLER = """
import json
import os
import pathlib
import signal

from official_lite import orbit


class Killer(orbit.Hook):
    every_n_steps = 5

    def after_step(self):
        is_chosen = json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1
        marker = pathlib.Path(__file__).with_suffix(".killed")
        if is_chosen and self.iter >= 24 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""


def _train(config: dict, *options: str, **environment: str) -> commands.Command:
    command = [
        *("train.py", "--experiment=vision/digits_mlp", "--mode=train", *options),
        "--set=runtime.distribution_strategy=multi_worker_mirrored",
    ]
    return commands.Command(command, env={"TF_CONFIG": json.dumps(config), **environment})


def test_error_after_the_cluster_timeout_names_the_missing_worker(tmp_path: pathlib.Path) -> None:
    here, missing = (f"127.0.0.1:{portpicker.pick_unused_port()}" for _ in range(2))
    config = {"cluster": {"worker": [here, missing]}, "task": {"type": "worker", "index": 0}}
    worker = _train(config, f"--model_dir={tmp_path}/run", OFFICIAL_LITE_CLUSTER_TIMEOUT="1")
    assert worker.wait() == 7
    message = (
        f"worker 1 at {missing} (nothing listens at this port) did not answer worker 0 within 1 s"
    )
    assert message in worker.stderr.splitlines()[-1]
    # The worker has written nothing, as after any invalid command.
    assert not (tmp_path / "run").exists()


def test_worker_exits_with_an_error_if_its_address_is_in_use(tmp_path: pathlib.Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = f"127.0.0.1:{server.getsockname()[1]}"
        config = {"cluster": {"worker": ["a:1", taken]}, "task": {"type": "worker", "index": 1}}
        worker = _train(config, f"--model_dir={tmp_path}/run")
        assert worker.wait() == 2
    assert f"worker 1 can't listen at its address {taken}" in worker.stderr.splitlines()[-1]


def _launch(tmp_path: pathlib.Path, name: str, hooks: str) -> subprocess.CompletedProcess[str]:
    intervals = ("checkpoint_interval=10", "steps_per_loop=10", "train_steps=40")
    return subprocess.run(
        [
            *(sys.executable, "-m", "official_lite.tools", "launch"),
            *("--workers=2", "--max_restarts=1", "--"),
            *("train.py", "--experiment=vision/digits_mlp", "--mode=train"),
            *(f"--model_dir={tmp_path / name}", "--set=runtime.execution=graph"),
            *(f"--set=trainer.{interval}" for interval in intervals),
            f"--set=trainer.hooks={hooks}",
            "--set=runtime.distribution_strategy=multi_worker_mirrored",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.promise
def test_killed_worker_is_named_and_the_restarted_run_equals_an_uninterrupted_one(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "killer.py").write_text(KILLER)
    unbroken = _launch(tmp_path, "unbroken", "[]")
    assert unbroken.returncode == 0, unbroken.stderr
    killed = _launch(tmp_path, "killed", f"[{tmp_path}/killer.py:Killer]")
    assert killed.returncode == 0, killed.stderr
    assert (
        "launch   | worker 1 was killed by SIGKILL (perhaps out of memory) first." in killed.stderr
    )
    # The surviving worker also names the lost one, and exits with the code of cluster errors.
    assert "worker 0 | ClusterError: Lost connection to worker 1 at 127.0.0.1:" in killed.stderr
    assert "launch   | worker 0 ended with exit code 7." in killed.stderr
    assert "launch   | Restart 1 of 1." in killed.stderr
    expected = chaos.what_is_left(tmp_path / "unbroken")
    assert not chaos.differences(expected, chaos.what_is_left(tmp_path / "killed"))
