import json
import math

import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.orbit import actions


def test_new_best_metric_is_the_highest_value_unless_higher_is_better_is_false():
    highest = actions.NewBestMetric("x")
    lowest = actions.NewBestMetric("x", higher_is_better=False)
    values = [{"x": value} for value in (1.0, 0.0, 2.0, 2.0)]
    assert [highest(output) for output in values] == [True, False, True, False]
    assert [lowest(output) for output in values] == [True, True, False, False]


def test_new_best_metric_commit_stores_the_best_value_but_its_test_method_does_not():
    best = actions.NewBestMetric(lambda output: tf.constant(output["x"]))
    assert [best.test({"x": 1.0}) for _ in range(2)] == [True, True]
    assert [best.commit({"x": 1.0}) for _ in range(2)] == [True, False]
    assert best.best_value == 1.0


def test_new_best_metric_is_never_a_non_finite_value():
    for higher_is_better in (True, False):
        best = actions.NewBestMetric("x", higher_is_better)
        assert not any(best.commit({"x": value}) for value in (math.nan, math.inf, -math.inf))
        assert best.commit({"x": 0.0})


def test_new_best_metric_restores_the_best_value_from_its_file_after_a_restart(tmp_path):
    filename = str(tmp_path / "new" / "best.json")
    actions.NewBestMetric("x", filename=filename).commit({"x": 5.0})
    restarted = actions.NewBestMetric("x", filename=filename)
    assert restarted.best_value == 5.0
    assert not restarted.test({"x": 4.0})


def test_new_best_metric_without_write_metric_writes_no_file(tmp_path):
    filename = tmp_path / "best.json"
    reader = actions.NewBestMetric("x", filename=str(filename), write_metric=False)
    assert reader.commit({"x": 1.0})
    assert not filename.exists()


def test_error_for_an_unknown_metric_suggests_the_nearest_name():
    with pytest.raises(errors.UnknownKeyError, match="Did you mean `accuracy`"):
        actions.NewBestMetric("acuracy").test({"accuracy": 1.0})


def test_json_persisted_value_replaces_its_file_and_leaves_no_temporary_file(tmp_path):
    path = tmp_path / "value.json"
    value = actions.JSONPersistedValue({"a": 1}, str(path))
    value.write({"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
    assert [file.name for file in tmp_path.iterdir()] == ["value.json"]
    assert actions.JSONPersistedValue("unused", str(path)).read() == {"a": 2}


def test_json_persisted_value_writes_a_bare_file_name_to_the_working_directory(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    actions.JSONPersistedValue(1, "value.json")
    assert (tmp_path / "value.json").read_text() == "1"
