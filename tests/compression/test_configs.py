import pytest

from official_lite.common import errors
from official_lite.compression import configs
from official_lite.core import config_definitions as cfg


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_bits_weight": 4}, "`num_bits_weight` is 4; expected 8"),
        ({"ranges": "moving"}, "moving_average"),
        ({"moving_average_decay": 1.0}, "expected a number from 0"),
        ({"ranges": "fixed", "fixed_range": [1.0, 2.0]}, "the smallest activation, at most 0"),
        ({"exclude": ["("]}, "not a valid regular expression"),
    ],
)
def test_invalid_value_is_refused(values, message) -> None:
    with pytest.raises(errors.ConfigValueError, match=message):
        configs.QuantizationConfig(values).validate()


def test_field_of_the_model_garden_is_answered_with_ours() -> None:
    quantization = {"pretrained_original_checkpoint": "/tmp/x"}
    with pytest.raises(errors.ConfigError, match=r"set `task\.init_checkpoint`"):
        cfg.TaskConfig(compression={"quantization": quantization})
