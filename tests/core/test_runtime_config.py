import pytest

from official_lite.common import errors
from official_lite.core import config_definitions


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("distribution_strategy", "mirored"),
        ("execution", "xla_lop"),
        ("mixed_precision_dtype", "float15"),
        ("loss_scale", "static"),
        ("seed", -1),
    ],
)
def test_value_that_cannot_work_is_refused(field: str, value: object) -> None:
    config = config_definitions.RuntimeConfig()
    config.override({field: value})
    with pytest.raises(errors.ConfigValueError, match=field):
        config.validate()


def test_misspelt_strategy_is_answered_with_the_nearest() -> None:
    config = config_definitions.RuntimeConfig(distribution_strategy="mirored")
    with pytest.raises(errors.ConfigValueError, match="`mirrored`"):
        config.validate()


def test_experiments_find_it_beside_their_other_configs() -> None:
    assert isinstance(
        config_definitions.ExperimentConfig().runtime, config_definitions.RuntimeConfig
    )
