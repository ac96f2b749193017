import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.data import file_reading

OPTIONS = file_reading.FileReadingOptions(is_training=True, block_length=1)
# The number of records in each file.
SIZES = (3, 5, 2, 4)


@pytest.fixture
def files(tmp_path):
    numbers = iter(range(sum(SIZES)))
    paths = [str(tmp_path / f"{index}.tfrecord") for index in range(len(SIZES))]
    for path, size in zip(paths, SIZES, strict=True):
        with tf.io.TFRecordWriter(path) as writer:
            for _ in range(size):
                writer.write(str(next(numbers)).encode())
    return paths


def _read(files, count, context=None, buffer=4, dataset_fn=tf.data.TFRecordDataset, **kwargs):
    dataset = file_reading.read_epochs(
        files, dataset_fn, OPTIONS, context, seed=7, shuffle_buffer_size=buffer, **kwargs
    )
    return [int(record) for record in dataset.take(count).as_numpy_iterator()]


def _context(index, pipelines):
    return tf.distribute.InputContext(pipelines, index, pipelines)


def test_each_epoch_has_every_record_once_in_a_new_order(files):
    epochs = np.reshape(_read(files, 5 * 14), [5, 14])
    assert all(sorted(epoch) == list(range(14)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 5


@pytest.mark.parametrize(("num_files", "first"), [(1, 40), (4, 13), (4, 14)])
def test_reading_resumes_after_the_records_already_read(files, num_files, first):
    files = files[:num_files]
    assert _read(files, 9, first_record=first) == _read(files, first + 9)[first:]


def test_position_after_a_billion_epochs_is_found_without_replaying_the_epochs(files):
    rest = _read(files, 14, first_record=14 * 10**9 + 3)
    assert len(set(rest[:11])) == 11
    assert sorted(_read(files, 14, first_record=14 * 10**9)) == list(range(14))


def _noting(read):
    """Return a `dataset_fn` that appends each record to `read`."""

    def note(record):
        read.append(int(record))
        return record

    def dataset_fn(file):
        records = tf.data.TFRecordDataset(file)
        return records.map(lambda record: tf.numpy_function(note, [record], tf.string))

    return dataset_fn


def test_pipeline_resumed_at_the_end_of_an_epoch_reads_only_files_of_the_next_epoch(files):
    context = _context(0, 2)
    whole = _read(files, 25, context, buffer=0)
    file_of = np.repeat(range(len(SIZES)), SIZES)
    # In each epoch, a pipeline reads two of the four files.
    first_share = list(dict.fromkeys(file_of[whole]))[:2]
    end = sum(SIZES[file] for file in first_share)
    read = []
    _read(files, 2, context, buffer=0, dataset_fn=_noting(read), first_record=end)
    next_share = set(list(dict.fromkeys(file_of[whole[end:]]))[:2])
    assert next_share != set(first_share)
    assert set(file_of[read[sum(SIZES) :]]) <= next_share


def test_completed_epochs_are_not_read_again_on_resume(files):
    read = []
    _read(files, 2, buffer=0, dataset_fn=_noting(read), first_record=14)
    # All files are read once to count their records, and at most once in the new epoch.
    assert len(read) <= 14 + 14


def test_record_order_does_not_depend_on_the_global_seed(files):
    orders = []
    for seed in (0, 1, 2):
        tf.random.set_seed(seed)
        orders.append(_read(files, 20))
    assert orders[0] == orders[1] == orders[2]


@pytest.mark.parametrize(("num_files", "pipeline"), [(1, 1), (4, 0)])
def test_each_pipeline_resumes_within_its_own_share_of_the_records(files, num_files, pipeline):
    files, context = files[:num_files], _context(pipeline, 2)
    whole = _read(files, 25, context)
    assert _read(files, 8, context, first_record=17) == whole[17:]
    other = _read(files, 25, _context(1 - pipeline, 2))
    assert whole[:1] != other[:1]


@pytest.mark.parametrize("first", [1, 4, 5, 7])
def test_resume_counts_a_file_that_is_listed_twice_twice(files, first):
    # With fewer files than pipelines, each pipeline takes every n-th record of all files.
    files, context = [files[1], files[1]], _context(1, 3)
    rest = _read(files, 8, context, first_record=first)
    assert rest == _read(files, first + 8, context)[first:]


def test_input_pipelines_together_read_each_record_of_an_epoch_once(files):
    parts = [_read(files, 100, _context(index, 2)) for index in range(2)]
    sizes = [len(set(parts[0][:n])) for n in range(15)]
    first_epoch = max(n for n in range(15) if sizes[n] == n)
    assert sorted(parts[0][:first_epoch] + parts[1][: 14 - first_epoch]) == list(range(14))


def test_dataset_fn_may_read_files_of_any_format(tmp_path):
    path = tmp_path / "numbers.txt"
    path.write_text("0\n1\n2\n")

    def read_lines(file):
        # AutoGraph must convert this conditional expression.
        file = tf.convert_to_tensor(file)
        return tf.data.TextLineDataset(file if tf.size(file) > 0 else tf.constant([""]))

    assert sorted(_read([str(path)], 3, dataset_fn=read_lines)) == [0, 1, 2]


def test_resuming_from_files_without_records_raises(tmp_path):
    path = tmp_path / "empty.tfrecord"
    path.touch()
    with pytest.raises(errors.DataError, match=r"No records.*empty\.tfrecord"):
        _read([str(path)], 1, first_record=1)


def test_error_while_counting_records_names_the_damaged_file(files):
    with open(files[2], "r+b") as file:
        file.truncate(30)
    with pytest.raises(errors.DataError, match=r"2\.tfrecord` can't be read: truncated record"):
        _read(files, 1, first_record=20)
