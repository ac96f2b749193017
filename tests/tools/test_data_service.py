import signal
import socket

import pytest

from official_lite.tools import __main__ as tools


@pytest.fixture(autouse=True)
def signals():
    """Restore the previous signal handlers after each test."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture
def taken_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def test_dispatcher_exits_with_code_2_if_its_port_is_in_use(taken_port, capsys):
    assert tools.main(["data_service", "dispatcher", f"--port={taken_port}"]) == 2
    assert f"Can't listen on port {taken_port}" in capsys.readouterr().err


def test_data_worker_exits_with_code_7_if_no_dispatcher_answers(monkeypatch, capsys):
    monkeypatch.setenv("OFFICIAL_LITE_CLUSTER_TIMEOUT", "0.1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        assert tools.main(["data_service", "worker", f"--dispatcher={address}"]) == 7
    assert f"No dispatcher of a tf.data service answered at {address}" in capsys.readouterr().err
