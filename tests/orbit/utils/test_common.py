import functools

import keras
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.orbit import utils


def test_global_step_is_a_non_trainable_int64_that_starts_at_zero():
    step = utils.create_global_step()
    step.assign_add(1)
    assert (step.numpy(), step.dtype, step.trainable) == (1, tf.int64, False)


def keyword_only(size, *, input_context=None):
    return tf.data.Dataset.range(size).batch(input_context.get_per_replica_batch_size(4))


def positional(size, input_context=None):
    return keyword_only(size, input_context=input_context)


@pytest.mark.parametrize("dataset_fn", [keyword_only, positional, functools.partial(keyword_only)])
def test_dataset_function_receives_its_input_context(dataset_fn, two_replicas):
    strategy = two_replicas
    dataset = utils.make_distributed_dataset(strategy, dataset_fn, 8)
    batch = next(iter(dataset))
    assert [len(part) for part in strategy.experimental_local_results(batch)] == [2, 2]


def test_make_distributed_dataset_splits_each_batch_over_the_replicas(two_replicas):
    strategy = two_replicas
    dataset = utils.make_distributed_dataset(strategy, tf.data.Dataset.range(8).batch(4))
    parts = strategy.experimental_local_results(next(iter(dataset)))
    assert [part.numpy().tolist() for part in parts] == [[0, 1], [2, 3]]


def test_make_distributed_dataset_uses_the_current_strategy_by_default():
    dataset = utils.make_distributed_dataset(None, lambda size: tf.data.Dataset.range(size), 3)
    assert [int(value) for value in dataset] == [0, 1, 2]


def test_distributing_an_object_that_is_not_a_dataset_raises():
    with pytest.raises(errors.ConfigValueError, match="is a list"):
        utils.make_distributed_dataset(None, [1, 2, 3])


def test_get_value_converts_tensors_and_returns_other_objects_unchanged():
    assert utils.get_value(tf.constant(2.0)) == 2.0
    assert utils.get_value("text") == "text"


def test_as_tf_variable_accepts_tensorflow_and_keras_variables():
    variable = tf.Variable(1)
    assert utils.as_tf_variable(variable) is variable
    assert isinstance(utils.as_tf_variable(keras.Variable(1, dtype="int64")), tf.Variable)
    with pytest.raises(errors.ConfigValueError, match="is a int"):
        utils.as_tf_variable(1)
