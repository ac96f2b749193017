import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.core import step_metrics
from tests import rounding


class InPython(keras.metrics.Mean):
    """Counts in Python how often it is reset."""

    resets = 0

    def reset_state(self):
        self.resets += 1
        super().reset_state()


def _metrics() -> list:
    return [
        keras.metrics.Mean("loss"),
        InPython("own"),
        keras.metrics.AUC(name="auc"),
        keras.metrics.SparseCategoricalAccuracy("accuracy"),
    ]


def _update(metrics: list, value: float) -> None:
    metrics[0].update_state(value)
    metrics[1].update_state(2 * value)
    metrics[2].update_state([0, 1, 1], [0.1, 0.4, value])
    metrics[3].update_state([0, 1], [[1.0, 0.0], [value, 1 - value]])


@pytest.mark.sample(1)
@pytest.mark.parametrize("strategy", [tf.distribute.get_strategy, "one", "two"])
def test_values_are_those_of_the_metrics_however_often_it_is_called(strategy, two_replicas) -> None:
    strategies = {"one": lambda: tf.distribute.MirroredStrategy(["CPU:0"]), "two": two_replicas}
    made = strategies.get(strategy, strategy)
    made = made if isinstance(made, tf.distribute.Strategy) else made()
    with made.scope():
        metrics, expected = _metrics(), _metrics()
    with made.scope():
        group = step_metrics.MetricGroup(metrics)
    for call in range(30):
        group.reset()
        for one in expected:
            one.reset_state()
        value = (call % 7) / 7
        made.run(lambda value=value: _update(metrics, value))
        made.run(lambda value=value: _update(expected, value))
        logs = group.results()
        assert list(logs) == ["loss", "own", "auc", "accuracy"]
        for one in expected:
            # An AUC has 200 thresholds.
            rounding.assert_close(logs[one.name], one.result(), roundings=200)
    assert metrics[1].resets == 30


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_metrics_of_several_replicas_are_called_eagerly(num_replicas, two_replicas, monkeypatch):
    def reset_state(metric):
        calls.append(tf.executing_eagerly())
        reset(metric)

    reset, calls = keras.metrics.Mean.reset_state, []
    reset_state.__module__ = reset.__module__
    monkeypatch.setattr(keras.metrics.Mean, "reset_state", reset_state)
    strategy = two_replicas if num_replicas == 2 else tf.distribute.get_strategy()
    with strategy.scope():
        group = step_metrics.MetricGroup([keras.metrics.Mean("loss")])
    for _ in range(30):
        group.reset()
    assert all(calls) == (num_replicas == 2)


def test_reset_after_tracing_resets_everything() -> None:
    metrics = _metrics()
    group = step_metrics.MetricGroup(metrics)
    for _ in range(30):
        group.reset()
    _update(metrics, 0.5)
    group.reset()
    assert all(not np.any(variable.numpy()) for one in metrics for variable in one.variables)


def test_metric_that_no_step_has_updated_is_not_reported(caplog) -> None:
    updated, forgotten = keras.metrics.Mean("updated"), keras.metrics.Mean("forgotten")
    group = step_metrics.MetricGroup([updated, forgotten])
    for _ in range(3):
        group.reset()
        updated.update_state(0.0)
        assert group.results().keys() == {"updated"}
    assert caplog.text.count("No step has updated the metric `forgotten`") == 1
    forgotten.update_state(2.0)
    assert float(group.results()["forgotten"]) == 2.0


class SumAndCount(keras.metrics.Mean):
    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(y_pred - y_true)

    def result(self):
        return {"sum": self.total + 0.0, "count": self.count + 0.0}


def test_dictionary_of_a_compiled_metric_brings_its_own_names_as_in_fit() -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(loss="mse", metrics=[SumAndCount(), "mae"])
    x = np.ones((4, 1), np.float32)
    expected = model.evaluate(x, x, return_dict=True, verbose=0)
    found = step_metrics.MetricGroup(step_metrics.model_metrics(model)).results()
    assert found.keys() == expected.keys() - {"loss"}
    assert float(found["sum"]) == expected["sum"]
