import numpy as np
import pytest
import tensorflow as tf

from official_lite.data import example_stream, whole_batches


def _stream(dataset):
    return example_stream.ExampleStream(dataset, chunk_size=4, num_parallel_calls=2)


def _values(dataset):
    return [element.tolist() for element in dataset.as_numpy_iterator()]


def _double(x):
    return 2 * x


def _is_odd_half(x):
    return x // 2 % 2 == 1


@pytest.mark.parametrize("mark", [lambda fn: fn, whole_batches.takes_batches])
def test_functions_of_examples_and_of_batches_do_the_same(mark):
    stream = _stream(tf.data.Dataset.range(10)).map(mark(_double)).filter(mark(_is_odd_half))
    assert _values(stream.singly()) == [2, 6, 10, 14, 18]
    assert _values(stream.batch(2, drop_remainder=True)) == [[2, 6], [10, 14]]
    assert _values(stream.batch(2, drop_remainder=False)) == [[2, 6], [10, 14], [18]]
    assert stream.batch(2, drop_remainder=True).element_spec.shape == (2,)


def test_no_function_is_no_stage():
    stream = _stream(tf.data.Dataset.range(3))
    assert stream.map(None) is stream
    assert stream.filter(None) is stream


def test_chunks_stay_together_until_examples_are_wanted():
    seen = []

    @whole_batches.takes_batches
    def note(x):
        tf.py_function(lambda x: seen.append(x.numpy().tolist()), [x], [])
        return x

    stream = (
        _stream(tf.data.Dataset.range(6))
        .map(note)
        .filter(whole_batches.takes_batches(lambda x: x % 2 == 0))
    )
    assert _values(stream.map(note).batch(6, drop_remainder=False)) == [[0, 2, 4]]
    assert sorted(seen) == [[0, 1, 2, 3], [0, 2], [4], [4, 5]]


def test_a_dataset_function_is_given_examples():
    stream = _stream(tf.data.Dataset.range(6)).map(whole_batches.takes_batches(_double))
    assert _values(stream.apply(lambda dataset: dataset.skip(1)).singly()) == [2, 4, 6, 8, 10]


@pytest.mark.parametrize("mark", [lambda fn: fn, whole_batches.takes_batches])
def test_examples_of_any_nest_are_filtered(mark):
    numbers = np.arange(6)
    pairs = tf.data.Dataset.from_tensor_slices((numbers, {"x": np.stack([numbers] * 2, 1)}))
    stream = _stream(pairs).filter(mark(lambda number, _: number > 3))
    (batch,) = stream.batch(6, drop_remainder=False).as_numpy_iterator()
    assert batch[0].tolist() == [4, 5]
    assert batch[1]["x"].tolist() == [[4, 4], [5, 5]]


def test_data_without_end_is_known_to_have_none():
    stream = _stream(tf.data.Dataset.range(5).repeat()).map(whole_batches.takes_batches(_double))
    batches = stream.batch(3, drop_remainder=True)
    assert batches.cardinality() == tf.data.INFINITE_CARDINALITY
    assert _values(batches.take(3)) == [[0, 2, 4], [6, 8, 0], [2, 4, 6]]
