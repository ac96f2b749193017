"""Tests of cluster processes. In the rendezvous tests, the workers are threads."""

import asyncio
import concurrent.futures
import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator

import pytest
import tensorflow as tf

from official_lite.common import cluster, distribute_utils, errors, tf_config
from tests import commands, parameter_servers


def _addresses(count: int) -> list[str]:
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.socket()) for _ in range(count)]
        for server in servers:
            server.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{server.getsockname()[1]}" for server in servers]


def _worker(addresses: list[str], index: int) -> tf_config.ClusterConfig:
    return tf_config.ClusterConfig(
        jobs={"worker": tuple(addresses)}, task_type="worker", task_index=index
    )


def _meet(workers: list[tf_config.ClusterConfig], seconds: float = 10.0) -> list[Exception | None]:
    """Let the workers meet, and return the exception of each worker, or None."""
    with concurrent.futures.ThreadPoolExecutor(len(workers)) as pool:
        futures = [pool.submit(cluster.meet, worker, seconds) for worker in workers]
        return [future.exception() for future in futures]


def test_rendezvous_of_all_workers_succeeds_and_frees_their_ports() -> None:
    addresses = _addresses(3)
    assert _meet([_worker(addresses, index) for index in range(3)]) == [None] * 3
    for address in addresses:
        socket.create_server(tf_config.split_address(address)).close()


def test_remaining_workers_raise_an_error_that_names_the_missing_worker() -> None:
    addresses = _addresses(3)
    ends = _meet([_worker(addresses, 0), _worker(addresses, 2)], seconds=0.5)
    for end in ends:
        assert isinstance(end, errors.ClusterError)
        assert f"worker 1 at {addresses[1]} (nothing listens at this port) did not answer" in str(
            end
        )


def test_rendezvous_error_names_the_worker_with_an_unknown_host() -> None:
    addresses = [*_addresses(1), "no-such-host.invalid:2222"]
    (end,) = _meet([_worker(addresses, 0)], seconds=1.0)
    assert isinstance(end, errors.ClusterError)
    assert "worker 1 at no-such-host.invalid:2222 (unknown host)" in str(end)


def test_all_workers_raise_if_one_worker_describes_a_different_cluster() -> None:
    addresses = _addresses(3)
    other = _worker([*addresses[:2], "127.0.0.1:9"], 1)
    ends = _meet([_worker(addresses, 0), other, _worker(addresses, 2)])
    for end in ends:
        assert isinstance(end, errors.ConfigValueError)
        assert "describe different clusters" in str(end)


def test_worker_raises_if_its_address_is_already_in_use() -> None:
    addresses = _addresses(2)
    with socket.create_server(tf_config.split_address(addresses[1])):
        (end,) = _meet([_worker(addresses, 1)])
    assert isinstance(end, errors.ConfigValueError)
    assert f"worker 1 can't listen at its address {addresses[1]}" in str(end)


class _OnAnotherHost(cluster._RollCall):
    """A worker that listens on an arbitrary port, while its address leads to another process."""

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._answer, "127.0.0.1", 0)


def test_two_processes_with_the_same_worker_index_both_raise() -> None:
    # Worker 1 is missing, so that neither process can finish the rendezvous early.
    worker = _worker(_addresses(2), 0)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        right = pool.submit(cluster.meet, worker, 10.0)
        with pytest.raises(errors.ConfigValueError, match="Two processes use the name worker 0"):
            asyncio.run(_OnAnotherHost(worker, 10.0).run())
    assert isinstance(right.exception(), errors.ConfigValueError)


def test_worker_at_a_wrong_address_names_the_workers_that_cannot_reach_it() -> None:
    addresses = _addresses(3)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        others = [pool.submit(cluster.meet, _worker(addresses, index), 3.0) for index in (0, 2)]
        miss = rf"worker 1 at {addresses[1]} \(missed by worker 0, worker 2\) did not answer within"
        with pytest.raises(errors.ClusterError, match=miss):
            asyncio.run(_OnAnotherHost(_worker(addresses, 1), 2.0).run())
    for other in others:
        assert f"worker 1 at {addresses[1]}" in str(other.exception())


