import inspect

import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.data import arrays, length, position


@pytest.fixture
def dataset():
    return tf.data.Dataset.from_tensor_slices({"x": [[1.0], [2.0]], "y": [1, 2]})


def test_evaluation_over_all_data_refuses_a_repeated_dataset(dataset, two_replicas):
    for good in (dataset, dataset.filter(lambda _: True), [dataset], None):
        length.require_end(good)
    for bad in (
        dataset.repeat(),
        two_replicas.distribute_datasets_from_function(lambda _: dataset.batch(1).repeat()),
    ):
        with pytest.raises(errors.ConfigValueError, match="repeat forever"):
            length.require_end(bad)


def test_only_reading_a_dataset_of_unknown_cardinality_is_timed(dataset):
    filtered = dataset.filter(lambda _: True)
    timed = length.watch_cardinality(lambda: filtered)()
    assert timed.element_spec == filtered.element_spec
    assert [int(e["y"]) for e in timed] == [1, 2]
    assert length.watch_cardinality(lambda: dataset)() is dataset
    assert length.watch_cardinality(lambda: 3)() == 3


def test_each_slow_pass_over_a_dataset_of_unknown_length_logs_a_warning(
    dataset, monkeypatch, caplog
):
    monkeypatch.setattr(length, "_BATCHES_BETWEEN_LOOKS", 1)
    monkeypatch.setattr(length, "_WARNING_SECONDS", 0.0)
    timed = length.watch_cardinality(lambda: dataset.filter(lambda _: True))()
    for warnings in (1, 2):
        assert len(list(timed)) == 2
        assert caplog.text.count("without reaching the end") == warnings


def test_pass_over_data_of_unknown_length_raises_after_the_time_limit(dataset, monkeypatch):
    monkeypatch.setattr(length, "_BATCHES_BETWEEN_LOOKS", 1)
    monkeypatch.setattr(length, "_MAX_SECONDS", 0.0)
    with pytest.raises(tf.errors.OpError, match="without reaching the end"):
        list(length.watch_cardinality(lambda: dataset.filter(lambda _: True))())


def test_repeat_wrapper_repeats_datasets_and_leaves_non_dataset_inputs_unchanged():
    def build_inputs(params, input_context=None):
        return params

    repeated = length.repeat(build_inputs)
    values = repeated(tf.data.Dataset.range(3)).take(5).as_numpy_iterator()
    assert list(values) == [0, 1, 2, 0, 1]
    assert repeated(5) == 5
    # The code that distributes the dataset inspects the argument names of `build_inputs`.
    assert inspect.signature(repeated) == inspect.signature(build_inputs)


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


def test_repeated_overfit_batches_begin_at_the_resume_position():
    all_of_them = _read(_build, batch=0)
    build = length.first_batches(_build, 3, seed=3, repeat=True)
    assert _read(build, batch=0) == (all_of_them[:3] * 3)[:7]
    assert _read(build, batch=5) == (all_of_them[:3] * 4)[5:12]
    once = length.first_batches(_build, 3, seed=3, repeat=False)
    assert _read(once) == all_of_them[:3]


def test_replicas_divide_each_overfit_batch():
    context = tf.distribute.InputContext(num_replicas_in_sync=2)
    build = length.first_batches(_build, 3, seed=3, repeat=True)
    shares = _read(build, batch=4, num_batches=2, input_context=context)
    assert shares[0] + shares[1] == _read(build, batch=4, num_batches=1)[0]


def test_overfit_batches_that_may_differ_between_training_and_evaluation_log_a_warning(caplog):
    def build_inputs(batch_size):
        return tf.data.Dataset.from_tensor_slices(ROWS).shuffle(40).batch(batch_size)

    build = length.first_batches(build_inputs, 2, seed=3, repeat=False)
    assert len(_read(build)) == 2
    assert "and between training and evaluation" in caplog.text


def test_overfit_batches_of_inputs_that_are_not_a_dataset_are_refused():
    build = length.first_batches(lambda: [1, 2], 2, seed=3, repeat=True)
    with pytest.raises(errors.ConfigTypeError, match="list"):
        build()
