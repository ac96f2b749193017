import threading

import keras
import numpy as np
import tensorflow as tf

from official_lite.modeling import atomic_counters


def _ops(function):
    return {op.type for op in function.get_concrete_function().graph.get_operations()}


def test_sums_are_made_where_the_variable_is():
    counter = keras.Variable(0, dtype="int64", name="counter")
    plain = tf.function(lambda: counter.assign_add(1))
    assert "AssignAddVariableOp" not in _ops(plain)
    atomic_counters.make_atomic([counter, None, tf.Variable(0)])
    atomic_counters.make_atomic([counter])
    assert "AssignAddVariableOp" in _ops(tf.function(lambda: counter.assign_add(1)))
    total = tf.function(lambda: counter.assign(counter + 2))
    assert "AssignAddVariableOp" in _ops(total)
    total()
    assert int(counter.numpy()) == 2
    assert type(counter).__name__ == "Variable"


def test_all_else_is_assigned_as_before():
    variable = keras.Variable(np.zeros([2], np.float32), name="v")
    atomic_counters.make_atomic([variable])
    variable.assign(variable * 0.5 + 1.0)
    np.testing.assert_array_equal(variable.numpy(), [1.0, 1.0])
    forgotten = variable + 5.0
    variable.assign([3.0, 4.0])
    np.testing.assert_array_equal(variable.numpy(), [3.0, 4.0])
    variable.assign(forgotten)
    np.testing.assert_array_equal(variable.numpy(), [6.0, 6.0])
    variable.assign(variable + 1.0)
    np.testing.assert_array_equal(variable.numpy(), [7.0, 7.0])


def test_metrics_of_keras_count_as_they_did():
    metrics = [keras.metrics.AUC(), keras.metrics.MeanIoU(2), keras.metrics.Mean()]
    others = [keras.metrics.AUC(), keras.metrics.MeanIoU(2), keras.metrics.Mean()]
    atomic_counters.make_atomic(v for metric in metrics for v in metric.variables)
    for labels, scores in (([0, 1, 1], [0.2, 0.7, 0.4]), ([1, 0, 1], [0.9, 0.6, 0.1])):
        for metric, other in zip(metrics[:2], others[:2], strict=True):
            metric.update_state(labels, scores)
            other.update_state(labels, scores)
        metrics[2].update_state(scores)
        others[2].update_state(scores)
    for metric, other in zip(metrics, others, strict=True):
        assert float(metric.result()) == float(other.result())


def test_nothing_is_lost_if_several_count_at_once():
    counter = keras.Variable(0, dtype="int64", name="counter")
    atomic_counters.make_atomic([counter])

    @tf.function
    def count():
        for _ in tf.range(2000):
            counter.assign_add(1)

    count.get_concrete_function()
    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert int(counter.numpy()) == 8000