@pytest.mark.parametrize("line", [b"", b"\xff\n", b"[" * 200_000 + b"\n", b'{"name": 1}\n'])
def test_rendezvous_succeeds_despite_messages_from_other_programs(
    monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    monkeypatch.setenv(cluster.TOKEN_VARIABLE, "secret")
    addresses = _addresses(2)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        first = pool.submit(cluster.meet, _worker(addresses, 0), 10.0)
        pool.submit(_write_when_it_listens, addresses[0], line).result()
        second = pool.submit(cluster.meet, _worker(addresses, 1), 10.0)
        assert (first.exception(), second.exception()) == (None, None)


def _write_when_it_listens(address: str, line: bytes) -> None:
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            with socket.create_connection(tf_config.split_address(address)) as stranger:
                stranger.sendall(line)
            return


def test_hundreds_of_idle_connections_do_not_delay_the_rendezvous(
    caplog: pytest.LogCaptureFixture,
) -> None:
    addresses = _addresses(2)
    with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor(2) as pool:
        first = pool.submit(cluster.meet, _worker(addresses, 0), 20.0)
        _write_when_it_listens(addresses[0], b"")
        for _ in range(350):
            address = tf_config.split_address(addresses[0])
            stack.enter_context(socket.create_connection(address))
        second = pool.submit(cluster.meet, _worker(addresses, 1), 20.0)
        assert (first.exception(), second.exception()) == (None, None)
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_rendezvous_message_changed_in_transit_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cluster.TOKEN_VARIABLE, "secret")
    call = cluster._RollCall(_worker(_addresses(2), 0), 1.0)
    line = call._signed({**call._introduction(), "jobs": {}})
    assert call._read(line, cluster._QUESTION - {"proof"})["name"] == "worker 0"
    with pytest.raises(ValueError, match="a different token"):
        call._read(line.replace(b"worker 0", b"worker 1"), cluster._QUESTION)


def test_rendezvous_error_for_mismatched_tokens_names_the_token_environment_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    addresses = _addresses(2)
    monkeypatch.setattr(cluster, "_SECONDS_OF_FAREWELL", 0.0)
    monkeypatch.setenv(cluster.TOKEN_VARIABLE, "one")
    one = cluster._RollCall(_worker(addresses, 0), 1.0)
    monkeypatch.setenv(cluster.TOKEN_VARIABLE, "two")
    two = cluster._RollCall(_worker(addresses, 1), 3.0)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(asyncio.run, each.run()) for each in (one, two)]
        ends = [future.exception() for future in futures]
    assert isinstance(ends[0], errors.ClusterError)
    assert f"or {cluster.TOKEN_VARIABLE} differs" in str(ends[0])
    assert "Ignored " in str(ends[0])


