import json
import os
import signal
import threading

import pytest
import tensorflow as tf

from official_lite.common import errors, preemption
from tests import waiting


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)


def _send(number):
    os.kill(os.getpid(), number)
    waiting.wait_for(preemption.requested)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, errors.ExitCode.PREEMPTED), (signal.SIGINT, errors.ExitCode.INTERRUPTED)],
)
def test_caught_signal_raises_preempted_error_at_the_next_check(number, code):
    with preemption.catch_signals():
        preemption.check()
        _send(number)
        assert preemption.requested() == number
        with pytest.raises(errors.PreemptedError, match=number.name) as caught:
            preemption.check()
    assert caught.value.exit_code == code


def test_catch_signals_restores_signal_handlers_and_ends_its_thread_on_exit():
    before = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)]
    threads = threading.active_count()
    with preemption.catch_signals():
        assert preemption.is_caught()
        assert signal.getsignal(signal.SIGTERM) != before[0]
        with preemption.catch_signals():
            pass
        assert preemption.is_caught()
    assert not preemption.is_caught()
    assert [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)] == before
    assert signal.set_wakeup_fd(-1) == -1
    assert threading.active_count() == threads


def test_catch_signals_leaves_an_ignored_signal_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with preemption.catch_signals():
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_signal_handlers_that_a_library_replaced_can_be_reinstalled():
    with preemption.catch_signals():
        signal.signal(signal.SIGTERM, lambda *_: None)
        preemption.rearm()
        _send(signal.SIGTERM)
        assert preemption.requested() == signal.SIGTERM


def _fork_waiting_child():
    """Fork a child that waits for a signal, and return its process ID."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, b"1")
            waiting.wait_for(lambda: False)
        finally:
            os._exit(1)
    os.read(reader, 1)
    os.close(reader)
    os.close(writer)
    return child


def _end(child):
    os.kill(child, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_sigterm_to_a_forked_child_ends_the_child_and_does_not_stop_its_parent():
    with preemption.catch_signals():
        assert _end(_fork_waiting_child()) == -signal.SIGTERM
        # A signal of the child would have arrived before this one.
        _send(signal.SIGINT)
        assert preemption.requested() == signal.SIGINT


def test_catch_signals_ends_while_a_forked_child_still_runs():
    with preemption.catch_signals():
        child = _fork_waiting_child()
    assert not preemption.is_caught()
    assert _end(child) == -signal.SIGTERM


def test_signals_are_still_caught_after_a_forked_child_has_left_the_context():
    class _ChildEndsError(Exception):
        pass

    parent = os.getpid()
    try:
        with preemption.catch_signals():
            child = os.fork()
            if child == 0:
                raise _ChildEndsError
            assert os.waitpid(child, 0)[1] == 0
            _send(signal.SIGTERM)
            assert preemption.requested() == signal.SIGTERM
    except _ChildEndsError:
        os._exit(0)
    finally:
        if os.getpid() != parent:
            os._exit(1)


def test_signals_are_not_caught_outside_the_main_thread():
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def run():
        with preemption.catch_signals():
            seen.append((preemption.is_caught(), signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [(False, before)]


def test_signal_to_one_worker_is_recorded_but_does_not_stop_that_worker_alone(monkeypatch):
    config = '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}}'
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    monkeypatch.setenv("TF_CONFIG", config)
    with preemption.catch_signals():
        _send(signal.SIGTERM)
        with strategy.scope():
            preemption.check()
        assert preemption.requested() == signal.SIGTERM


@pytest.mark.parametrize(
    ("strategy_cls", "task"),
    [
        (tf.distribute.MirroredStrategy, {"type": "worker", "index": 0}),
        (tf.distribute.MultiWorkerMirroredStrategy, {"type": "evaluator", "index": 0}),
    ],
    ids=["trains alone", "evaluator"],
)
def test_signal_stops_a_process_that_takes_no_part_in_the_cluster_of_its_tf_config(
    monkeypatch, strategy_cls, task
):
    strategy = strategy_cls()
    config = {"cluster": {"worker": ["a:1", "b:2"]}, "task": task}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    with preemption.catch_signals(), strategy.scope():
        _send(signal.SIGTERM)
        with pytest.raises(errors.PreemptedError):
            preemption.check()


def test_signal_to_the_chief_of_a_parameter_server_cluster_stops_the_training(monkeypatch):
    cluster = {"chief": ["a:1"], "ps": ["b:2"], "worker": ["c:3", "d:4"]}
    config = {"cluster": cluster, "task": {"type": "chief", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    with preemption.catch_signals():
        _send(signal.SIGTERM)
        with pytest.raises(errors.PreemptedError):
            preemption.check()
