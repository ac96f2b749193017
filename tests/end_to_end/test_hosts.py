"""Workers on hosts of their own survive a bad network, or end soon with one clear error."""

import contextlib
import os
import pathlib
import signal
from collections.abc import Iterator, Sequence
from typing import Any

import portpicker
import pytest

from benchmarks import chaos
from official_lite import pipeline
from official_lite.common import cluster, distribute_utils
from tests import commands, hosts, waiting

PORT = 2222
OPTIONS = [
    *("--experiment=vision/digits_mlp", "--mode=train"),
    "--set=runtime.execution=graph",
    "--set=runtime.distribution_strategy=multi_worker_mirrored",
    # Two and three workers can share a batch of this size.
    "--set=task.train_data.global_batch_size=48",
    *("--set=trainer.train_steps=60", "--set=trainer.steps_per_loop=10"),
    "--set=trainer.checkpoint_interval=20",
]
# The training needs several seconds from its first checkpoint to its end with this delay, so that
# tests can act in between.
DELAY = 0.02
pytestmark = [pytest.mark.slow]


class LoseWorkerOne(pipeline.Prepare):
    """A stage in which worker 1 is killed, between the rendezvous and the start of TensorFlow."""

    def __call__(self, ctx: pipeline.ExperimentContext) -> str | None:
        if ctx.params.runtime.task_index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        distribute_utils._MIN_SECONDS_TO_CONNECT = 10.0
        os.environ[cluster.TIMEOUT_VARIABLE] = "1"
        return super().__call__(ctx)


@contextlib.contextmanager
def _training(
    model_dir: pathlib.Path,
    addresses: Sequence[str],
    *options: str,
    networks: Sequence[str | None],
    **environment: str,
) -> Iterator[list[commands.Command]]:
    """Start one worker per address, and kill those that still run at the end."""
    with contextlib.ExitStack() as stack:
        workers = []
        for index, network in enumerate(networks):
            place = [f"--set=runtime.worker_hosts={','.join(addresses)}"]
            place.append(f"--set=runtime.task_index={index}")
            worker = commands.Command(
                ["train.py", f"--model_dir={model_dir}", *OPTIONS, *place, *options],
                env=environment,
                network=network,
            )
            stack.callback(worker.kill)
            workers.append(worker)
        yield workers


def _on(
    members: Sequence[hosts.Host], model_dir: pathlib.Path, *options: str, **environment: str
) -> contextlib.AbstractContextManager[list[commands.Command]]:
    """Start one worker per host."""
    addresses = [_address(host) for host in members]
    networks = [host.network for host in members]
    return _training(model_dir, addresses, *options, networks=networks, **environment)


def _address(host: hosts.Host) -> str:
    return f"{host.address}:{PORT}"


def _complete(workers: Sequence[commands.Command], model_dir: pathlib.Path) -> dict[str, Any]:
    """Wait until the workers have trained to the end, and return what the run has left."""
    for worker in workers:
        assert worker.wait() == 0, worker.stderr[-3000:]
    return chaos.what_is_left(model_dir)


def _complete_from_a_checkpoint(
    workers: Sequence[commands.Command], model_dir: pathlib.Path
) -> dict[str, Any]:
    left = _complete(workers, model_dir)
    # The file is written by all runs of the chief.
    assert "Stage initialize: resumed at step" in (model_dir / "log.txt").read_text()
    return left


def _wait_for_checkpoint(model_dir: pathlib.Path, workers: Sequence[commands.Command]) -> None:
    waiting.wait_for(
        (model_dir / "ckpt-20.commit.json").exists,
        alive=lambda: all(worker.returncode is None for worker in workers),
        told=lambda: "\n".join(worker.stderr[-3000:] for worker in workers),
    )


def _assert_lost(worker: commands.Command, lost: str) -> None:
    """Assert that a worker ends soon, with one error that names the lost worker."""
    assert worker.wait() == 7, worker.stderr[-3000:]
    assert worker.stderr.count("ClusterError: ") == 1
    # Of three workers, the first one that ends may be lost to the other one, too.
    error, _, names = worker.stderr.splitlines()[-1].partition("Lost connection to ")
    assert error.endswith("ClusterError: ")
    assert lost in names.partition("; ")[0]
    assert "Traceback" not in worker.stderr


