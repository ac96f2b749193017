import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import nas
from official_lite.modeling.optimization import ema_optimizer
from official_lite.nas import idle_paths


def _model_and_optimizer(averages=False):
    inputs = keras.Input((2,))
    inner = nas.LayerChoice(
        {"a": keras.layers.Dense(2), "b": keras.layers.Identity()}, label="inner"
    )
    outer = nas.LayerChoice(
        {"x": keras.Sequential([inner]), "y": keras.layers.Dense(2)}, label="outer"
    )
    model = keras.Model(inputs, keras.layers.Dense(1)(outer(inputs)))
    optimizer = keras.optimizers.Adam(0.1)
    if averages:
        optimizer = ema_optimizer.ExponentialMovingAverage(optimizer)
    optimizer.build(model.trainable_variables)
    return model, optimizer


@pytest.mark.parametrize("averages", [False, True])
def test_weights_and_moments_off_the_path_come_back(averages: bool) -> None:
    model, optimizer = _model_and_optimizer(averages)
    idle = idle_paths.IdlePaths(model, optimizer)
    adam = optimizer.inner_optimizer if averages else optimizer
    everything = [*model.trainable_variables, *adam._momentums, *adam._velocities]
    everything += optimizer.averages if averages else []
    before = [v.numpy() for v in everything]

    @tf.function
    def step(outer, inner):
        kept = idle.keep()
        for variable in everything:
            variable.assign(variable + 1.0)
        idle.put_back(kept, {"outer": outer, "inner": inner})

    def moved():
        changed = [
            not np.array_equal(v.numpy(), b) for v, b in zip(everything, before, strict=True)
        ]
        for variable, value in zip(everything, before, strict=True):
            variable.assign(value)
        return changed

    # Weights: inner a (2), outer y (2), the head (2).
    for path, expected in {
        (0, 0): [True, True, False, False, True, True],
        (0, 1): [False, False, False, False, True, True],
        (1, 0): [False, False, True, True, True, True],
    }.items():
        step(*map(tf.constant, path))
        assert moved() == expected * (4 if averages else 3)


def test_weights_with_several_users_come_back_only_if_none_was_used(caplog) -> None:
    shared, outside = keras.layers.Dense(2), keras.layers.Dense(2)
    inputs = keras.Input((2,))
    x = inputs
    for label, layers in {"a": [shared], "b": [shared, outside]}.items():
        options = dict(enumerate([*layers, keras.layers.Identity()]))
        x = nas.LayerChoice({str(k): v for k, v in options.items()}, label=label)(x)
    model = keras.Model(inputs, outside(x))
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
    idle = idle_paths.IdlePaths(model, optimizer)
    (warning,) = caplog.messages
    assert f"`{outside.kernel.path}`, `{outside.bias.path}`" in warning
    for a, b in [(0, 0), (0, 2), (1, 0), (1, 2)]:
        kept = idle.keep()
        before = [layer.kernel.numpy() for layer in (shared, outside)]
        for weight in model.trainable_variables:
            weight.assign(weight + 1.0)
        idle.put_back(kept, {"a": tf.constant(a), "b": tf.constant(b)})
        moved = [
            not np.array_equal(layer.kernel.numpy(), value)
            for layer, value in zip((shared, outside), before, strict=True)
        ]
        assert moved == [0 in (a, b), True], (a, b)
