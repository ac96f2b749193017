import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.core import step_metrics
from official_lite.data import tf_data_options
from official_lite.orbit import utils
from tests import commands, rounding


class InPython(keras.metrics.Mean):
    """A metric that counts its resets in Python."""

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


def test_metrics_updated_as_a_group_report_the_same_values_as_separate_metrics() -> None:
    made = tf.distribute.MirroredStrategy(["CPU:0"])
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
def test_metrics_are_reset_eagerly_only_with_several_replicas(
    num_replicas, two_replicas, monkeypatch
):
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


def test_every_metric_is_reset_after_the_step_was_traced() -> None:
    metrics = _metrics()
    group = step_metrics.MetricGroup(metrics)
    for _ in range(30):
        group.reset()
    _update(metrics, 0.5)
    group.reset()
    assert all(not np.any(variable.numpy()) for one in metrics for variable in one.variables)


def test_metric_that_no_step_has_updated_is_omitted_with_one_warning(caplog) -> None:
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


def test_compiled_metric_with_a_dict_result_is_reported_under_its_keys_as_in_keras() -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(loss="mse", metrics=[SumAndCount(), "mae"])
    x = np.ones((4, 1), np.float32)
    expected = model.evaluate(x, x, return_dict=True, verbose=0)
    found = step_metrics.MetricGroup(step_metrics.model_metrics(model)).results()
    assert found.keys() == expected.keys() - {"loss"}
    assert float(found["sum"]) == expected["sum"]


def test_batch_mean_gives_each_batch_a_weight_proportional_to_its_size() -> None:
    metric = step_metrics.BatchMean()
    metric.update_state(1.0, batch={"x": tf.zeros((3, 2))})
    metric.update_state(5.0, batch={"x": tf.zeros((1, 2))})
    assert float(metric.result()) == pytest.approx(2.0)


def test_batch_mean_ignores_the_value_of_an_empty_batch() -> None:
    metric = step_metrics.BatchMean()
    metric.update_state(1.0, batch=tf.zeros((3,)))
    metric.update_state(float("nan"), batch=tf.zeros((0,)))
    assert float(metric.result()) == 1.0


def test_batch_mean_gives_equal_weight_to_batches_without_a_batch_axis() -> None:
    metric = step_metrics.BatchMean()
    metric.update_state(1.0, batch=tf.constant(7.0))
    metric.update_state(2.0, batch=())
    assert float(metric.result()) == pytest.approx(1.5)


@pytest.mark.parametrize("weights", [None, [1.0, 3.0]])
def test_batch_mean_averages_vectors_and_weighted_values_like_keras(
    weights: list[float] | None,
) -> None:
    ours, theirs = step_metrics.BatchMean(), keras.metrics.Mean()
    for metric in (ours, theirs):
        metric.update_state([1.0, 2.0], weights)
        metric.update_state(6.0, 2.0)
    assert float(ours.result()) == float(theirs.result())


@pytest.mark.parametrize(("replicas", "compiled"), [(1, False), (2, True)])
def test_batch_mean_weights_a_value_by_the_size_of_the_fetched_batch(
    two_replicas: tf.distribute.Strategy, replicas: int, compiled: bool
) -> None:
    strategy = two_replicas if replicas == 2 else tf.distribute.get_strategy()
    values = np.arange(11, dtype=np.float32)
    dataset = tf.data.Dataset.from_tensor_slices({"x": values}).batch(4)
    with strategy.scope():
        metric = step_metrics.BatchMean()

    def step(iterator):
        def replica_step(batch):
            metric.update_state(tf.reduce_mean(batch["x"]))

        strategy.run(replica_step, args=(next(iterator),))

    step = utils.guard_step(step)
    dataset = tf_data_options.without_idle_autotuner(dataset)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    utils.create_loop_fn(tf.function(step) if compiled else step)(iterator, -1)
    assert float(metric.result()) == pytest.approx(values.mean())


SCRIPT = """
import keras
from official_lite.utils.testing import mock_task

assert not hasattr(keras.metrics.Metric, "reset_states")
mock_task.MockTask()
metric = keras.metrics.Mean()
metric.update_state(3.0)
metric.reset_states()
assert float(metric.result()) == 0.0
"""


@pytest.mark.slow
def test_reset_states_is_added_to_keras_metrics_by_the_first_task_not_by_import(
    tmp_path: pathlib.Path,
) -> None:
    """Importing the package must not change a Keras class."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = commands.run([script])
    assert done.returncode == 0, done.stderr


def test_reset_metric_calls_reset_states_if_the_class_defines_it() -> None:
    class Old(keras.metrics.Mean):
        def reset_states(self):
            self.reset_state()
            self.was_reset = True

    step_metrics.install()
    metric = Old()
    step_metrics.reset_metric(metric)
    assert metric.was_reset
    plain = keras.metrics.Mean()
    plain.update_state(1.0)
    step_metrics.reset_metric(plain)
    assert float(plain.count) == 0
