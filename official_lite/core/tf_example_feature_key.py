"""Names of the features of a `tf.train.Example`, gathered in dataclasses.

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
    """A dataclass that keeps the constructor of `TfExampleFeatureKeyBase`."""
    return dataclasses.dataclass(init=False)(cls)


@dataclass
class TfExampleFeatureKeyBase:
    """Base of feature keys: subclasses list them as fields with defaults."""

    def __init__(self, prefix: str | None = None) -> None:
        """Puts `prefix/` before every key, if there is a prefix."""
        if not prefix:
            return
        for field in dataclasses.fields(self):
            setattr(self, field.name, f"{prefix}/{getattr(self, field.name)}")
