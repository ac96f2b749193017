import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.modeling import replica_state


def _model():
    layers = keras.layers
    return keras.Sequential([keras.Input((64,)), layers.Dropout(0.5), layers.GaussianDropout(0.5)])


def _masks(model, seeds, step):
    seeds.set(tf.constant(step, tf.int64))
    return model(tf.ones([1, 64]), training=True).numpy()


def test_dropout_masks_depend_only_on_the_seed_and_the_step():
    model = _model()
    seeds, others = replica_state.StepSeeds(model, seed=1), replica_state.StepSeeds(model, seed=2)
    third = _masks(model, seeds, 3)
    np.testing.assert_array_equal(_masks(model, seeds, 3), third)
    assert (_masks(model, seeds, 4) != third).any()
    assert (_masks(model, others, 3) != third).any()


def test_replicas_draw_different_random_numbers(two_replicas):
    with two_replicas.scope():
        model = _model()
    seeds = replica_state.StepSeeds(model, seed=1)

    @tf.function
    def step():
        seeds.set(tf.constant(0, tf.int64))
        return model(tf.ones([1, 64]), training=True)

    first, second = two_replicas.experimental_local_results(two_replicas.run(step))
    assert (first.numpy() != second.numpy()).any()


def test_seed_generators_get_distinct_states_that_are_equal_with_and_without_xla():
    model = _model()
    seeds = replica_state.StepSeeds(model, seed=1)
    states = []
    for jit_compile in (False, True):
        tf.function(seeds.set, jit_compile=jit_compile)(tf.constant(5, tf.int64))
        states.append([v.numpy().tolist() for v in model.variables if replica_state.is_seed(v)])
    assert states[0] == states[1]
    assert len({tuple(state) for state in states[0]}) == 2


def test_setting_step_seeds_adds_no_random_ops_to_a_model_without_random_layers():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    graph = tf.function(replica_state.StepSeeds(model, seed=1).set).get_concrete_function(
        tf.TensorSpec([], tf.int64)
    )
    assert not [op for op in graph.graph.get_operations() if "Random" in op.type]


def _train_on(strategy, batches, **kwargs):
    """Train a layer on one batch per replica, and return its moving mean on each replica."""
    with strategy.scope():
        layer = keras.layers.BatchNormalization(momentum=0.5, **kwargs)
        model = keras.Sequential([keras.Input((1,)), layer])
    statistics = replica_state.MovingStatistics(tf.train.Checkpoint(model=model))

    @tf.function
    def step(batch):
        model(batch, training=True)
        statistics.average()

    values = iter(batches)
    dataset = strategy.experimental_distribute_values_from_function(
        lambda _: tf.constant(next(values))
    )
    strategy.run(step, args=(dataset,))
    results = strategy.experimental_local_results(layer.moving_mean.value)
    return [float(result.numpy()[0]) for result in results]


@pytest.mark.parametrize(("trainable", "expected"), [(True, 2.0), (False, 0.0)])
def test_moving_mean_is_averaged_over_replicas_unless_the_layer_is_frozen(
    two_replicas, trainable, expected
):
    batches = [[[2.0], [2.0]], [[6.0], [6.0]]]
    assert _train_on(two_replicas, batches, trainable=trainable) == [expected, expected]


def test_moving_statistics_that_the_step_does_not_write_are_not_averaged_over_replicas(
    two_replicas,
):
    with two_replicas.scope():
        layer = keras.layers.BatchNormalization()
        model = keras.Sequential([keras.Input((1,)), layer])
    on_replicas = two_replicas.experimental_local_results(layer.moving_mean.value)
    for number, mean in enumerate(on_replicas):
        mean.assign([number])
    statistics = replica_state.MovingStatistics(tf.train.Checkpoint(model=model))
    two_replicas.run(tf.function(statistics.average))
    assert [float(mean.numpy()[0]) for mean in on_replicas] == [0.0, 1.0]


def test_all_moving_statistics_are_averaged_in_a_single_all_reduce(two_replicas):
    with two_replicas.scope():
        layers = [keras.layers.BatchNormalization() for _ in range(3)]
        model = keras.Sequential([keras.Input((4,)), *layers])
    statistics = replica_state.MovingStatistics(tf.train.Checkpoint(model=model))

    def learn():
        model(tf.ones((2, 4)), training=True)
        statistics.average()

    @tf.function
    def step():
        two_replicas.run(learn)

    step()
    additions = [
        op for op in step.get_concrete_function().graph.get_operations() if op.type == "AddN"
    ]
    assert len(additions) == 1
    variance = layers[0].moving_variance
    first, second = (copy.numpy() for copy in variance.value.values)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, 0.99)


def _ops(function):
    return {op.type for op in function.get_concrete_function().graph.get_operations()}


def test_additions_to_atomic_variables_use_one_atomic_op():
    counter = keras.Variable(0, dtype="int64", name="counter")
    plain = tf.function(lambda: counter.assign_add(1))
    assert "AssignAddVariableOp" not in _ops(plain)
    replica_state.make_atomic([counter, None, tf.Variable(0)])
    replica_state.make_atomic([counter])
    assert "AssignAddVariableOp" in _ops(tf.function(lambda: counter.assign_add(1)))
    total = tf.function(lambda: counter.assign(counter + 2))
    assert "AssignAddVariableOp" in _ops(total)
    total()
    assert int(counter.numpy()) == 2
    assert type(counter).__name__ == "Variable"


def test_atomic_variables_support_assignments_that_are_not_additions():
    variable = keras.Variable(np.zeros([2], np.float32), name="v")
    replica_state.make_atomic([variable])
    variable.assign(variable * 0.5 + 1.0)
    np.testing.assert_array_equal(variable.numpy(), [1.0, 1.0])
    forgotten = variable + 5.0
    variable.assign([3.0, 4.0])
    np.testing.assert_array_equal(variable.numpy(), [3.0, 4.0])
    variable.assign(forgotten)
    np.testing.assert_array_equal(variable.numpy(), [6.0, 6.0])
    variable.assign(variable + 1.0)
    np.testing.assert_array_equal(variable.numpy(), [7.0, 7.0])


def test_atomic_updates_do_not_change_the_results_of_keras_metrics():
    metrics = [keras.metrics.AUC(), keras.metrics.MeanIoU(2), keras.metrics.Mean()]
    others = [keras.metrics.AUC(), keras.metrics.MeanIoU(2), keras.metrics.Mean()]
    replica_state.make_atomic(v for metric in metrics for v in metric.variables)
    for labels, scores in (([0, 1, 1], [0.2, 0.7, 0.4]), ([1, 0, 1], [0.9, 0.6, 0.1])):
        for metric, other in zip(metrics[:2], others[:2], strict=True):
            metric.update_state(labels, scores)
            other.update_state(labels, scores)
        metrics[2].update_state(scores)
        others[2].update_state(scores)
    for metric, other in zip(metrics, others, strict=True):
        assert float(metric.result()) == float(other.result())


def test_concurrent_additions_to_an_atomic_variable_are_not_lost():
    counter = keras.Variable(0, dtype="int64", name="counter")
    replica_state.make_atomic([counter])

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
