from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors, terminal
from official_lite.core import config_definitions as cfg
from official_lite.core import input_reader
from official_lite.data import length, position
from official_lite.data.sources import registry
from tests import row_files


@pytest.fixture(params=row_files.NAMES)
def name(request, monkeypatch):
    """Return the name of each source, with a chunk size so small that files have many chunks."""
    monkeypatch.setattr(registry, "CHUNK_BYTES", 1 << 11)
    return request.param


def read(name, path, context=None, stages=None, **fields):
    fields = {"is_training": True, "global_batch_size": 32, "drop_remainder": False, **fields}
    params = cfg.DataConfig(input_path=path, source=name, **fields)
    return input_reader.InputReader(params, **(stages or {})).read(context)


def ids(dataset, count=-1):
    """Return the `id` values of each batch."""
    return [_id(batch).tolist() for batch in dataset.take(count).as_numpy_iterator()]


def _id(batch):
    return batch["id"] if isinstance(batch, dict) else batch.astype(int)


def flat(batches):
    return [one for batch in batches for one in batch]


def test_evaluation_reads_every_row_once_in_file_order(name, tmp_path, caplog):
    path = row_files.write(name, tmp_path)
    dataset = read(name, path, is_training=False)
    assert flat(ids(dataset)) == list(range(1000))
    assert dataset.cardinality() == 32
    assert "never read" not in caplog.text
    terminal._warn.cache_clear()
    assert len(ids(read(name, path, is_training=False, drop_remainder=True))) == 31
    assert "8 of 1000 examples are never read" in caplog.text


def test_each_training_epoch_reads_every_row_once_in_a_new_order(name, tmp_path):
    path = row_files.write(name, tmp_path)
    dataset = read(name, path, seed=1, global_batch_size=50)
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    epochs = np.concatenate(ids(dataset, 60)).reshape(3, 1000)
    assert all(sorted(epoch) == list(range(1000)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_epoch_length_of_a_row_source_is_its_row_count_divided_by_the_batch_size(name, tmp_path):
    dataset = read(name, row_files.write(name, tmp_path), global_batch_size=30)
    assert length.epoch_length(dataset) == Fraction(100, 3)


@pytest.mark.parametrize(("pipelines", "batch"), [(1, 17), (3, 120)])
def test_training_resumed_at_any_batch_reads_the_batches_of_an_uninterrupted_run(
    name, tmp_path, pipelines, batch
):
    path = row_files.write(name, tmp_path)
    context = tf.distribute.InputContext(pipelines, pipelines - 1, pipelines)

    def begin_at(batch, count):
        with position.begin_at(batch, seed=7) as begin:
            dataset = read(name, path, context, global_batch_size=33)
        assert begin.is_kept
        return ids(dataset, count)

    assert begin_at(batch, 20) == begin_at(0, batch + 20)[batch:]


@pytest.mark.parametrize(("chunk_bytes", "is_training"), [(1 << 11, True), (1 << 30, False)])
def test_each_row_is_read_by_exactly_one_pipeline(
    name, tmp_path, monkeypatch, chunk_bytes, is_training
):
    monkeypatch.setattr(registry, "CHUNK_BYTES", chunk_bytes)
    path = row_files.write(name, tmp_path, num_files=1)
    shares = []
    for pipeline in range(4):
        context = tf.distribute.InputContext(4, pipeline, 4)
        dataset = read(name, path, context, is_training=is_training, seed=3)
        shares.append(flat(ids(dataset, 20 if is_training else -1)))
    if is_training:
        # The first 160 rows of each pipeline belong to its first epoch.
        assert len(set(flat(shares))) == 4 * 160
    else:
        assert sorted(flat(shares)) == list(range(1000))


def test_per_example_and_per_batch_functions_yield_the_same_rows(tmp_path):
    path = row_files.write("parquet", tmp_path)

    def double(row):
        return 2 * row["id"]

    def is_even(doubled):
        return doubled % 4 == 0

    one_by_one = {"parser_fn": double, "filter_fn": is_even}
    at_once = {key: input_reader.takes_batches(fn) for key, fn in one_by_one.items()}
    for fields in ({"is_training": False}, {"seed": 1}, {"seed": 1, "cache": True}):
        expected = ids_of(read("parquet", path, stages=one_by_one, **fields))
        assert ids_of(read("parquet", path, stages=at_once, **fields)) == expected
    kept = flat(ids_of(read("parquet", path, stages=at_once, is_training=False)))
    assert kept == list(range(0, 2000, 4))


def ids_of(dataset):
    return [batch.tolist() for batch in dataset.take(50).as_numpy_iterator()]


def test_every_columnar_format_preserves_dtypes_and_strings(tmp_path):
    for name in ("parquet", "arrow", "csv", "huggingface"):
        path = row_files.write(name, tmp_path / name)
        batch = next(read(name, path, is_training=False).as_numpy_iterator())
        assert {key: value.dtype for key, value in batch.items()} == {
            "id": np.int64,
            "x": np.float64,
            "label": np.int64,
            "name": object,
        }
        assert batch["name"][1].decode() == "row 1, é"
        np.testing.assert_allclose(batch["x"], np.arange(32) / 7)


def test_only_selected_columns_are_read_and_an_unknown_column_is_refused(tmp_path):
    path = row_files.write("parquet", tmp_path)
    dataset = read("parquet", path, columns=["label", "x"], is_training=False)
    assert list(dataset.element_spec) == ["label", "x"]
    with pytest.raises(errors.DataError, match=r"no column 'lable'\. Did you mean `label`"):
        read("parquet", path, columns=["lable"])


def test_training_with_fewer_rows_than_pipelines_raises_on_every_pipeline(tmp_path):
    path = row_files.write("parquet", tmp_path, 3, num_files=1)
    for pipeline in range(4):
        with pytest.raises(errors.DataError, match="4 input pipelines"):
            read("parquet", path, tf.distribute.InputContext(4, pipeline, 4))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"skip_bad_records": 1}, "skip_bad_records"),
        ({"enable_tf_data_service": True}, "enable_tf_data_service"),
        ({"source": "parkett"}, "parquet"),
    ],
)
def test_unknown_source_and_fields_that_row_sources_do_not_support_are_refused(
    tmp_path, fields, named
):
    path = row_files.write("parquet", tmp_path)
    params = cfg.DataConfig(**{"input_path": path, "source": "parquet", **fields})
    with pytest.raises(errors.ConfigError, match=named):
        input_reader.InputReader(params)
