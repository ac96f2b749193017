import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import tf_example_builder
from official_lite.data import input_errors
from official_lite.data.whole_batches import FeatureDecoder

LABEL = tf.io.FixedLenFeature((), tf.int64)


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.setattr(input_errors, "_READ", {})

    def write(name, *records):
        path = str(tmp_path / name)
        with tf.io.TFRecordWriter(path) as writer:
            for record in records:
                writer.write(record)
        return path

    return write


def example(*features):
    builder = tf_example_builder.TfExampleBuilder()
    for name in features:
        builder.add_ints_feature(name, 1)
    return builder.serialized_example


def require(files, decoder_fn):
    input_errors.require(files, tf.data.TFRecordDataset, "*", decoder_fn)


def test_first_record_must_have_what_a_feature_decoder_wants(write):
    files = [write("empty"), write("full", example("label", "x"))]
    require(files, FeatureDecoder({"label": LABEL}).decode)
    answer = "full` has a record without the feature 'lable'. Did you mean `label`?"
    with pytest.raises(errors.DataError, match=answer.replace("?", r"\?")):
        require(files, FeatureDecoder({"lable": LABEL}).decode)


@pytest.mark.parametrize(
    "feature",
    [tf.io.FixedLenFeature((), tf.int64, default_value=0), tf.io.VarLenFeature(tf.int64)],
)
def test_feature_that_may_be_missing_is_not_required(write, feature):
    require([write("full", example("label"))], FeatureDecoder({"other": feature}).decode)


def test_other_decoders_and_other_records_are_not_looked_into(write):
    require([write("full", example("label"))], lambda record: record)
    require([write("other", b"\xff\xff")], FeatureDecoder({"label": LABEL}).decode)
