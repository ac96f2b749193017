"""Workers are threads here, each with its own description of the cluster."""

import asyncio
import concurrent.futures
import contextlib
import socket

import pytest

from official_lite.common import cluster, errors, tf_config


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
    """What each of them ends with."""
    with concurrent.futures.ThreadPoolExecutor(len(workers)) as pool:
        futures = [pool.submit(cluster.meet, worker, seconds) for worker in workers]
        return [future.exception() for future in futures]


def test_workers_that_are_all_there_meet_and_leave_their_ports_free() -> None:
    addresses = _addresses(3)
    assert _meet([_worker(addresses, index) for index in range(3)]) == [None] * 3
    for address in addresses:
        socket.create_server(tf_config.split_address(address)).close()


def test_who_is_missing_is_named_by_all_others() -> None:
    addresses = _addresses(3)
    ends = _meet([_worker(addresses, 0), _worker(addresses, 2)], seconds=0.5)
    for end in ends:
        assert isinstance(end, errors.ClusterError)
        assert f"worker 1 at {addresses[1]} (nothing listens at this port) did not answer" in str(
            end
        )


def test_host_that_does_not_exist_is_named() -> None:
    addresses = [*_addresses(1), "no-such-host.invalid:2222"]
    (end,) = _meet([_worker(addresses, 0)], seconds=1.0)
    assert isinstance(end, errors.ClusterError)
    assert "worker 1 at no-such-host.invalid:2222 (unknown host)" in str(end)


def test_different_clusters_are_found_at_once_on_all_workers() -> None:
    addresses = _addresses(3)
    other = _worker([*addresses[:2], "127.0.0.1:9"], 1)
    ends = _meet([_worker(addresses, 0), other, _worker(addresses, 2)])
    for end in ends:
        assert isinstance(end, errors.ConfigValueError)
        assert "describe different clusters" in str(end)


def test_second_process_in_a_place_is_refused() -> None:
    addresses = _addresses(2)
    with socket.create_server(tf_config.split_address(addresses[1])):
        (end,) = _meet([_worker(addresses, 1)])
    assert isinstance(end, errors.ConfigValueError)
    assert f"worker 1 can't listen at its address {addresses[1]}" in str(end)


class _OnAnotherHost(cluster._RollCall):
    """Its address leads to a process elsewhere, and nobody finds it where it listens."""

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._answer, "127.0.0.1", 0)


def test_process_on_the_wrong_host_finds_the_one_whose_place_it_takes() -> None:
    # Worker 1 is missing, so that nobody may leave before.
    worker = _worker(_addresses(2), 0)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        right = pool.submit(cluster.meet, worker, 10.0)
        with pytest.raises(errors.ConfigValueError, match="Two processes use the name worker 0"):
            asyncio.run(_OnAnotherHost(worker, 10.0).run())
    assert isinstance(right.exception(), errors.ConfigValueError)


@pytest.mark.parametrize("line", [b"", b"\xff\n", b"[" * 200_000 + b"\n", b'{"name": 1}\n'])
def test_strangers_are_ignored(monkeypatch: pytest.MonkeyPatch, line: bytes) -> None:
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


def test_idle_connections_do_not_keep_workers_apart(caplog: pytest.LogCaptureFixture) -> None:
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


def test_changed_message_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cluster.TOKEN_VARIABLE, "secret")
    call = cluster._RollCall(_worker(_addresses(2), 0), 1.0)
    line = call._signed({**call._introduction(), "jobs": {}})
    assert call._read(line, cluster._QUESTION - {"proof"})["name"] == "worker 0"
    with pytest.raises(ValueError, match="a different token"):
        call._read(line.replace(b"worker 0", b"worker 1"), cluster._QUESTION)


def test_worker_with_another_token_is_missing_and_the_error_says_why(
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
def test_program_that_answers_something_else_is_named(
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
