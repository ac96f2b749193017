import keras
import tensorflow as tf

from official_lite import keras2


def test_functional_model_reports_losses_and_metrics_of_its_tensors() -> None:
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
