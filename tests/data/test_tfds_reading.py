import sys
import zlib

import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.data import file_reading
from tests import tfds_stand_in


@pytest.fixture
def tfds(monkeypatch):
    return tfds_stand_in.install(monkeypatch, tf.data.Dataset.range(10))


def read(*, host=0, num_hosts=1, is_training=False, sharding=True, **kwargs):
    options = file_reading.FileReadingOptions(is_training=is_training, sharding=sharding, seed=3)
    context = tf.distribute.InputContext(num_hosts, host, num_hosts)
    dataset = file_reading.read_tfds("numbers", "train", options, context, **kwargs)
    return list(dataset.as_numpy_iterator())


def test_tfds_divides_files_among_hosts_if_each_host_gets_at_least_one_file(tfds):
    assert len(read(num_hosts=2)) == 10
    assert tfds.loaded["read_config"].input_context.num_input_pipelines == 2


def test_hosts_divide_records_if_there_are_fewer_files_than_hosts(tfds):
    assert [read(host=host, num_hosts=3) for host in (0, 2)] == [[0, 3, 6, 9], [2, 5, 8]]
    assert tfds.loaded["read_config"].input_context is None


def test_hosts_that_divide_records_shuffle_files_with_the_same_seed(tfds):
    for host in (0, 2):
        options = file_reading.FileReadingOptions(is_training=True)
        context = tf.distribute.InputContext(3, host, 3)
        file_reading.read_tfds("numbers", "train", options, context)
        seed = tfds.loaded["read_config"].shuffle_seed
        assert seed == zlib.crc32(b"numbers train")


def test_every_host_reads_all_records_if_sharding_is_off(tfds):
    assert len(read(host=1, num_hosts=3, sharding=False)) == 10
    assert tfds.loaded["read_config"].input_context is None


def test_reading_options_are_passed_to_tfds_load(tfds):
    read(is_training=True, data_dir="here", as_supervised=True, skip_decoding_feature="image, mask")
    config = tfds.loaded["read_config"]
    assert (config.repeat_filenames, config.shuffle_seed) == (True, 3)
    assert tfds.loaded["shuffle_files"]
    assert tfds.loaded["data_dir"] == "here"
    assert tfds.loaded["as_supervised"]
    assert tfds.loaded["decoders"] == {"image": "skipped", "mask": "skipped"}


def test_missing_tfds_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(errors.ConfigValueError, match=r"pip install 'official-lite\[tfds\]'"):
        read()
