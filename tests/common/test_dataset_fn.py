import pytest
import tensorflow as tf

from official_lite.common import dataset_fn, errors
from official_lite.core import file_writers


@pytest.mark.parametrize(
    "file_type", ["tfrecord", "TFRecords", "tfrecord_compressed", "tfrecords_gzip"]
)
def test_written_records_are_read_back_for_each_tfrecord_file_type(tmp_path, file_type):
    path = str(tmp_path / "data")
    file_writers.write_small_dataset([tf.train.Example()], path, file_type)
    records = list(dataset_fn.pick_dataset_fn(file_type)(path).as_numpy_iterator())
    assert records == [tf.train.Example().SerializeToString()]


def test_error_for_an_unknown_file_type_suggests_the_nearest_one():
    with pytest.raises(errors.ConfigValueError, match="Did you mean `tfrecord"):
        dataset_fn.pick_dataset_fn("tfrecodr")


def test_riegeli_files_raise_an_error_that_names_the_required_package():
    with pytest.raises(errors.ConfigValueError, match="requires Riegeli"):
        dataset_fn.pick_dataset_fn("riegeli")
