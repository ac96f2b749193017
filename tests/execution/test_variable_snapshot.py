import tensorflow as tf

from official_lite.execution.auto import VariableSnapshot


def test_every_variable_that_a_function_touches_is_put_back(two_replicas) -> None:
    with two_replicas.scope():
        dense, table = tf.Variable(tf.zeros([3])), tf.Variable(tf.ones([10, 2]))
    fused, unused = tf.Variable(0.0), tf.Variable(5.0)
    iterator = iter(tf.data.Dataset.range(9))

    @tf.function(jit_compile=True)
    def inner():
        fused.assign_add(1.0)

    @tf.function
    def change():
        inner()
        next(iterator)
        dense.assign_add([1.0, 2.0, 3.0])
        table.scatter_sub(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([4])))

    concrete = change.get_concrete_function()
    snapshot = VariableSnapshot([concrete])
    for _ in range(2):
        concrete()
        assert (dense.numpy()[0], table.numpy()[4, 0], fused.numpy()) == (1.0, 0.0, 1.0)
        unused.assign_add(1.0)
        snapshot.restore()
        assert (dense.numpy()[0], table.numpy()[4, 0], fused.numpy()) == (0.0, 1.0, 0.0)
    assert unused.numpy() == 7.0
