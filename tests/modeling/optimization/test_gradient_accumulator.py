import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.modeling import distributed_gradients
from official_lite.modeling.optimization import gradient_accumulator
from tests import rounding


def _optimizer(variables) -> keras.optimizers.Optimizer:
    optimizer = keras.optimizers.SGD(1.0, momentum=0.9)
    optimizer.build(variables)
    return distributed_gradients.make_distributed(optimizer)


def test_optimizer_used_to_collect_gradients_has_the_original_class_and_updates_nothing() -> None:
    variable = keras.Variable([1.0])
    sink = gradient_accumulator.GradientSink(keras.optimizers.SGD(0.5))
    assert isinstance(sink, keras.optimizers.SGD)
    assert float(sink.learning_rate) == 0.5
    sink.apply_gradients([(tf.constant([1.0]), variable)])
    sink.apply([tf.constant([1.0])], [variable])
    assert variable.numpy() == [1.0]


def test_gradient_accumulator_updates_with_the_mean_gradient_of_the_micro_batches() -> None:
    variable = keras.Variable([0.0])
    optimizer = distributed_gradients.make_distributed(keras.optimizers.SGD(1.0))
    optimizer.build([variable])
    accumulator = gradient_accumulator.GradientAccumulator(optimizer, [variable], 2)
    for expected in (-2.0, -4.0):
        for gradient in (1.0, 3.0):
            accumulator.apply_gradients([(tf.constant([gradient]), variable)])
        accumulator.flush()
        np.testing.assert_allclose(variable.numpy(), [expected])
    assert int(optimizer.iterations) == 2


def test_gradient_accumulator_does_not_change_a_variable_without_gradients() -> None:
    used, unused = keras.Variable([0.0]), keras.Variable([5.0])
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    optimizer.build([used, unused])
    accumulator = gradient_accumulator.GradientAccumulator(optimizer, [used, unused], 1)
    accumulator.apply_gradients([(tf.constant([1.0]), used), (None, unused)])
    accumulator.flush()
    assert unused.numpy() == [5.0]


def test_accumulated_gradients_are_summed_over_replicas_once(two_replicas) -> None:
    with two_replicas.scope():
        variable = keras.Variable([0.0])
        optimizer = _optimizer([variable])
        accumulator = gradient_accumulator.GradientAccumulator(optimizer, [variable], 2)

    @tf.function
    def update():
        for _ in tf.range(2):
            two_replicas.run(lambda: accumulator.apply_gradients([(tf.ones((1,)), variable)]))
        two_replicas.run(accumulator.flush)

    update()
    np.testing.assert_allclose(variable.numpy(), [-2.0])


def test_gradient_collector_keeps_only_variables_that_have_a_gradient() -> None:
    one, other = keras.Variable([0.0]), keras.Variable([0.0])
    collector = gradient_accumulator.GradientCollector(keras.optimizers.SGD())
    collector.apply_gradients([(tf.constant([1.0]), one), (None, other)])
    assert [[variable is one for _, variable in update] for update in collector.updates] == [[True]]


@pytest.mark.sample(1)
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_lazy_row_update_is_the_same_for_micro_batches_and_the_whole_batch(
    num_replicas: int, two_replicas: tf.distribute.Strategy
) -> None:
    strategy = two_replicas if num_replicas == 2 else tf.distribute.get_strategy()
    # The table rows that two micro-batches look up. Some rows occur repeatedly.
    indices = tf.constant([[1, 1, 4], [4, 0, 1]])
    with strategy.scope():
        tables = [keras.Variable(np.ones([6, 2], np.float32)) for _ in range(2)]
        optimizers = [
            distributed_gradients.make_distributed(keras.optimizers.Adam(0.1), lazy_rows=True)
            for _ in range(2)
        ]
        for optimizer, table in zip(optimizers, tables, strict=True):
            optimizer.build([table])
        accumulator = gradient_accumulator.GradientAccumulator(
            optimizers[0], tables[:1], 2, tables[:1]
        )

    def gradient(rows: tf.Tensor) -> tf.IndexedSlices:
        values = tf.cast(rows, tf.float32)[:, tf.newaxis] + [[0.5, 1.0]]
        return tf.IndexedSlices(values, rows, tf.constant([6, 2]))

    def whole() -> None:
        rows = tf.reshape(indices, [-1])
        mean = tf.IndexedSlices(gradient(rows).values / 2, rows, tf.constant([6, 2]))
        optimizers[1].apply_gradients([(mean, tables[1])])

    @tf.function
    def update() -> None:
        for index in tf.range(2):
            strategy.run(
                lambda at: accumulator.apply_gradients([(gradient(indices[at]), tables[0])]),
                args=(index,),
            )
        strategy.run(accumulator.flush)
        strategy.run(whole)

    for _ in range(2):
        update()
    # The roundings of two updates with six rows each.
    rounding.assert_close(tables[0].numpy(), tables[1].numpy(), roundings=2 * 6)
    np.testing.assert_array_equal(tables[0].numpy()[[2, 3, 5]], np.ones([3, 2]))
    assert (tables[0].numpy()[[0, 1, 4]] != 1.0).all()


def test_accumulating_row_gradients_of_an_embedding_table_with_unknown_lookups_is_refused() -> None:
    table = keras.Variable(np.ones([6, 2], np.float32), name="table")
    optimizer = distributed_gradients.make_distributed(keras.optimizers.Adam(), lazy_rows=True)
    optimizer.build([table])
    accumulator = gradient_accumulator.GradientAccumulator(optimizer, [table], 2)
    rows = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([6, 2]))
    with pytest.raises(errors.ConfigValueError, match="the lookups in"):
        accumulator.apply_gradients([(rows, table)])


def test_gradients_of_half_precision_weights_are_summed_in_float32() -> None:
    variable = keras.Variable([0.0], dtype="bfloat16")
    optimizer = distributed_gradients.make_distributed(keras.optimizers.SGD(1.0))
    optimizer.build([variable])
    accumulator = gradient_accumulator.GradientAccumulator(optimizer, [variable], 257)
    # In bfloat16, 256 + 1 is 256.
    for gradient in (256.0, *[1.0] * 256):
        accumulator.apply_gradients([(tf.constant([gradient], tf.bfloat16), variable)])
    accumulator.flush()
    np.testing.assert_allclose(variable.numpy().astype(float), [-512 / 257], rtol=0.004)
