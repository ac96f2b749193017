import collections

import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors, terminal
from official_lite.data import arrays, position

NUMBERS = np.arange(10)


class Squares:
    """A row source that computes its rows instead of storing an array."""

    def __len__(self):
        return 10

    def __getitem__(self, indices):
        return {"number": indices, "powers": (np.stack([indices, indices**2], axis=1),)}


def _read(dataset, count=-1):
    return [batch.tolist() for batch in dataset.take(count).as_numpy_iterator()]


@pytest.mark.parametrize(
    ("array", "kinds"),
    [
        (np.array([[1.0, "Ulm"], [2.0, "Bonn"]], object), "float, str"),
        ([[1.0, 2.0], [3.0]], "float"),
    ],
)
def test_array_of_mixed_types_or_ragged_rows_raises_with_the_types_of_its_first_row(array, kinds):
    with pytest.raises(errors.DataError, match=rf"types {kinds}\. Give all rows the same shape"):
        arrays.from_arrays(array, 2, shuffle=False)


@pytest.mark.parametrize("drops", [False, True])
def test_last_partial_batch_is_dropped_only_if_drop_remainder_is_true(drops):
    dataset = arrays.from_arrays(NUMBERS, 4, shuffle=False, drop_remainder=drops)
    expected = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]][: 2 if drops else 3]
    assert _read(dataset) == expected
    assert len(dataset) == len(expected)
    assert dataset.element_spec.shape == (4 if drops else None,)


@pytest.mark.parametrize(
    ("options", "is_told"),
    [
        ({}, True),
        ({"drop_remainder": False}, False),
        ({"repeat": True}, False),
        ({"shuffle": True}, False),
    ],
    ids=["once", "complete", "repeated", "shuffled"],
)
def test_examples_that_are_never_read_are_counted_in_a_warning(options, is_told, caplog):
    terminal._warn.cache_clear()
    options = {"shuffle": False, "drop_remainder": True, **options}
    arrays.from_arrays(NUMBERS, 7, **options)
    assert ("3 of 10 examples are never read" in caplog.text) == is_told


@pytest.mark.parametrize("size", [3, 25])
def test_each_epoch_has_every_example_once_in_a_new_order(size):
    dataset = arrays.from_arrays(NUMBERS, size, shuffle=True, seed=1, repeat=True)
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    epochs = np.concatenate(_read(dataset, 50))[:50].reshape(5, 10)
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 5


def test_only_equal_seeds_give_the_same_order_of_examples():
    def read(seed):
        return _read(arrays.from_arrays(NUMBERS, 4, shuffle=True, seed=seed, repeat=True), 20)

    assert read(1) == read(1)
    assert read(1) != read(2)
    assert read(None) != read(None)
    repeated = arrays.from_arrays(NUMBERS, 10, shuffle=True, seed=1).repeat(5)
    assert len({tuple(epoch) for epoch in _read(repeated)}) == 5


@pytest.mark.parametrize("repeat", [True, False])
def test_restored_iterator_continues_with_the_next_batch(tmp_path, repeat):
    def iterate():
        return iter(arrays.from_arrays(np.arange(1000), 7, shuffle=True, seed=1, repeat=repeat))

    iterator = iterate()
    for _ in range(70):
        next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "position"))
    wanted = [next(iterator).numpy().tolist() for _ in range(70)]
    restored = iterate()
    tf.train.Checkpoint(iterator=restored).read(path).assert_consumed()
    assert [next(restored).numpy().tolist() for _ in range(70)] == wanted


def test_rows_of_nested_arrays_are_shuffled_together():
    point = collections.namedtuple("point", "x y")
    nest = {"p": point(NUMBERS, [str(n) for n in NUMBERS]), "q": (np.eye(10),)}
    for batch in arrays.from_arrays(nest, 3, shuffle=True).as_numpy_iterator():
        assert [int(y) for y in batch["p"].y] == batch["p"].x.tolist()
        assert batch["q"][0].argmax(axis=1).tolist() == batch["p"].x.tolist()


def test_rows_are_divided_among_pipelines_and_batches_among_replicas():
    contexts = [tf.distribute.InputContext(3, i, 2) for i in range(3)]
    read = [
        _read(arrays.from_arrays(NUMBERS, 4, shuffle=False, input_context=context))
        for context in contexts
    ]
    assert read == [[[0, 3], [6, 9]], [[1, 4], [7]], [[2, 5], [8]]]


@pytest.mark.parametrize(("pipelines", "begin"), [(2, 0), (3, 7)])
def test_global_batches_are_the_same_for_any_number_of_pipelines(pipelines, begin):
    def read(context):
        with position.begin_at(begin, seed=5):
            dataset = arrays.from_arrays(
                NUMBERS, 6, shuffle=True, repeat=True, input_context=context
            )
        return _read(dataset.take(1000))

    whole = np.reshape(read(None), [1000, pipelines, -1])
    for pipeline in range(pipelines):
        part = np.reshape(read(_context(pipeline, pipelines)), [1000, -1])
        np.testing.assert_array_equal(part, whole[:, pipeline])


@pytest.mark.parametrize("begin", [1, 8])
def test_resumed_training_continues_with_the_next_batch_in_any_epoch(begin):
    def read(begin, count):
        with position.begin_at(begin, seed=5):
            dataset = arrays.from_arrays(NUMBERS, 4, shuffle=True, repeat=True)
        return _read(dataset, count)

    assert read(begin, 6) == read(0, begin + 6)[begin:]


