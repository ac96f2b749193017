import collections

import pytest
import tensorflow as tf

from official_lite.data import file_reading


@pytest.fixture
def files(tmp_path):
    """Write eight files of four lines each; a line is `<file>.<line>`."""
    for file in range(8):
        (tmp_path / f"{file}").write_text("".join(f"{file}.{line}\n" for line in range(4)))
    return [str(tmp_path / f"{file}") for file in range(8)]


def read(files, *, host=0, num_hosts=1, count=None, cycle_length=1, **options):
    """Return the lines that one host reads, file by file so that epochs don't overlap."""
    options = file_reading.FileReadingOptions(cycle_length=cycle_length, **options)
    context = tf.distribute.InputContext(num_hosts, host, num_hosts)
    dataset = file_reading.read_files(files, tf.data.TextLineDataset, options, context)
    return [line.decode() for line in dataset.take(count or 1000).as_numpy_iterator()]


@pytest.mark.parametrize("seed", [None, 3])
def test_hosts_divide_all_files_among_themselves_in_every_epoch(files, seed):
    options = {"num_hosts": 2, "is_training": True, "seed": seed, "count": 32}
    hosts = [read(files, host=host, **options) for host in (0, 1)]
    for epoch in (slice(0, 16), slice(16, 32)):
        assert len(set(hosts[0][epoch] + hosts[1][epoch])) == 32


def test_host_reads_different_files_in_the_second_epoch_than_in_the_first(files):
    lines = read(files, num_hosts=2, is_training=True, seed=3, count=32)
    first, second = ({line.split(".")[0] for line in part} for part in (lines[:16], lines[16:]))
    assert first != second


def test_hosts_divide_records_if_there_are_fewer_files_than_hosts(files):
    hosts = [read(files[:2], host=host, num_hosts=4) for host in range(4)]
    assert sorted(line for lines in hosts for line in lines) == sorted(read(files[:2]))
    assert {len(lines) for lines in hosts} == {2}


def test_every_host_reads_all_records_if_sharding_is_off(files):
    lines = [f"{file}.{line}" for file in range(8) for line in range(4)]
    assert read(files, host=1, num_hosts=2, sharding=False) == read(files) == lines
    assert len(read(files[:1], host=1, num_hosts=2, sharding=False)) == 4


@pytest.mark.parametrize("number", [1, 8])
def test_training_files_repeat_unless_the_dataset_is_cached(files, number):
    lines = read(files[:number], is_training=True, count=64)
    assert set(collections.Counter(lines).values()) == {64 // (4 * number)}
    assert len(read(files[:number], is_training=True, cache=True)) == 4 * number


def test_only_equal_seeds_give_the_same_order_of_records(files):
    orders = [read(files, is_training=True, seed=seed, count=32) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


def test_record_order_without_a_seed_differs_between_reads(files):
    orders = {tuple(read(files, is_training=True, count=32)) for _ in range(4)}
    assert len(orders) > 1


def test_sequential_and_parallel_reading_give_the_same_record_order(tmp_path):
    files = [str(tmp_path / f"{file}") for file in range(5)]
    for file in files:
        with tf.io.TFRecordWriter(file) as writer:
            for line in range(4):
                writer.write(f"{file}.{line}")
    options = file_reading.FileReadingOptions(
        is_training=True, seed=1, cycle_length=3, block_length=2
    )
    in_turn, in_parallel = (
        file_reading.read_files(files, dataset_fn, options)
        for dataset_fn in (tf.data.TFRecordDataset, lambda file: tf.data.TFRecordDataset(file))
    )
    assert "Parallel" not in type(in_turn).__name__
    assert "Parallel" in type(in_parallel).__name__
    read = [list(dataset.take(40).as_numpy_iterator()) for dataset in (in_turn, in_parallel)]
    assert read[0] == read[1]


def test_remote_files_are_read_in_parallel():
    options = file_reading.FileReadingOptions()
    dataset = file_reading.read_files(["gs://a", "gs://b"], tf.data.TFRecordDataset, options)
    assert "Parallel" in type(dataset).__name__
