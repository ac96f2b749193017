import pytest

from official_lite.core import tf_example_feature_key


@tf_example_feature_key.dataclass
class ImageKey(tf_example_feature_key.TfExampleFeatureKeyBase):
    encoded: str = "image/encoded"
    height: str = "image/height"


def test_a_prefix_comes_before_every_key():
    key = ImageKey("left")
    assert (key.encoded, key.height) == ("left/image/encoded", "left/image/height")


@pytest.mark.parametrize("prefix", [None, ""])
def test_no_prefix_changes_nothing(prefix):
    assert ImageKey(prefix).encoded == "image/encoded"
