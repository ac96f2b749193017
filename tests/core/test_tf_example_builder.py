import numpy as np
import pytest
import tensorflow as tf

from official_lite.core import tf_example_builder


def feature(example, key):
    return example.features.feature[key]


def test_features_of_every_kind_are_added():
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


@pytest.mark.parametrize("value", ["a", b"a", ["a"], [b"a"], ("a",), np.array([b"a"])])
def test_one_value_or_several_as_text_or_bytes(value):
    example = tf_example_builder.TfExampleBuilder().add_bytes_feature("x", value).example
    assert feature(example, "x").bytes_list.value == [b"a"]


def test_an_example_is_a_copy():
    builder = tf_example_builder.TfExampleBuilder().add_ints_feature("x", 1)
    example = builder.example
    builder.add_ints_feature("x", 2)
    assert feature(example, "x").int64_list.value == [1]
    builder.set(example).add_ints_feature("x", 3)
    assert feature(example, "x").int64_list.value == [1]


def test_serialized_is_what_a_reader_parses():
    builder = tf_example_builder.TfExampleBuilder().add_ints_feature("x", 1)
    assert tf.train.Example.FromString(builder.serialized_example) == builder.example
    assert builder.reset().serialized_example == b""
