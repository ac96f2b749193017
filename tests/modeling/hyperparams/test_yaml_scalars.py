import math

import pytest

from official_lite.common import errors
from official_lite.modeling.hyperparams import yaml_io


def resolve(text):
    return yaml_io.resolve_scalar(text, "here")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("null", None),
        ("~", None),
        ("true", True),
        ("False", False),
        ("7", 7),
        ("-0", 0),
        ("+12", 12),
        ("1e-3", 1e-3),
        ("1.5e6", 1.5e6),
        ("1e6", 1e6),
        ("-1.e-3", -1e-3),
        (".5", 0.5),
        ("-.inf", -math.inf),
    ],
)
def test_scalars_with_a_meaning(text, value):
    resolved = resolve(text)
    assert resolved == value
    assert type(resolved) is type(value)
    assert not yaml_io.is_plain_text(text)


@pytest.mark.parametrize(
    "text",
    ["off", "on", "yes", "no", "12:30", "1_000", "2024-01-01", "0x1F", "1.2.3", "None", "e5", "."],
)
def test_everything_else_is_text(text):
    assert resolve(text) == text
    assert yaml_io.is_plain_text(text)


def test_nan_is_a_float():
    assert math.isnan(resolve(".nan"))


@pytest.mark.parametrize("text", ["010", "-007", "00"])
def test_leading_zero_is_refused_with_both_readings(text):
    with pytest.raises(errors.ConfigValueError, match=f"here: {text} could be decimal or octal"):
        resolve(text)


def test_integers_end_at_64_bits():
    assert resolve(str(2**63 - 1)) == 2**63 - 1
    assert resolve(str(-(2**63))) == -(2**63)
    for too_large in (str(2**63), "9" * 23, "9" * 5000):
        with pytest.raises(errors.ConfigValueError, match="does not fit into 64 bits"):
            resolve(too_large)
