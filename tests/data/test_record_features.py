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


def complaint(records, features):
    """What TensorFlow says when it parses them, one by one or as a batch."""
    parse = tf.io.parse_example if isinstance(records, list) else tf.io.parse_single_example
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        parse(records, features)
    text = caught.value.message
    assert input_errors.is_complaint(text)
    return text


@pytest.mark.parametrize("in_batches", [True, False])
def test_record_without_the_feature_is_found_behind_those_with_it(write, in_batches):
    def find(name):
        record = example("w")
        text = complaint([record] if in_batches else record, {name: LABEL})
        return input_errors.find_culprit(text, is_training=True)

    files = [write("a", example("x")), write("b", example("x"), example("y"))]
    input_errors.remember(files, tf.data.TFRecordDataset)
    assert "/b` has a record without" in find("x")
    assert find("z").endswith("`x`.")
    input_errors.remember([write("c", example("x", "y"))], tf.data.TFRecordDataset)
    assert "/a` has a record without" in find("y")


@pytest.mark.parametrize("in_batches", [True, False])
@pytest.mark.parametrize(
    "feature", [tf.io.FixedLenFeature((), tf.float32), tf.io.VarLenFeature(tf.float32)]
)
def test_record_with_a_feature_of_another_type_is_found(write, feature, in_batches):
    builder = tf_example_builder.TfExampleBuilder()
    builder.add_floats_feature("x", 1.0)
    files = [write("a", builder.serialized_example), write("b", example("x"))]
    input_errors.remember(files, tf.data.TFRecordDataset)
    text = complaint([example("x")] if in_batches else example("x"), {"x": feature})
    found = input_errors.find_culprit(text, is_training=True)
    assert found.endswith("/b` has a record whose feature 'x' holds int64; expected float.")


def test_record_with_another_number_of_values_is_found(write):
    builder = tf_example_builder.TfExampleBuilder()
    builder.add_ints_feature("x", [1, 2, 3])
    files = [write("a", builder.serialized_example), write("b", example("x"))]
    input_errors.remember(files, tf.data.TFRecordDataset)
    text = complaint([example("x")], {"x": tf.io.FixedLenFeature((3,), tf.int64)})
    found = input_errors.find_culprit(text, is_training=True)
    assert found.endswith("/b` has a record whose feature 'x' has 1 value; expected the shape [3].")


def test_search_that_takes_too_long_is_given_up(write, monkeypatch):
    monkeypatch.setattr(input_errors, "_MOST_SECONDS_OF_SEARCH", -1.0)
    input_errors.remember([write("a", example("x"), example())], tf.data.TFRecordDataset)
    text = complaint([example()], {"x": LABEL})
    assert input_errors.find_culprit(text, is_training=False) is None
