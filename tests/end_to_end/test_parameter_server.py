"""`parameter_server` with real processes: chief, two workers, one or two parameter servers."""

import contextlib
import json
import os
import pathlib
import signal
import sys

import pytest
import tensorflow as tf

from experiments.vision.digits import configs
from official_lite.common import errors
from official_lite.modeling import optimization
from tests import commands, parameter_servers, rounding, waiting

ITERATIONS = "optimizer/_iterations/.ATTRIBUTES/VARIABLE_VALUE"


def _command(model_dir, *settings, experiment="vision/digits_mlp"):
    return [
        "train.py",
        f"--experiment={experiment}",
        "--mode=train_and_eval",
        f"--model_dir={model_dir}",
        "--set=runtime.distribution_strategy=parameter_server",
        *(f"--set={setting}" for setting in settings),
    ]


def _stop(servers):
    """Stop the servers, as a launcher does after the chief has ended."""
    everyone = [server for group in servers.values() for server in group]
    for server in everyone:
        server.send_signal(signal.SIGTERM)
    assert [server.wait() for server in everyone] == [0] * len(everyone)


def _records(model_dir, split):
    lines = (model_dir / "metrics.json").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record.get("split") == split]


@pytest.mark.slow
def test_parameter_server_training_reaches_single_device_accuracy_and_counts_each_update_once(
    tmp_path,
):
    model_dir = tmp_path / "run"
    command = _command(
        model_dir,
        "trainer.train_steps=450",
        "trainer.checkpoint_interval=150",
        "trainer.hooks=[gradient_norm]",
    )
    cluster = parameter_servers.Cluster(command, num_ps=2)
    servers = cluster.start_servers()
    chief = cluster.start("chief")
    assert chief.wait() == 0, chief.stderr[-4000:]
    _stop(servers)
    assert (
        "Execution mode: graph: the workers of a parameter server run independently" in chief.stderr
    )
    run = json.loads((model_dir / "run.json").read_text())
    assert (run["status"], run["global_step"]) == ("done", 450)
    best = json.loads((model_dir / "best_ckpt" / "info.json").read_text())
    # On one device, the accuracy is 0.97.
    assert best["accuracy"] > 0.94
    # Only the chief records metrics, so each step is recorded once.
    steps = [record["step"] for record in _records(model_dir, "train")]
    assert steps == sorted(set(steps))
    reader = tf.train.load_checkpoint(str(model_dir))
    assert reader.get_tensor("global_step/.ATTRIBUTES/VARIABLE_VALUE") == 450
    assert reader.get_tensor(ITERATIONS) == 450
    params = configs.digits_mlp()
    factory = optimization.OptimizerFactory(params.trainer.optimizer_config)
    rate = float(factory.build_learning_rate()(450))
    last = [record for record in _records(model_dir, "train") if "learning_rate" in record][-1]
    assert last["step"] == 450
    # The learning rate decays from 0.003.
    rounding.assert_close(last["learning_rate"], rate, roundings=4, scale=3e-3)
    assert last["gradient_norm"] > 0


@pytest.mark.slow
def test_training_survives_lost_workers_and_resumes_after_a_lost_server_and_after_sigterm(
    tmp_path,
):
    model_dir = tmp_path / "run"
    command = _command(model_dir, "trainer.train_steps=2000", "trainer.checkpoint_interval=50")
    cluster = parameter_servers.Cluster(command)
    servers = cluster.start_servers()
    chief = cluster.start("chief")

    # After one worker is lost, the other one continues. After that one is lost, the restarted
    # worker continues.
    chief.wait_for(f"Saved {model_dir}/ckpt-50.")
    servers["worker"][1].kill()
    _wait_for_saves(chief, model_dir)
    servers["worker"][1] = cluster.start("worker", 1)
    chief.wait_for("has been recovered")
    servers["worker"][0].kill()
    _wait_for_saves(chief, model_dir)
    servers["worker"][0] = cluster.start("worker", 0)

    # The loss of a parameter server ends the training within a bounded time and names the server.
    servers["ps"][0].kill()
    assert chief.wait() == errors.ExitCode.CLUSTER, chief.stderr[-4000:]
    assert f"ClusterError: Lost connection to ps 0 at {cluster.jobs['ps'][0]};" in chief.stderr
    saved = _newest(model_dir)
    servers["ps"][0] = cluster.start("ps")

    # The same command resumes from the last checkpoint, and again after SIGTERM saves one.
    chief = cluster.start("chief")
    chief.wait_for(f"Restored {model_dir}/ckpt-{saved} at step {saved}.")
    chief.wait_for("Saved ")
    chief.send_signal(signal.SIGTERM)
    assert chief.wait() == errors.ExitCode.PREEMPTED, chief.stderr[-4000:]
    assert json.loads((model_dir / "run.json").read_text())["status"] == "preempted"
    chief = cluster.start("chief")
    assert chief.wait() == 0, chief.stderr[-4000:]
    _stop(servers)
    reader = tf.train.load_checkpoint(str(model_dir))
    assert reader.get_tensor("global_step/.ATTRIBUTES/VARIABLE_VALUE") == 2000
    assert reader.get_tensor(ITERATIONS) == 2000
    assert json.loads((model_dir / "best_ckpt" / "info.json").read_text())["accuracy"] > 0.94


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the signal is sent by Linux")
def test_training_saves_a_checkpoint_when_its_launcher_is_killed(tmp_path):
    model_dir = tmp_path / "run"
    command = _command(model_dir, "trainer.train_steps=100000", "trainer.checkpoint_interval=50")
    tool = ["-m", "official_lite.tools", "launch", "--workers=1", "--ps=1", "--"]
    launcher = commands.Command([*tool, *command])
    launcher.wait_for(f"Saved {model_dir}/ckpt-50.")
    tasks = pathlib.Path(f"/proc/{launcher.pid}/task")
    children = [int(pid) for file in tasks.glob("*/children") for pid in file.read_text().split()]
    launcher.kill()

    def status():
        return json.loads((model_dir / "run.json").read_text())["status"]

    try:
        waiting.wait_for(lambda: status() == "preempted")
        assert json.loads((model_dir / "run.json").read_text())["global_step"] == _newest(model_dir)
    finally:
        # The servers would end a minute later.
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


def test_error_after_the_timeout_names_missing_workers_and_parameter_servers(tmp_path):
    cluster = parameter_servers.Cluster(_command(tmp_path / "run"))
    chief = cluster.start("chief", OFFICIAL_LITE_CLUSTER_TIMEOUT="1")
    assert chief.wait() == errors.ExitCode.CLUSTER
    for job, index in (("worker", 0), ("worker", 1), ("ps", 0)):
        assert f"{job} {index} at {cluster.jobs[job][index]}" in chief.stderr


def _newest(model_dir):
    path = tf.train.latest_checkpoint(str(model_dir))
    return int(path.rpartition("-")[2])


def _wait_for_saves(chief: commands.Command, model_dir):
    """Wait until training has continued and saved the second checkpoint after the newest one."""
    chief.wait_for(f"Saved {model_dir}/ckpt-{_newest(model_dir) + 100}.")
