import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import file_writers


def test_compressed_files_are_gzip(tmp_path):
    path = tmp_path / "data"
    file_writers.write_small_dataset([tf.train.Example()], str(path), "tfrecord_compressed")
    assert path.read_bytes()[:2] == b"\x1f\x8b"


@pytest.mark.parametrize(("file_type", "message"), [("parquet", "file_type"), ("riegeli", "Rieg")])
def test_a_type_that_cannot_be_written_leaves_no_file(tmp_path, file_type, message):
    path = tmp_path / "data"
    with pytest.raises(errors.ConfigValueError, match=message):
        file_writers.write_small_dataset([tf.train.Example()], str(path), file_type)
    assert not path.exists()
