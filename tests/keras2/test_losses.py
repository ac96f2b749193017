import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import keras2
from tests import rounding


class Scaled(keras2.LossFunctionWrapper):
    def __init__(self, scale=2.0, reduction="auto", name="scaled"):
        super().__init__(_scaled, reduction=reduction, name=name, scale=scale)


def _scaled(y_true, y_pred, scale):
    return scale * tf.reduce_mean(tf.square(y_true - y_pred), axis=-1)


@pytest.mark.parametrize(("reduction", "expected"), [("auto", 5.0), ("none", [2.0, 8.0])])
def test_loss_function_wrapper_passes_arguments_to_its_function_and_reduces_losses(
    reduction: str, expected: object
) -> None:
    loss = Scaled(reduction=reduction)
    np.testing.assert_allclose(loss(tf.zeros([2, 3]), [[1.0] * 3, [2.0] * 3]), expected)


def test_loss_is_restored_from_its_config() -> None:
    config = Scaled(scale=3.0).get_config()
    assert Scaled.from_config({k: config[k] for k in ("scale", "reduction", "name")}).fn is _scaled
    assert (config["scale"], config["reduction"]) == (3.0, "sum_over_batch_size")


class OneHot(keras2.Loss):
    def call(self, y_true, y_pred):
        return tf.one_hot(y_true, 2) * y_pred


def test_custom_loss_receives_integer_labels_uncast_and_broadcasts_sample_weights() -> None:
    labels, predictions = tf.constant([[0, 1, 1]]), tf.ones([1, 3, 2])
    weights = tf.constant([[1.0, 2.0, 4.0]])
    losses = OneHot(reduction="none")(labels, predictions, sample_weight=weights)
    np.testing.assert_array_equal(losses, [[[1.0, 0.0], [0.0, 2.0], [0.0, 4.0]]])
    assert float(OneHot(reduction="sum")(labels, predictions, weights)) == 7.0
    assert float(OneHot()(labels, predictions)) == 0.5


class Squares(keras2.Loss):
    def call(self, y_true, y_pred):
        return tf.square(y_true - y_pred)


@pytest.mark.parametrize("weights", [None, [[1.0, 2.0]]])
def test_masked_predictions_are_excluded_from_the_loss(weights) -> None:
    predictions = keras.layers.Masking()(tf.constant([[[1.0, 3.0], [0.0, 0.0]]]))
    labels = tf.fill([1, 2, 2], 2.0)
    expected = keras.losses.MeanSquaredError()(labels, predictions, weights)
    np.testing.assert_allclose(Squares()(labels, predictions, weights), expected)


class Conditional(keras2.Loss):
    def call(self, y_true, y_pred):
        if tf.reduce_max(y_true) > 0:
            return y_pred
        return -y_pred


def _conditional(y_true, y_pred, scale):
    if tf.reduce_max(y_true) > 0:
        return scale * y_pred
    return -y_pred


class ConditionalFunction(keras2.LossFunctionWrapper):
    def __init__(self):
        super().__init__(_conditional, scale=1.0)


@pytest.mark.parametrize("loss_cls", [Conditional, ConditionalFunction])
def test_loss_may_branch_on_a_tensor_in_a_graph(loss_cls: type) -> None:
    loss = loss_cls()
    compute = tf.function(lambda label: loss(label, tf.ones([1, 1])), autograph=False)
    assert float(compute(tf.ones([1, 1]))) == 1.0
    assert float(compute(tf.zeros([1, 1]))) == -1.0


def test_mean_iou_applies_sample_weights_below_one() -> None:
    metric = keras2.MeanIoU(num_classes=2)
    metric.update_state([0, 0, 1, 1], [0, 1, 0, 1], sample_weight=[0.2, 0.3, 0.4, 0.1])
    # The roundings of sums over four weights for each of two classes.
    rounding.assert_close(metric.result(), (0.2 / 0.9 + 0.1 / 0.8) / 2, roundings=4 * 2)


def test_functional_model_reports_losses_and_metrics_added_for_its_tensors() -> None:
    inputs = keras.Input((2,))
    hidden = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")(inputs)
    model = keras.Model(inputs, 2 * hidden)
    keras2.add_loss(model, keras.ops.mean(hidden))
    keras2.add_metric(model, 10 * hidden, name="ten")
    keras2.add_loss(model, [keras.ops.sum(inputs)])
    outer = keras.Sequential([keras.Input((2,)), model])

    for step in (1, 2):
        assert outer(tf.ones([step, 2])).shape == (step, 1)
        assert sorted(map(float, outer.losses)) == [2.0, 2.0 * step]
    [metric] = outer.metrics
    assert (metric.name, float(metric.result())) == ("ten", 20.0)


def test_added_losses_and_metrics_keep_float32_under_mixed_precision() -> None:
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        inputs = keras.Input((1,))
        model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
        keras2.add_loss(model, 1e6 * inputs)
        keras2.add_metric(model, 1e6 * inputs, name="million")
        model(tf.ones([1, 1]))
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert [float(loss[0, 0]) for loss in model.losses] == [1e6]
    assert float(model.metrics[0].result()) == 1e6


def test_model_with_an_added_loss_can_be_cloned() -> None:
    inputs = keras.Input((1,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    keras2.add_loss(model, 2.0 * inputs)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    x = tf.ones([3, 1])
    np.testing.assert_array_equal(clone(x), model(x))
