import itertools
import socket

import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.data import data_service


def start_worker(target):
    service = tf.data.experimental.service
    # A heartbeat every 10 ms lets the worker learn of its task without delay.
    config = service.WorkerConfig(target.split("://")[1], heartbeat_interval_ms=10)
    return service.WorkerServer(config)


@pytest.fixture
def dispatcher():
    server = tf.data.experimental.service.DispatchServer()
    yield server.target
    server.stop()


@pytest.fixture(scope="module")
def address():
    server = tf.data.experimental.service.DispatchServer()
    workers = [start_worker(server.target) for _ in range(2)]
    yield server.target
    for one in (*workers, server):
        one.stop()


def options(address="grpc://nowhere:1", job_name="job", **kwargs):
    return data_service.DataServiceOptions(address=address, job_name=job_name, **kwargs)


@pytest.mark.parametrize(
    ("kwargs", "named"),
    [
        ({"address": ""}, "`tf_data_service_address`"),
        ({"shared_by_trainers": True}, "`trainer_id`"),
        ({"shared_by_trainers": True, "trainer_id": "a", "round_robin": True}, "round-robin"),
    ],
)
def test_missing_or_contradictory_data_service_options_are_refused(kwargs, named):
    with pytest.raises(errors.ConfigValueError, match=named):
        options(**kwargs)


def test_data_service_job_has_a_name_only_if_it_is_shared():
    assert options(batch_size=8).shared_job_name is None
    shared = options(shared_by_trainers=True, trainer_id="a", before_batching=True)
    assert shared.shared_job_name == "job"
    assert options(round_robin=True, batch_size=8).shared_job_name == "job_bs8"


def test_training_and_validation_data_with_equal_data_service_options_are_not_mixed(address):
    same = options(address, batch_size=8, shares_files=True)
    training = data_service.distribute(tf.data.Dataset.range(1000).repeat(), same)
    elements = training.as_numpy_iterator()
    next(elements)
    validation = data_service.distribute(tf.data.Dataset.range(2000, 2005), same)
    assert sorted(validation.take(100).as_numpy_iterator()) == [2000, 2001, 2002, 2003, 2004]
    assert max(itertools.islice(elements, 100)) < 1000


def test_each_data_worker_reads_all_files_unless_workers_share_them(address):
    dataset = tf.data.Dataset.range(5)
    twice = data_service.distribute(dataset, options(address, "twice"))
    assert sorted(twice.as_numpy_iterator()) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    once = data_service.distribute(dataset, options(address, "once", shares_files=True))
    assert sorted(once.as_numpy_iterator()) == [0, 1, 2, 3, 4]
    # The second pass stands for the next evaluation.
    assert sorted(once.as_numpy_iterator()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("shares_files", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_training_continues_after_a_data_worker_restarts(dispatcher, shares_files):
    worker = start_worker(dispatcher)
    dataset = tf.data.Dataset.range(10).repeat()
    served = data_service.distribute(dataset, options(dispatcher, shares_files=shares_files))
    elements = served.as_numpy_iterator()
    assert len(list(itertools.islice(elements, 100))) == 100
    worker.stop()
    worker = start_worker(dispatcher)
    # Read more elements than could have been prefetched from the stopped worker.
    assert len(list(itertools.islice(elements, 1000))) == 1000
    worker.stop()


def test_unreachable_dispatcher_is_named_in_the_error_after_the_timeout():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(errors.ClusterError, match=f"127.0.0.1:{port}"):
            data_service.wait_for_service(f"grpc://127.0.0.1:{port}", 1.0)
    with pytest.raises(errors.ConfigValueError, match="grpc://host"):
        data_service.wait_for_service("grpc://host", 1.0)


def test_data_service_without_workers_raises_after_the_timeout(dispatcher):
    with pytest.raises(errors.ClusterError, match="returned no data within 1 s"):
        data_service.wait_for_service(dispatcher, 1.0)


def test_two_trainers_that_share_a_data_service_job_read_the_same_elements(dispatcher):
    # With several workers, each trainer might read the workers in a different order.
    worker = start_worker(dispatcher)
    dataset = tf.data.Dataset.range(1000).repeat()
    first, second = (
        data_service.distribute(
            dataset, options(dispatcher, "shared", shared_by_trainers=True, trainer_id=trainer)
        )
        for trainer in ("a", "b")
    )
    assert list(first.take(5).as_numpy_iterator()) == list(second.take(5).as_numpy_iterator())
    worker.stop()


# TensorFlow itself emits this warning for any dataset that is sent to the service in a function.
@pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options:UserWarning")
def test_round_robin_data_service_yields_elements_with_two_replicas(address):
    context = tf.distribute.InputContext(1, 0, 2)
    dataset = tf.data.Dataset.range(100).repeat()
    served = data_service.distribute(
        dataset, options(address, "in_turns", round_robin=True), context
    )
    assert len(list(served.take(6).as_numpy_iterator())) == 6


def test_round_robin_data_service_without_an_input_context_is_refused():
    with pytest.raises(errors.ConfigValueError, match="`input_context` is missing"):
        data_service.distribute(tf.data.Dataset.range(1), options(round_robin=True))