@pytest.mark.sample(1)
@pytest.mark.parametrize("answer", [b"\xff\n", b"[" * 200_000 + b"\n", b"[]\n"])
def test_rendezvous_error_says_that_another_program_uses_the_port_of_a_worker(
    monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    monkeypatch.setattr(cluster, "_SECONDS_OF_FAREWELL", 0.0)
    addresses = _addresses(2)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(serve, *tf_config.split_address(addresses[1]))
        with contextlib.closing(server):
            await cluster._RollCall(_worker(addresses, 0), 1.0).run()

    with pytest.raises(errors.ClusterError, match="another run or program uses this port"):
        asyncio.run(run())


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


def test_wait_for_servers_returns_if_all_servers_listen_and_otherwise_names_the_missing_one(
    listener: socket.socket,
) -> None:
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


def test_tensorflow_error_becomes_a_cluster_error_that_names_the_lost_process(
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


@pytest.mark.parametrize(
    ("index", "kind", "text"),
    [
        (
            0,
            tf.errors.UnavailableError,
            "From /job:worker/task:0: stopped sending heartbeats: /job:worker/replica:0/task:1",
        ),
        (
            1,
            tf.errors.DeadlineExceededError,
            "At /job:worker/replica:0/task:1: RPC: /tensorflow.CoordinationService/Heartbeat",
        ),
    ],
    ids=["worker", "leader"],
)
def test_cluster_error_names_a_process_that_stopped_sending_or_answering_heartbeats(
    listener: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
    index: int,
    kind: type[tf.errors.OpError],
    text: str,
) -> None:
    addresses = ["127.0.0.1:1", "127.0.0.1:2"]
    addresses[1 - index] = _address(listener)
    config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    monkeypatch.setattr(cluster, "_SECONDS_TO_BE_GONE", 0.0)
    match = f"Lost connection to worker {1 - index} at {_address(listener)}"
    with pytest.raises(errors.ClusterError, match=match), cluster.report_lost_peers():
        raise kind(None, None, text)


def test_errors_unrelated_to_a_lost_process_are_raised_unchanged(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = {"worker": [_address(listener), "127.0.0.1:1"]}
    config = {"cluster": jobs, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    monkeypatch.setattr(cluster, "_SECONDS_TO_BE_GONE", 0.0)
    for kind, text in (
        (tf.errors.InternalError, "a bug in /job:worker/task:0"),
        (tf.errors.DeadlineExceededError, "From /job:worker/task:0: gs://data/train.tfrecord"),
        (
            tf.errors.UnavailableError,
            "task:1 of /job:worker/task:1 is late: /tensorflow.CoordinationService/Heartbeat",
        ),
        (
            tf.errors.AbortedError,
            "Barrier timed out. The first task at the barrier: /job:worker/replica:0/task:0. "
            "Some timed out task names: /job:worker/replica:0/task:1",
        ),
        (
            tf.errors.DeadlineExceededError,
            "Barrier timed out. Some timed out task names: /job:worker/replica:0/task:1 "
            "RPC: /tensorflow.CoordinationService/Barrier",
        ),
    ):
        with pytest.raises(kind), cluster.report_lost_peers():
            raise kind(None, None, text)
    with pytest.raises(KeyError), cluster.report_lost_peers():
        raise KeyError("not TensorFlow's")


def test_error_in_an_evaluator_is_not_reported_as_the_loss_of_a_finished_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = {"worker": [_closed_address(), _closed_address()]}
    config = {"cluster": jobs, "task": {"type": "evaluator", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    with pytest.raises(tf.errors.DataLossError), cluster.report_lost_peers():
        raise tf.errors.DataLossError(None, None, "corrupted record")


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_invalid_cluster_timeout_raises(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(cluster.TIMEOUT_VARIABLE, "2.5")
    assert cluster.patience() == 2.5
    monkeypatch.setenv(cluster.TIMEOUT_VARIABLE, text)
    with pytest.raises(errors.ConfigValueError, match=repr(text)):
        cluster.patience()


SERVE = """
from official_lite.common import cluster
from official_lite.common import app

app.run(lambda _: cluster.serve())
"""
# The long timeouts are shortened to fractions of a second.
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
def test_only_worker_and_ps_tasks_of_a_parameter_server_strategy_are_servers(
    job, serves, monkeypatch
):
    _set_task(monkeypatch, job)
    assert cluster.is_server("Parameter_Server") is serves
    assert not cluster.is_server("multi_worker_mirrored")


def test_starting_a_server_outside_a_cluster_raises():
    with pytest.raises(errors.ConfigValueError, match="in no cluster"):
        cluster.serve()


@pytest.mark.slow
def test_parameter_server_exits_on_sigterm_or_if_no_chief_starts(tmp_path, monkeypatch):
    (tmp_path / "serve.py").write_text(SERVE)
    (tmp_path / "impatient.py").write_text(IMPATIENT)
    jobs = _set_task(monkeypatch, "ps")
    server = commands.Command([tmp_path / "serve.py"])
    server.wait_for(f"ps 0 serves at {jobs['ps'][0]}")
    # The first server occupies the address that the second server needs.
    second = commands.run([tmp_path / "serve.py"])
    assert second.returncode == errors.ExitCode.CONFIG
    assert f"ps 0 can't listen at its address {jobs['ps'][0]}" in second.stderr
    server.send_signal(signal.SIGTERM)
    assert server.wait() == 0
    lonely = commands.run([tmp_path / "impatient.py"])
    assert lonely.returncode == errors.ExitCode.CLUSTER
    assert "no chief started at" in lonely.stderr


def test_parameter_server_strategy_raises_on_a_worker_but_not_on_an_evaluator(
    monkeypatch,
):
    _set_task(monkeypatch, "worker")
    with pytest.raises(errors.ConfigValueError, match=r"Call `cluster.serve\(\)`"):
        distribute_utils.get_distribution_strategy("parameter_server")
    config = json.loads(os.environ["TF_CONFIG"])
    config["task"] = {"type": "evaluator", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    strategy = distribute_utils.get_distribution_strategy("parameter_server")
    assert isinstance(strategy, tf.distribute.OneDeviceStrategy)
