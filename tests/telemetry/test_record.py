import dataclasses

import numpy as np
import pytest
from absl import logging

from official_lite import telemetry


def test_record_is_frozen():
    record = telemetry.Record(step=1, split="train", values={})
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.step = 2


def test_flat_joins_the_names():
    record = telemetry.Record(step=1, split="train", values={"a": 1, "b": {"c": 2, "d": {"e": 3}}})
    assert record.flat() == {"a": 1, "b/c": 2, "b/d/e": 3}


def test_numbers_are_of_python():
    found = telemetry.numbers(
        {"loss": np.float32(0.5), "count": np.int64(3), "on": True, "set": {"x": np.array([2.0])}}
    )
    assert found == {"loss": 0.5, "count": 3, "on": 1, "set": {"x": 2.0}}
    assert {type(found["loss"]), type(found["count"])} == {float, int}


def test_half_precision_is_a_number_too():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert telemetry.numbers({"loss": ml_dtypes.bfloat16(0.5)}) == {"loss": 0.5}


def test_what_is_no_number_is_left_out_with_one_warning(monkeypatch):
    warnings = []
    monkeypatch.setattr(logging, "warning", lambda text, *args: warnings.append(text % args))
    for _ in range(2):
        assert telemetry.numbers({"an_image": np.zeros([2, 2]), "x": 1}) == {"x": 1}
    assert len(warnings) == 1
    assert "`an_image` has the shape (2, 2)" in warnings[0]


@pytest.mark.parametrize(
    ("step", "total_steps", "rate", "expected"),
    [(40, 100, 2.0, 30.0), (120, 100, 2.0, 0.0), (40, None, 2.0, None), (40, 100, 0.0, None)],
)
def test_time_left_follows_from_the_pace(step, total_steps, rate, expected):
    values = {"steps_per_second": rate}
    record = telemetry.Record(step=step, split="train", values=values, total_steps=total_steps)
    assert record.eta_seconds == expected


def test_without_a_pace_there_is_no_time_left():
    record = telemetry.Record(step=1, split="train", values={}, total_steps=2)
    assert record.eta_seconds is None
