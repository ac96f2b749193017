"""Bad values of `task.adapters` are errors before anything is built."""

from typing import Any

import pytest

from official_lite.adapters import configs
from official_lite.common import errors


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"include": []}, r"`include` is empty"),
        ({"rank": 0}, r"`rank` is 0"),
        ({"alpha": -1.0}, r"`alpha` is -1"),
        ({"trainable": ["("]}, r"not a valid regular expression"),
    ],
)
def test_bad_value_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.ConfigValueError, match=message):
        configs.AdaptersConfig(**fields).validate()