@pytest.fixture(scope="module")
def on_one_machine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that trains with several workers on one machine, once per arguments."""
    done: dict[tuple[Any, ...], dict[str, Any]] = {}

    def train(count: int, *options: str) -> dict[str, Any]:
        if (count, *options) not in done:
            model_dir = tmp_path_factory.mktemp("one_machine") / "run"
            addresses = [f"127.0.0.1:{portpicker.pick_unused_port()}" for _ in range(count)]
            networks = [None] * count
            with _training(model_dir, addresses, *options, networks=networks) as workers:
                done[count, *options] = _complete(workers, model_dir)
        return done[count, *options]

    return train


@pytest.mark.parametrize("count", [2, 3])
def test_workers_on_separate_hosts_train_like_workers_on_one_machine(
    tmp_path: pathlib.Path, on_one_machine: Any, count: int
) -> None:
    expected = on_one_machine(count)
    with hosts.hosts(count) as members, _on(members, tmp_path / "run") as workers:
        assert chaos.differences(expected, _complete(workers, tmp_path / "run")) == []


def test_slow_network_that_loses_packets_does_not_change_the_result(
    tmp_path: pathlib.Path, on_one_machine: Any
) -> None:
    with hosts.hosts(2) as members:
        for host in members:
            host.delay, host.loss = 0.05, 0.02
        with _on(members, tmp_path / "run") as workers:
            left = _complete(workers, tmp_path / "run")
        assert all(host.num_lost > 0 for host in members)
    assert chaos.differences(on_one_machine(2), left) == []


def test_training_continues_after_a_one_second_network_outage(
    tmp_path: pathlib.Path, on_one_machine: Any
) -> None:
    model_dir = tmp_path / "run"
    with hosts.hosts(2) as members:
        for host in members:
            host.delay = DELAY
        with _on(members, model_dir) as workers:
            _wait_for_checkpoint(model_dir, workers)
            members[1].cut(1.0)
            assert [worker.returncode for worker in workers] == [None, None]
            left = _complete(workers, model_dir)
    assert chaos.differences(on_one_machine(2), left) == []


def test_disconnected_workers_name_each_other_and_resume_after_reconnecting(
    tmp_path: pathlib.Path, on_one_machine: Any
) -> None:
    model_dir = tmp_path / "run"
    with hosts.hosts(2) as members:
        for host in members:
            host.delay = DELAY
        with _on(members, model_dir) as workers:
            _wait_for_checkpoint(model_dir, workers)
            members[1].is_connected = False
            _assert_lost(workers[0], f"worker 1 at {_address(members[1])}")
            _assert_lost(workers[1], f"worker 0 at {_address(members[0])}")
        members[1].is_connected = True
        with _on(members, model_dir) as workers:
            left = _complete_from_a_checkpoint(workers, model_dir)
    assert chaos.differences(on_one_machine(2), left) == []


def test_remaining_workers_name_a_lost_host_and_resume_training_without_it(
    tmp_path: pathlib.Path, on_one_machine: Any
) -> None:
    model_dir = tmp_path / "run"
    virtual = "--set=trainer.virtual_replicas=6"
    with hosts.hosts(3) as members:
        for host in members:
            host.delay = DELAY
        with _on(members, model_dir, virtual) as workers:
            _wait_for_checkpoint(model_dir, workers)
            # The chief's host loses its power.
            members[0].is_connected = False
            workers[0].kill()
            for worker in workers[1:]:
                _assert_lost(worker, f"worker 0 at {_address(members[0])}")
        with _on(members[1:], model_dir, virtual) as workers:
            left = _complete_from_a_checkpoint(workers, model_dir)
            assert "on 2 instead of 3 replicas" in workers[0].stderr
    assert chaos.differences(on_one_machine(3, virtual), left) == []


@pytest.mark.parametrize("index", [0, 1])
def test_worker_names_a_frozen_worker_whose_host_still_accepts_connections(
    tmp_path: pathlib.Path, index: int
) -> None:
    with hosts.hosts(2) as members:
        for host in members:
            host.delay = DELAY
        with _on(members, tmp_path / "run") as workers:
            _wait_for_checkpoint(tmp_path / "run", workers)
            workers[index].send_signal(signal.SIGSTOP)
            _assert_lost(workers[1 - index], f"worker {index} at {_address(members[index])}")


def test_error_names_a_worker_lost_between_rendezvous_and_tensorflow_startup(
    tmp_path: pathlib.Path,
) -> None:
    stage = "--set=pipeline.prepare=tests.end_to_end.test_hosts:LoseWorkerOne"
    with hosts.hosts(2) as members, _on(members, tmp_path / "run", stage) as workers:
        assert workers[1].wait() == -signal.SIGKILL
        _assert_lost(workers[0], f"worker 1 at {_address(members[1])}")
        assert f"set the environment variable {cluster.TIMEOUT_VARIABLE} to" in workers[0].stderr


def test_run_resumes_with_a_host_that_came_back_with_another_address(
    tmp_path: pathlib.Path, on_one_machine: Any
) -> None:
    model_dir = tmp_path / "run"
    with hosts.hosts(2) as members:
        for host in members:
            host.delay = DELAY
        with _on(members, model_dir) as workers:
            _wait_for_checkpoint(model_dir, workers)
            old_address = _address(members[1])
            workers[1].kill()
            members[1].move("10.0.0.77")
            _assert_lost(workers[0], f"worker 1 at {old_address}")
        networks = [host.network for host in members]
        old_addresses = [_address(members[0]), old_address]
        timeout = {cluster.TIMEOUT_VARIABLE: "30"}
        with _training(model_dir, old_addresses, networks=networks, **timeout) as workers:
            for worker in workers:
                assert worker.wait() == 7
                assert f"worker 1 at {old_address}" in worker.stderr.splitlines()[-1]
        with _on(members, model_dir) as workers:
            left = _complete_from_a_checkpoint(workers, model_dir)
    assert chaos.differences(on_one_machine(2), left) == []