def test_data_seed_takes_precedence_over_run_seed():
    def read(seed, seed_of_run):
        with position.begin_at(0, seed=seed_of_run):
            dataset = arrays.from_arrays(NUMBERS, 4, shuffle=True, seed=seed, repeat=True)
        return _read(dataset, 5)

    assert read(7, seed_of_run=1) == read(7, seed_of_run=2)
    assert read(None, seed_of_run=1) != read(None, seed_of_run=2)


def test_parameter_server_workers_read_batches_of_disjoint_rows():
    with position.begin_at(0, seed=5):
        parts = [
            arrays.from_arrays(
                NUMBERS, 5, shuffle=True, repeat=True, input_context=_context(index, 2, replicas=1)
            )
            for index in range(2)
        ]
    assert sorted(row for part in parts for row in _read(part.take(1))[0]) == list(range(10))


def test_memory_mapped_array_is_read_lazily(tmp_path):
    np.save(tmp_path / "rows.npy", np.arange(20, dtype=np.float32).reshape(10, 2))
    rows = np.load(tmp_path / "rows.npy", mmap_mode="r+")
    dataset = arrays.from_arrays((rows, NUMBERS), 4, shuffle=True, repeat=True)
    rows[:, 1] = -1
    for values, numbers in dataset.take(5).as_numpy_iterator():
        assert values.tolist() == [[2 * n, -1] for n in numbers]


def test_object_with_len_and_getitem_is_accepted_as_an_array():
    dataset = arrays.from_arrays(Squares(), 4, shuffle=True, drop_remainder=True)
    assert dataset.element_spec["powers"][0].shape == (4, 2)
    for batch in dataset.as_numpy_iterator():
        assert batch["powers"][0].tolist() == [[n, n**2] for n in batch["number"]]


def test_object_with_an_array_method_is_converted_to_an_array():
    class Column:
        """A column like that of pandas, whose `__getitem__` takes labels instead of positions."""

        def __len__(self):
            return 10

        def __array__(self, dtype=None, copy=None):
            return NUMBERS

        def __getitem__(self, labels):
            raise AssertionError

    assert _read(arrays.from_arrays(Column(), 10, shuffle=False)) == [NUMBERS.tolist()]


def test_batches_of_large_rows_are_gathered_one_at_a_time():
    sizes = []

    class Rows(Squares):
        def __getitem__(self, indices):
            sizes.append(len(indices))
            return np.zeros([len(indices), 2**18])

    next(iter(arrays.from_arrays(Rows(), 4, shuffle=False)))
    assert max(sizes) == 4


@pytest.mark.parametrize(
    ("nest", "message"),
    [((NUMBERS, NUMBERS[:9]), r"\[10, 9\]"), (NUMBERS[:0], "The dataset is empty"), ((), r"\[\]")],
)
def test_empty_arrays_and_arrays_of_different_lengths_are_refused(nest, message):
    with pytest.raises(errors.DataError, match=message):
        arrays.from_arrays(nest, 4, shuffle=False)


def _context(pipeline, pipelines, replicas=None):
    return tf.distribute.InputContext(pipelines, pipeline, replicas or pipelines)


@pytest.mark.parametrize(("pipelines", "shuffle"), [(3, True), (12, False)])
def test_all_workers_together_evaluate_each_row_once(pipelines, shuffle):
    shares = [
        _read(
            arrays.from_arrays(
                NUMBERS, 2 * pipelines, shuffle=shuffle, input_context=_context(i, pipelines)
            )
        )
        for i in range(pipelines)
    ]
    assert sorted(row for share in shares for batch in share for row in batch) == [*range(10)]


@pytest.mark.parametrize("size", [6, 24])
def test_two_replicas_evaluate_each_row_once(size, two_replicas):
    dataset = two_replicas.distribute_datasets_from_function(
        lambda context: arrays.from_arrays(NUMBERS, size, shuffle=False, input_context=context)
    )
    values = [v for batch in dataset for part in batch.values for v in part.numpy()]
    assert sorted(values) == list(range(10))


def test_training_with_fewer_rows_than_workers_raises_on_every_worker():
    message = "12 input pipelines needs at least one row, but there are only 10"
    for pipeline in range(12):
        with pytest.raises(errors.DataError, match=message):
            arrays.from_arrays(
                NUMBERS, 24, shuffle=True, repeat=True, input_context=_context(pipeline, 12)
            )


def test_batch_size_above_the_number_of_rows_logs_a_warning_in_training(caplog):
    arrays.from_arrays(NUMBERS, 25, shuffle=False)
    assert not caplog.records
    for repeat in (False, True):
        caplog.clear()
        with position.begin_at(0, seed=1):
            arrays.from_arrays(NUMBERS, 25, shuffle=False, repeat=repeat)
        (record,) = caplog.records
        assert "25 examples, but there are only 10" in record.message


@pytest.mark.parametrize("drops", [False, True])
def test_error_for_a_batch_size_of_zero_names_global_batch_size(drops):
    with pytest.raises(errors.ConfigValueError, match="`global_batch_size` is 0; expected 1"):
        arrays.from_arrays(NUMBERS, 0, shuffle=False, drop_remainder=drops)


def test_drop_remainder_raises_for_too_few_rows_unless_the_dataset_repeats():
    with pytest.raises(errors.DataError, match="25 examples can't be filled from 10 rows"):
        arrays.from_arrays(NUMBERS, 25, shuffle=False, drop_remainder=True)
    dataset = arrays.from_arrays(NUMBERS, 25, shuffle=False, drop_remainder=True, repeat=True)
    assert dataset.element_spec.shape == (25,)
