import keras
import numpy as np
import tensorflow as tf

from official_lite.modeling import step_seeds


def _model():
    layers = keras.layers
    return keras.Sequential([keras.Input((64,)), layers.Dropout(0.5), layers.GaussianDropout(0.5)])


def _masks(model, seeds, step):
    seeds.set(tf.constant(step, tf.int64))
    return model(tf.ones([1, 64]), training=True).numpy()


def test_masks_depend_on_seed_and_step_and_on_nothing_before():
    model = _model()
    seeds, others = step_seeds.StepSeeds(model, seed=1), step_seeds.StepSeeds(model, seed=2)
    third = _masks(model, seeds, 3)
    np.testing.assert_array_equal(_masks(model, seeds, 3), third)
    assert (_masks(model, seeds, 4) != third).any()
    assert (_masks(model, others, 3) != third).any()


def test_each_generator_gets_a_state_of_its_own():
    model = _model()
    step_seeds.StepSeeds(model, seed=1).set(tf.constant(0, tf.int64))
    first, second = (v.numpy() for v in model.variables if step_seeds.is_seed(v))
    assert (first != second).all()


def test_replicas_draw_different_numbers(two_replicas):
    with two_replicas.scope():
        model = _model()
    seeds = step_seeds.StepSeeds(model, seed=1)

    @tf.function
    def step():
        seeds.set(tf.constant(0, tf.int64))
        return model(tf.ones([1, 64]), training=True)

    first, second = two_replicas.experimental_local_results(two_replicas.run(step))
    assert (first.numpy() != second.numpy()).any()


def test_the_same_numbers_with_xla_and_without():
    model = _model()
    seeds = step_seeds.StepSeeds(model, seed=1)
    states = []
    for jit_compile in (False, True):
        tf.function(seeds.set, jit_compile=jit_compile)(tf.constant(5, tf.int64))
        states.append([v.numpy().tolist() for v in model.variables if step_seeds.is_seed(v)])
    assert states[0] == states[1]


def test_a_model_without_randomness_costs_nothing():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    graph = tf.function(step_seeds.StepSeeds(model, seed=1).set).get_concrete_function(
        tf.TensorSpec([], tf.int64)
    )
    assert not [op for op in graph.graph.get_operations() if "Random" in op.type]
