import json
import os
import signal

import pytest
import tensorflow as tf

from official_lite.common import cluster, distribute_utils, errors
from tests import commands, parameter_servers

SERVE = """
from official_lite.common import cluster
from official_lite.common import app

app.run(lambda _: cluster.serve())
"""
# As if hours had gone by.
IMPATIENT = """
from official_lite.common import cluster
from official_lite.common import app

cluster._SECONDS_BETWEEN_LOOKS_AT_CHIEF = 0.1
cluster._SECONDS_FOR_A_CHIEF_TO_COME = 0.5
cluster._SECONDS_FOR_A_CHIEF_TO_COME_BACK = 0.5
app.run(lambda _: cluster.serve())
"""


def _set_task(monkeypatch, job):
    addresses = [[f"127.0.0.1:{port}"] for port in parameter_servers.free_ports(3)]
    jobs = dict(zip(("chief", "worker", "ps"), addresses, strict=True))
    monkeypatch.setenv(
        "TF_CONFIG", json.dumps({"cluster": jobs, "task": {"type": job, "index": 0}})
    )
    return jobs


@pytest.mark.parametrize(("job", "serves"), [("chief", False), ("worker", True), ("ps", True)])
def test_workers_and_parameter_servers_serve_and_nobody_else(job, serves, monkeypatch):
    _set_task(monkeypatch, job)
    assert cluster.is_server("Parameter_Server") is serves
    assert not cluster.is_server("multi_worker_mirrored")


def test_without_a_place_in_a_cluster_there_is_nothing_to_serve():
    with pytest.raises(errors.ConfigValueError, match="in no cluster"):
        cluster.serve()


@pytest.mark.slow
def test_server_ends_on_sigterm_or_without_a_chief(tmp_path, monkeypatch):
    (tmp_path / "serve.py").write_text(SERVE)
    (tmp_path / "impatient.py").write_text(IMPATIENT)
    jobs = _set_task(monkeypatch, "ps")
    server = commands.Command([tmp_path / "serve.py"])
    server.wait_for(f"ps 0 serves at {jobs['ps'][0]}")
    # The address is taken now.
    second = commands.run([tmp_path / "serve.py"])
    assert second.returncode == errors.ExitCode.CONFIG
    assert f"ps 0 can't listen at its address {jobs['ps'][0]}" in second.stderr
    server.send_signal(signal.SIGTERM)
    assert server.wait() == 0
    lonely = commands.run([tmp_path / "impatient.py"])
    assert lonely.returncode == errors.ExitCode.CLUSTER
    assert "no chief started at" in lonely.stderr


def test_a_server_has_no_strategy_and_an_evaluator_has_one_device(monkeypatch):
    _set_task(monkeypatch, "worker")
    with pytest.raises(errors.ConfigValueError, match=r"Call `cluster.serve\(\)`"):
        distribute_utils.get_distribution_strategy("parameter_server")
    config = json.loads(os.environ["TF_CONFIG"])
    config["task"] = {"type": "evaluator", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    strategy = distribute_utils.get_distribution_strategy("parameter_server")
    assert isinstance(strategy, tf.distribute.OneDeviceStrategy)
