import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.execution import executors
from tests import parameter_servers

# Each worker draws as long as nothing else is to do; a task is whoever's turn it is.
DRAW = """
import tensorflow as tf

from official_lite.execution import executors

coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
shares = [tf.data.Dataset.range(10 * i, 10 * i + 10).shuffle(10, seed=1).repeat() for i in (0, 1)]
dataset = executors.WorkerDatasets(coordinator, shares)
draw = tf.function(lambda iterator: next(iterator))
iterator = iter(dataset)
drawn = [coordinator.schedule(draw, (iterator,)) for _ in range(400)]
coordinator.join()
values = [int(value.fetch()) for value in drawn]
results["spec"] = str(dataset.element_spec)
results["values"] = values
"""


@pytest.mark.slow
def test_each_worker_reads_its_own_share(tmp_path):
    found = parameter_servers.run_script(tmp_path, DRAW)
    assert found["spec"] == str(tf.TensorSpec([], tf.int64))
    assert set(found["values"]) == set(range(20))
    # In turns, whatever the order: no example comes a second time before all have come.
    for share in (range(10), range(10, 20)):
        own = [value for value in found["values"] if value in share]
        assert max(map(own.count, share)) - min(map(own.count, share)) <= 1


def test_data_that_run_python_are_refused():
    def read(index):
        return tf.numpy_function(lambda i: i, [index], tf.int64)

    with pytest.raises(errors.ConfigValueError, match="run Python"):
        executors._serialize(tf.data.Dataset.range(3).map(read))
