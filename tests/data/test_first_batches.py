import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.data import arrays, length, position

ROWS = np.arange(40)


def _build(batch_size, input_context=None):
    return arrays.from_arrays(
        ROWS, batch_size, shuffle=True, repeat=True, input_context=input_context
    )


def _read(build, batch=None, num_batches=7, **kwargs):
    if batch is None:
        return [b.numpy().tolist() for b in build(4, **kwargs).take(num_batches)]
    with position.begin_at(batch, seed=3) as begin:
        batches = _read(build, None, num_batches, **kwargs)
    assert begin.is_kept
    return batches


def test_first_batches_of_the_training_come_over_and_over_from_where_it_is():
    all_of_them = _read(_build, batch=0)
    build = length.first_batches(_build, 3, seed=3, repeat=True)
    assert _read(build, batch=0) == (all_of_them[:3] * 3)[:7]
    assert _read(build, batch=5) == (all_of_them[:3] * 4)[5:12]


def test_once_for_an_evaluation_that_knows_no_position():
    build = length.first_batches(_build, 3, seed=3, repeat=False)
    assert _read(build) == _read(_build, batch=0)[:3]


def test_each_replica_has_its_share_of_each_batch():
    context = tf.distribute.InputContext(num_replicas_in_sync=2)
    build = length.first_batches(_build, 3, seed=3, repeat=True)
    shares = _read(build, batch=4, num_batches=2, input_context=context)
    assert shares[0] + shares[1] == _read(build, batch=4, num_batches=1)[0]


def test_source_without_a_position_is_warned_of_where_it_is_evaluated(caplog):
    def build_inputs(batch_size):
        return tf.data.Dataset.from_tensor_slices(ROWS).shuffle(40).batch(batch_size)

    build = length.first_batches(build_inputs, 2, seed=3, repeat=False)
    assert len(_read(build)) == 2
    assert "also between training and evaluation" in caplog.text


def test_anything_but_a_dataset_is_refused():
    build = length.first_batches(lambda: [1, 2], 2, seed=3, repeat=True)
    with pytest.raises(errors.ConfigTypeError, match="returned a list"):
        build()
