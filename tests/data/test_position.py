import numpy as np
import pytest
import tensorflow as tf

from official_lite.data import arrays, position, stacking

ROWS = np.arange(10)


def _read(dataset, count):
    return [batch.tolist() for batch in dataset.take(count).as_numpy_iterator()]


def _context(pipeline, pipelines, replicas):
    return tf.distribute.InputContext(
        num_input_pipelines=pipelines, input_pipeline_id=pipeline, num_replicas_in_sync=replicas
    )


def _training_data(batch, input_context=None):
    with position.begin_at(batch=batch, seed=7) as begin:
        dataset = arrays.from_arrays(
            ROWS, 4, shuffle=True, repeat=True, input_context=input_context
        )
    assert begin.is_kept
    return dataset


def test_stacked_batches_start_at_the_resume_position():
    stacks = stacking.stack_batches(_training_data(3), 5)
    assert next(stacks.as_numpy_iterator()).tolist() == _read(_training_data(0), 8)[3:]


@pytest.mark.parametrize("pipelines", [1, 2])
def test_each_replica_starts_at_the_resume_position(pipelines):
    context = _context(pipelines - 1, pipelines, replicas=2)
    per_step = 2 // pipelines
    unbroken = _read(_training_data(0, context), 10 * per_step)
    assert _read(_training_data(3, context), 7 * per_step) == unbroken[3 * per_step :]


def test_dataset_that_does_not_repeat_ignores_the_resume_position():
    with position.begin_at(batch=2, seed=7) as begin:
        dataset = arrays.from_arrays(ROWS, 4, shuffle=False)
    assert _read(dataset, 1) == [[0, 1, 2, 3]]
    assert not begin.is_kept


def test_enumerate_batches_counts_from_the_resume_position():
    context = _context(0, 1, replicas=2)
    batches = tf.data.Dataset.range(3)
    with position.begin_at(batch=5, seed=7):
        numbers = [int(number) for number, _ in position.enumerate_batches(batches, context)]
    assert numbers == [10, 11, 12]
    assert [int(number) for number, _ in position.enumerate_batches(batches)] == [0, 1, 2]


def test_input_pipeline_counts_as_resumable_once_it_has_read_the_resume_position():
    assert position.take() is None
    with position.begin_at(batch=5, seed=7) as begin:
        assert not begin.is_kept
        taken = position.take()
        assert (taken.batches_of(), taken.seed) == (5, 7)
    assert begin.is_kept
