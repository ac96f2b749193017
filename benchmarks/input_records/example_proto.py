"""A parser of `tf.train.Example` without TensorFlow, as users of Grain and PyTorch need it."""

from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from benchmarks.input_records import records

__all__ = ["parse"]

_LISTS = {"BytesList": "bytes", "FloatList": "float", "Int64List": "int64"}


def _create_example_class() -> Any:
    """Create the message class from a short description of TensorFlow's fields."""
    file = descriptor_pb2.FileDescriptorProto(
        name="example.proto", package="benchmarks", syntax="proto3"
    )
    for name, kind in _LISTS.items():
        values = file.message_type.add(name=name).field.add(name="value", number=1)
        values.label = values.LABEL_REPEATED
        values.type = getattr(values, f"TYPE_{kind.upper()}")
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, kind) in enumerate(_LISTS.items(), 1):
        _add_message_field(feature, f"{kind}_list", number, name).oneof_index = 0
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    _add_message_field(entry, "value", 2, "Feature")
    _add_message_field(features, "feature", 1, "Features.FeatureEntry").label = 3
    _add_message_field(file.message_type.add(name="Example"), "features", 1, "Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("benchmarks.Example"))


def _add_message_field(message: Any, name: str, number: int, of: str) -> Any:
    return message.field.add(
        name=name, number=number, type=11, label=1, type_name=f".benchmarks.{of}"
    )


_Example = _create_example_class()


def parse(record: bytes) -> records.Columns:
    """Return the features of a serialized example."""
    feature = _Example.FromString(record).features.feature
    return {
        "label": np.array(feature["label"].int64_list.value, np.int64),
        "dense": np.array(feature["dense"].float_list.value, np.float32),
        "categorical": np.array(feature["categorical"].int64_list.value, np.int64),
    }
