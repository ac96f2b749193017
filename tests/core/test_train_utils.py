import pytest

from official_lite.core import train_utils


@pytest.mark.parametrize("name", train_utils.__all__)
def test_every_name_leads_somewhere(name: str) -> None:
    assert getattr(train_utils, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_function"):
        train_utils.no_such_function  # noqa: B018  (the access is the test)
