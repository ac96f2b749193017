import os
import sys
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.checkpoint import async_checkpoint_manager
from tests.checkpoint.conftest import Gate

ONES = [[1.0, 1.0], [1.0, 1.0]]


def _saving(checkpoint, path, gate=None):
    options = tf.train.CheckpointOptions(experimental_sharding_callback=gate)
    saving = async_checkpoint_manager.BackgroundSave(options)
    is_under_way = saving.start(lambda options: checkpoint.write(str(path), options))
    return saving, is_under_way


def _assign(variable):
    variable.assign(2 * variable)


def _scatter(variable):
    variable.scatter_add(tf.IndexedSlices(tf.ones([1, 2]), [0]))


UPDATES = {
    "assign": _assign,
    "scatter": _scatter,
    "graph scatter": tf.function(_scatter),
    "xla scatter": tf.function(_scatter, jit_compile=True),
}


@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES.keys())
def test_background_save_writes_the_variable_values_from_the_start_of_the_save(update, tmp_path):
    variable = tf.Variable(ONES)
    update(variable)
    before, gate = variable.numpy().copy(), Gate()
    saving, is_under_way = _saving(tf.train.Checkpoint(v=variable), tmp_path / "ckpt", gate)
    assert is_under_way
    for _ in range(3):
        update(variable)
    gate.open()
    reader = tf.train.load_checkpoint(saving.result())
    np.testing.assert_array_equal(reader.get_tensor("v/.ATTRIBUTES/VARIABLE_VALUE"), before)
    assert not np.array_equal(variable.numpy(), before)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has per-thread priorities")
def test_thread_that_writes_a_checkpoint_runs_at_lower_priority_than_training(tmp_path):
    checkpoint = tf.train.Checkpoint(v=tf.Variable(ONES))
    niceness = []

    def save(options):
        path = checkpoint.write(str(tmp_path / "ckpt"), options)
        niceness.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return path

    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    saving = async_checkpoint_manager.BackgroundSave(tf.train.CheckpointOptions())
    saving.start(save)
    saving.result()
    assert niceness == [min(19, own + 10)]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own


def test_background_save_of_replicated_variables_writes_the_values_from_its_start(
    two_replicas, tmp_path
):
    with two_replicas.scope():
        kernel = keras.Variable(np.ones((2, 2), "float32"))
        optimizer = keras.optimizers.Adam(0.5)
        optimizer.build([kernel])
        count = tf.Variable(
            1.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )

    @tf.function
    def update():
        two_replicas.run(lambda: (optimizer.apply([tf.ones([2, 2])], [kernel]), count.assign(5.0)))

    gate = Gate()
    checkpoint = tf.train.Checkpoint(kernel=kernel, optimizer=optimizer, count=count)
    with two_replicas.scope():
        saving, is_under_way = _saving(checkpoint, tmp_path / "ckpt", gate)
        assert is_under_way
        update()
    gate.open()
    values = _values(saving.result())
    np.testing.assert_array_equal(values["kernel"], np.ones((2, 2)))
    assert values["count"] == 2.0
    assert values["optimizer/_iterations"] == 0
    np.testing.assert_array_equal(values["optimizer/_variables/2"], np.zeros((2, 2)))


_lookup = tf.lookup.experimental


@pytest.mark.parametrize(
    "table",
    [
        lambda: _lookup.MutableHashTable(tf.int64, tf.int64, 0),
        lambda: _lookup.DenseHashTable(tf.int64, tf.int64, 0, empty_key=-1, deleted_key=-2),
    ],
    ids=["MutableHashTable", "DenseHashTable"],
)
def test_background_save_of_a_lookup_table_omits_later_insertions(table, tmp_path):
    saved, gate = table(), Gate()
    saved.insert(tf.constant([1], tf.int64), tf.constant([5], tf.int64))
    saving, is_under_way = _saving(tf.train.Checkpoint(table=saved), tmp_path / "ckpt", gate)
    assert is_under_way
    saved.insert(tf.constant([1, 2], tf.int64), tf.constant([6, 6], tf.int64))
    gate.open()
    restored = table()
    tf.train.Checkpoint(table=restored).read(saving.result())
    found = restored.lookup(tf.constant([1, 2], tf.int64))
    assert found.numpy().tolist() == [5, 0]


def _values(path):
    reader = tf.train.load_checkpoint(path)
    suffix = "/.ATTRIBUTES/VARIABLE_VALUE"
    return {
        key.removesuffix(suffix): reader.get_tensor(key)
        for key in reader.get_variable_to_shape_map()
        if key.endswith(suffix)
    }


def test_background_save_writes_the_python_state_from_the_start_of_the_save(tmp_path):
    class Counter(tf.train.experimental.PythonState):
        count = 1

        def serialize(self):
            return str(self.count)

        def deserialize(self, string_value):
            self.count = int(string_value)

    counter, gate = Counter(), Gate()
    saving, _ = _saving(tf.train.Checkpoint(counter=counter), tmp_path / "ckpt", gate)
    counter.count = 7
    gate.open()
    restored = Counter()
    tf.train.Checkpoint(counter=restored).read(saving.result())
    assert restored.count == 1


def test_background_save_is_not_started_if_reading_the_state_raises(tmp_path):
    class Broken(tf.train.experimental.PythonState):
        def serialize(self):
            raise ValueError("no state")

        def deserialize(self, string_value):
            pass

    saving, is_under_way = _saving(tf.train.Checkpoint(broken=Broken()), tmp_path / "ckpt")
    assert not is_under_way
    with pytest.raises(ValueError, match="no state"):
        saving.result()
