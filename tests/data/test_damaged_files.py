import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.data import input_errors


@pytest.fixture
def write(tmp_path):
    def write(name, count=3, length=None, options=None):
        path = tmp_path / name
        with tf.io.TFRecordWriter(str(path), options) as writer:
            for _ in range(count):
                writer.write(b"0123456789")
        path.write_bytes(path.read_bytes()[:length])
        return str(path)

    return write


def test_damage_is_found_in_the_newest_files_first(write):
    for names in (("a", "b"), ("c", "d")):
        files = [write(names[0]), write(names[1], length=40)]
        input_errors.remember(files, tf.data.TFRecordDataset)
        assert f"{files[1]}` can't be read: truncated record at 26" in input_errors.find_damage()


def test_search_that_takes_too_long_is_given_up(write, monkeypatch, caplog):
    monkeypatch.setattr(input_errors, "_MAX_SECONDS", -1.0)
    input_errors.remember([write("a"), write("b", length=40)], tf.data.TFRecordDataset)
    assert input_errors.find_damage() is None
    assert "Stopped searching for the damaged file" in caplog.text


def test_one_record_is_enough(write):
    files = [write("a", count=0), write("b")]
    input_errors.require_records(files, tf.data.TFRecordDataset, "*")
    with pytest.raises(errors.DataError, match=r"0 examples matched '\*': .*all 1 files"):
        input_errors.require_records(files[:1], tf.data.TFRecordDataset, "*")


def test_wrong_compression_is_asked_for(write):
    with pytest.raises(errors.DataError, match="compression"):
        input_errors.require_records([write("a", options="GZIP")], tf.data.TFRecordDataset, "*")
