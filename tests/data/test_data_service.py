import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.data import data_service


@pytest.fixture(scope="module")
def address():
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    host = dispatcher.target.split("://")[1]
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=host))
    yield dispatcher.target
    worker._stop()
    dispatcher._stop()


def options(address="grpc://nowhere:1", job_name="job", **kwargs):
    return data_service.DataServiceOptions(address=address, job_name=job_name, **kwargs)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"address": None}, "needs `tf_data_service_address`"),
        ({"address": ""}, "needs `tf_data_service_address`"),
        ({"shared_by_trainers": True}, "`trainer_id` each"),
        ({"shared_by_trainers": True, "trainer_id": "a", "round_robin": True}, "does not support"),
    ],
)
def test_contradictions_are_refused(kwargs, message):
    with pytest.raises(errors.ConfigValueError, match=message):
        options(**kwargs)


def test_a_job_belongs_to_its_process_and_batch_size():
    assert options(batch_size=8).unique_job_name.startswith("job_bs8_")
    assert options(batch_size=8) == options(batch_size=8)
    assert options(batch_size=8).unique_job_name != options(batch_size=16).unique_job_name


def test_a_shared_job_is_called_the_same_everywhere():
    shared = options(shared_by_trainers=True, trainer_id="a", before_batching=True)
    assert shared.unique_job_name == "job"
    assert options(round_robin=True, batch_size=8).unique_job_name == "job_bs8"


def test_the_service_gives_the_same_elements(address):
    dataset = data_service.distribute(tf.data.Dataset.range(5), options(address))
    assert sorted(dataset.as_numpy_iterator()) == [0, 1, 2, 3, 4]


def test_two_trainers_share_one_pass(address):
    dataset = tf.data.Dataset.range(1000).repeat()
    first, second = (
        data_service.distribute(
            dataset, options(address, "shared", shared_by_trainers=True, trainer_id=trainer)
        )
        for trainer in ("a", "b")
    )
    assert list(first.take(5).as_numpy_iterator()) == list(second.take(5).as_numpy_iterator())


# TensorFlow says so itself, of any dataset that goes through the service from within a function.
@pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options:UserWarning")
def test_round_robin_serves_every_replica(address):
    context = tf.distribute.InputContext(1, 0, 2)
    dataset = tf.data.Dataset.range(100).repeat()
    served = data_service.distribute(
        dataset, options(address, "in_turns", round_robin=True), context
    )
    assert len(list(served.take(6).as_numpy_iterator())) == 6


def test_round_robin_needs_replicas():
    with pytest.raises(errors.ConfigValueError, match="`input_context` is missing"):
        data_service.distribute(tf.data.Dataset.range(1), options(round_robin=True))
