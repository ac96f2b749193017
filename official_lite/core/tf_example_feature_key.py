"""Dataclasses that hold the feature names of a `tf.train.Example`.

::

    @tf_example_feature_key.dataclass
    class ImageFeatureKey(tf_example_feature_key.TfExampleFeatureKeyBase):
        encoded: str = "image/encoded"

    ImageFeatureKey("left").encoded  # "left/image/encoded"
"""

import dataclasses
import typing

T = typing.TypeVar("T")


@typing.dataclass_transform()
def dataclass(cls: type[T]) -> type[T]:
    """Turn a class into a dataclass that keeps the constructor of `TfExampleFeatureKeyBase`."""
    return dataclasses.dataclass(init=False)(cls)


@dataclass
class TfExampleFeatureKeyBase:
    """Base class of feature keys; subclasses declare them as fields with default values.

    Args:
        prefix: If given, every key is prefixed with `prefix/`.
    """

    def __init__(self, prefix: str | None = None) -> None:
        if not prefix:
            return
        for field in dataclasses.fields(self):
            setattr(self, field.name, f"{prefix}/{getattr(self, field.name)}")
