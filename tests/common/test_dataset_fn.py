import pytest
import tensorflow as tf

from official_lite.common import dataset_fn, errors
from official_lite.core import file_writers


@pytest.mark.parametrize(
    "file_type", ["tfrecord", "TFRecords", "tfrecord_compressed", "tfrecords_gzip"]
)
def test_written_records_are_read(tmp_path, file_type):
    path = str(tmp_path / "data")
    file_writers.write_small_dataset([tf.train.Example()], path, file_type)
    records = list(dataset_fn.pick_dataset_fn(file_type)(path).as_numpy_iterator())
    assert records == [tf.train.Example().SerializeToString()]


def test_unknown_file_type_is_refused_with_the_nearest():
    with pytest.raises(errors.ConfigValueError, match="Did you mean `tfrecord"):
        dataset_fn.pick_dataset_fn("tfrecodr")


def test_missing_riegeli_is_named():
    with pytest.raises(errors.ConfigValueError, match="requires Riegeli"):
        dataset_fn.pick_dataset_fn("riegeli")
