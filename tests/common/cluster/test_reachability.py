import json
import socket
from collections.abc import Iterator

import pytest
import tensorflow as tf

from official_lite.common import cluster, errors, tf_config


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def _address(server: socket.socket) -> str:
    return f"127.0.0.1:{server.getsockname()[1]}"


def _closed_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return _address(server)


def _cluster(listener: socket.socket, *, gone: str) -> tf_config.ClusterConfig:
    jobs = {"chief": ("127.0.0.1:1",), "worker": (_address(listener), gone)}
    return tf_config.ClusterConfig(jobs=jobs, task_type="chief", task_index=0)


def test_chief_waits_for_servers_and_names_who_is_missing(listener: socket.socket) -> None:
    there = tf_config.ClusterConfig(
        jobs={"chief": ("127.0.0.1:1",), "worker": (_address(listener),)},
        task_type="chief",
        task_index=0,
    )
    cluster.wait_for_servers(there)
    gone = _closed_address()
    message = (
        rf"worker 1 at {gone} \(nothing listens at this port\) did not answer chief within 0.1 s"
    )
    with pytest.raises(errors.ClusterError, match=message):
        cluster.wait_for_servers(_cluster(listener, gone=gone), seconds=0.1)


def test_host_that_has_no_address_is_named_with_the_reason() -> None:
    reasons = cluster.unreachable({"worker 0": "no-such-host.invalid:1"})
    assert reasons == {"worker 0": "unknown host"}


def test_error_of_tensorflow_names_the_process_that_is_gone(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = _closed_address()
    jobs = {"worker": [_address(listener), "127.0.0.1:1", gone]}
    config = {"cluster": jobs, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    lost = tf.errors.UnavailableError(None, None, "Connection reset by peer")
    match = f"Lost connection to worker 2 at {gone}"
    for error in (lost, ValueError("led to")):
        with pytest.raises(errors.ClusterError, match=match), cluster.report_lost_peers():
            raise error from lost


def test_process_that_is_frozen_is_named_by_tensorflow(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = {"worker": ["127.0.0.1:1", _address(listener)]}
    config = {"cluster": jobs, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    monkeypatch.setattr(cluster, "_SECONDS_TO_BE_GONE", 0.0)
    text = "From /job:worker/task:0: stopped sending heartbeats: /job:worker/replica:0/task:1"
    match = f"Lost connection to worker 1 at {_address(listener)}"
    with pytest.raises(errors.ClusterError, match=match), cluster.report_lost_peers():
        raise tf.errors.UnavailableError(None, None, text)


def test_error_stays_as_it_is_where_nobody_is_gone(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = {"worker": [_address(listener), "127.0.0.1:1"]}
    config = {"cluster": jobs, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    monkeypatch.setattr(cluster, "_SECONDS_TO_BE_GONE", 0.0)
    with pytest.raises(tf.errors.InternalError), cluster.report_lost_peers():
        raise tf.errors.InternalError(None, None, "a bug in /job:worker/task:0")
    with pytest.raises(KeyError), cluster.report_lost_peers():
        raise KeyError("not TensorFlow's")


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_patience_is_a_number_of_seconds(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(cluster.TIMEOUT_VARIABLE, "2.5")
    assert cluster.patience() == 2.5
    monkeypatch.setenv(cluster.TIMEOUT_VARIABLE, text)
    with pytest.raises(errors.ConfigValueError, match=repr(text)):
        cluster.patience()
