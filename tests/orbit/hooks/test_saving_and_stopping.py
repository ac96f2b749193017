import math

import numpy as np
import pytest

from official_lite.common import errors
from official_lite.orbit.hooks.saving_and_stopping import WatchedMetric


@pytest.mark.parametrize("name", ["squad/f1", "squad|f1"])
def test_nested_metric_is_found_by_its_path(name):
    logs = {"squad": {"f1": np.float32(0.5)}}
    assert WatchedMetric(name, "maximize").value(logs) == 0.5


def test_error_for_an_unknown_watched_metric_suggests_the_nearest_name():
    with pytest.raises(errors.UnknownKeyError, match="Did you mean `accuracy`"):
        WatchedMetric("acuracy", "maximize").value({"accuracy": 1.0})


def test_watched_metric_that_is_not_a_single_number_raises():
    with pytest.raises(errors.ConfigTypeError, match=r"\(2,\)"):
        WatchedMetric("table", "maximize").value({"table": np.zeros(2)})


def test_metric_improvement_must_exceed_the_minimum_difference():
    metric = WatchedMetric("loss", "minimize")
    assert not metric.is_better(1.5, than=2.0, by_more_than=0.5)
    assert metric.is_better(1.4, than=2.0, by_more_than=0.5)


@pytest.mark.parametrize(
    ("words", "lower_is_better"),
    [(("minimize", "min", "lower"), True), (("maximize", "max", "higher"), False)],
)
def test_is_better_follows_the_metric_direction_and_rejects_non_finite_values(
    words, lower_is_better
):
    for direction in words:
        metric = WatchedMetric("loss", direction)
        assert metric.is_better(1.0, than=2.0) == lower_is_better
        assert metric.is_better(2.0, than=1.0) != lower_is_better
        assert not metric.is_better(2.0, than=2.0)
        # A non-finite value is never better.
        assert not any(metric.is_better(v, than=None) for v in (math.nan, math.inf, -math.inf))


def test_unknown_metric_direction_raises_and_the_error_suggests_the_nearest_one():
    with pytest.raises(errors.ConfigValueError, match="Did you mean `maximize`"):
        WatchedMetric("accuracy", "maximise")


@pytest.mark.parametrize(
    ("names", "direction"),
    [
        ("loss validation_loss val_loss mae mean_absolute_error kl_divergence wer", "minimize"),
        (
            "false_positives brier_score negative_log_likelihood accuracy/loss perplexity",
            "minimize",
        ),
        ("accuracy val_acc auc auc_1 AUC f1_score r2_score mAP AP50 mean_io_u hits10", "maximize"),
        ("true_negatives top_5_accuracy digits|accuracy loss/precision psnr", "maximize"),
    ],
)
def test_metric_direction_is_inferred_from_the_metric_name(names, direction):
    for name in names.split():
        for default in ("minimize", "maximize"):
            found = WatchedMetric(name, default=default)
            assert found.maximizes == (direction == "maximize"), name


@pytest.mark.parametrize("default", ["minimize", "maximize"])
def test_metric_name_that_implies_no_direction_uses_the_default_and_warns_once(default, caplog):
    for _ in range(2):
        assert WatchedMetric(f"quantity_{default}", default=default).maximizes == (
            default == "maximize"
        )
    assert caplog.text.count("does not show whether higher or lower values are better") == 1
