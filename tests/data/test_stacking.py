import numpy as np
import pytest
import tensorflow as tf

from official_lite.data import arrays, stacking

ROWS = {"x": np.arange(60, dtype=np.float32).reshape(20, 3), "y": np.arange(20)}


def _read(dataset, count=-1):
    return [batch["y"].tolist() for batch in dataset.take(count).as_numpy_iterator()]


def _unstack(stacks, count=-1):
    return [batch for stack in _read(stacks, count) for batch in stack]


def _from_arrays(**options):
    return arrays.from_arrays(ROWS, 3, shuffle=True, seed=1, drop_remainder=True, **options)


def _from_slices():
    return tf.data.Dataset.from_tensor_slices(ROWS).batch(3, drop_remainder=True)


def _with_options(dataset):
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


@pytest.mark.parametrize(("build", "count"), [(_from_arrays, 4), (_from_slices, 50)])
def test_stacking_keeps_all_batches_in_dataset_order(build, count):
    batches = _read(build())
    stacks = stacking.stack_batches(build(), count)
    assert len(batches) == 6
    assert _unstack(stacks) == batches
    assert len(_read(stacks)) == -(-6 // count)


def test_stacking_a_repeated_dataset_yields_only_full_stacks():
    dataset = _from_arrays(repeat=True)
    stacks = stacking.stack_batches(dataset, 4)
    assert stacks.element_spec["x"].shape == (4, 3, 3)
    assert _unstack(stacks, 10) == _read(dataset, 40)
    sliced = stacking.stack_batches(_from_slices().repeat(), 4)
    assert sliced.element_spec["x"].shape == (4, 3, 3)
    assert _unstack(sliced, 3) == 2 * _read(_from_slices())


@pytest.mark.parametrize(
    "change",
    [
        lambda dataset: _with_options(dataset.repeat().prefetch(2)),
        lambda dataset: dataset.skip(3),
        lambda dataset: dataset.map(lambda batch: {"y": -batch["y"]}),
    ],
)
def test_dataset_transformations_are_preserved_when_batches_are_stacked(change):
    dataset = change(_from_arrays(repeat=True))
    stacks = stacking.stack_batches(dataset, 4)
    assert _unstack(stacks, 5) == _read(dataset, 20)
    assert stacks.options().autotune.enabled == dataset.options().autotune.enabled


def test_rows_of_all_stacked_batches_are_gathered_in_one_call():
    gathers = []

    class Rows:
        def __len__(self):
            return 2**19

        def __getitem__(self, indices):
            gathers.append(len(indices))
            return {"y": indices}

    dataset = arrays.from_arrays(Rows(), 2**17, shuffle=False, repeat=True).prefetch(1)
    gathers.clear()
    assert len(next(iter(stacking.stack_batches(dataset, 3)))["y"]) == 3
    assert set(gathers) == {3 * 2**17}


def test_batches_that_are_single_tensors_can_be_stacked():
    batches = tf.data.Dataset.range(9).batch(3, drop_remainder=True)
    stacks = stacking.stack_batches(batches, 2).as_numpy_iterator()
    assert [stack.tolist() for stack in stacks] == [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8]]]
