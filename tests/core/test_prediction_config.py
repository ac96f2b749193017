import pytest

from official_lite.common import errors
from official_lite.core import config_definitions as cfg


@pytest.mark.parametrize(
    ("field", "value"),
    [("format", "csv"), ("checkpoint", "first"), ("rows_per_shard", 0), ("output_dir", "")],
)
def test_a_wrong_value_is_refused(field: str, value) -> None:
    with pytest.raises(errors.ConfigValueError, match=field):
        cfg.ExperimentConfig(prediction={field: value}).validate()


def test_an_unknown_format_is_answered_with_the_nearest() -> None:
    with pytest.raises(errors.ConfigValueError, match="`parquet`"):
        cfg.PredictionConfig(format="parqet").validate()
