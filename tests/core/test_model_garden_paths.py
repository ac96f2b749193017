"""Tests of small modules at their Model Garden paths."""

import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors, plugins
from official_lite.core import (
    file_writers,
    registry,
    test_utils,
    tf_example_builder,
    tf_example_feature_key,
    train_utils,
)


def test_name_registered_through_the_model_garden_registry_is_found_by_plugins_lookup():
    collection = {}
    registry.register(collection, "group/name")(dict)
    assert plugins.lookup(collection, "group/name") is dict
    assert registry.lookup(collection, "group/name") is dict
    assert registry.names(collection) == ["group/name"]


def test_model_garden_fake_models_return_four_outputs_per_example():
    inputs = tf.ones([3, 5])
    for model in (test_utils.FakeKerasModel(), test_utils.FakeModule(5)):
        outputs = model(inputs)
        assert outputs.shape == (3, 4)
        assert len(model.trainable_variables) == 4


def feature(example, key):
    return example.features.feature[key]


def test_example_builder_adds_bytes_ints_floats_and_a_feature_dict():
    example = (
        tf_example_builder.TfExampleBuilder()
        .add_bytes_feature("text", "ä")
        .add_ints_feature("ints", (1, 2))
        .add_floats_feature("floats", np.array([0.5]))
        .add_feature_dict({"raw": tf.train.Feature()})
        .example
    )
    assert feature(example, "text").bytes_list.value == ["ä".encode()]
    assert feature(example, "ints").int64_list.value == [1, 2]
    assert feature(example, "floats").float_list.value == [0.5]
    assert set(example.features.feature) == {"text", "ints", "floats", "raw"}


@pytest.mark.parametrize("value", ["a", [b"a"], np.array([b"a"])])
def test_bytes_feature_accepts_text_bytes_and_arrays(value):
    example = tf_example_builder.TfExampleBuilder().add_bytes_feature("x", value).example
    assert feature(example, "x").bytes_list.value == [b"a"]


def test_example_is_not_changed_by_later_calls_of_its_builder():
    builder = tf_example_builder.TfExampleBuilder().add_ints_feature("x", 1)
    example = builder.example
    builder.add_ints_feature("x", 2)
    assert feature(example, "x").int64_list.value == [1]
    builder.set(example).add_ints_feature("x", 3)
    assert feature(example, "x").int64_list.value == [1]


def test_serialized_example_parses_back_to_the_example_that_was_built():
    builder = tf_example_builder.TfExampleBuilder().add_ints_feature("x", 1)
    assert tf.train.Example.FromString(builder.serialized_example) == builder.example
    assert builder.reset().serialized_example == b""


@tf_example_feature_key.dataclass
class ImageKey(tf_example_feature_key.TfExampleFeatureKeyBase):
    encoded: str = "image/encoded"
    height: str = "image/height"


def test_prefix_is_added_to_every_feature_key():
    key = ImageKey("left")
    assert (key.encoded, key.height) == ("left/image/encoded", "left/image/height")
    assert ImageKey().encoded == "image/encoded"


def test_records_written_with_compression_are_gzip_files(tmp_path):
    path = tmp_path / "data"
    file_writers.write_small_dataset([tf.train.Example()], str(path), "tfrecord_compressed")
    assert path.read_bytes()[:2] == b"\x1f\x8b"


@pytest.mark.parametrize(("file_type", "message"), [("parquet", "file_type"), ("riegeli", "Rieg")])
def test_file_type_that_cannot_be_written_raises_and_leaves_no_file(tmp_path, file_type, message):
    path = tmp_path / "data"
    with pytest.raises(errors.ConfigValueError, match=message):
        file_writers.write_small_dataset([tf.train.Example()], str(path), file_type)
    assert not path.exists()


def test_unknown_name_in_train_utils_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_function"):
        train_utils.no_such_function  # noqa: B018  (the access is the test)
