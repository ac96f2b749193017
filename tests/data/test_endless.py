import inspect

import tensorflow as tf

from official_lite.data import length


def _build(params, input_context=None):
    return tf.data.Dataset.range(params)


def test_dataset_goes_on_from_its_beginning() -> None:
    dataset = length.repeat(_build)(3)
    assert list(dataset.take(5).as_numpy_iterator()) == [0, 1, 2, 0, 1]


def test_signature_stays() -> None:
    assert inspect.signature(length.repeat(_build)) == inspect.signature(_build)


def test_other_results_are_passed_on() -> None:
    assert length.repeat(lambda: 5)() == 5
