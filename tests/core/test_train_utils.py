import pytest

from official_lite.core import train_utils


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_function"):
        train_utils.no_such_function  # noqa: B018  (the access is the test)
