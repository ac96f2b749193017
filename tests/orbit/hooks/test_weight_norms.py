import keras
import numpy as np
import pytest

from official_lite.orbit import hooks


def _train(trainer, make_controller, hook, **arguments):
    make_controller(trainer, hooks=[hook], steps_per_loop=2, **arguments).train(2)
    return np.linalg.norm([np.linalg.norm(weight) for weight in trainer.model.get_weights()])


def test_only_the_global_weight_norm_is_logged_if_no_pattern_is_set(
    make_keras_trainer, make_controller, recording_writer
):
    trainer = make_keras_trainer()
    norm = _train(trainer, make_controller, hooks.WeightNorms(every_n_steps=2))
    values = recording_writer.records[-1].values
    assert values["weight_norm/global"] == pytest.approx(norm, abs=1e-6)
    assert "weight_norm/net/dense/kernel" not in values


def test_norm_of_each_weight_that_matches_the_pattern_is_logged(
    make_keras_trainer, make_controller, recording_writer
):
    trainer = make_keras_trainer()
    norm = _train(trainer, make_controller, hooks.WeightNorms("kernel$", every_n_steps=2))
    values = recording_writer.records[-1].values
    assert values["weight_norm/net/dense/kernel"] == pytest.approx(norm, abs=1e-6)
    assert "weight_norm/global" not in values


def test_weight_histograms_are_logged_if_histograms_is_true(
    make_keras_trainer, make_controller, recording_writer
):
    hook = hooks.WeightNorms(histograms=True, every_n_steps=2)
    _train(make_keras_trainer(), make_controller, hook)
    assert list(recording_writer.records[-1].histograms) == ["weights/net/dense/kernel"]


def test_weight_norm_includes_weights_of_different_layers_with_equal_paths(
    make_keras_trainer, make_controller, recording_writer
):
    def tower(name):
        inputs = keras.Input((1,))
        return keras.Model(inputs, keras.layers.Dense(1, name="proj")(inputs), name=name)

    inputs = keras.Input((1,))
    trainer = make_keras_trainer()
    trainer.optimizer = keras.optimizers.SGD(0.1)
    trainer.model = keras.Model(inputs, tower("user")(inputs) + tower("item")(inputs))
    observers = [hooks.WeightNorms(every_n_steps=2), hooks.WeightNorms("kernel$", every_n_steps=2)]
    make_controller(trainer, hooks=observers, steps_per_loop=2).train(2)
    values = recording_writer.records[-1].values
    expected = np.linalg.norm([np.linalg.norm(weight) for weight in trainer.model.get_weights()])
    assert values["weight_norm/global"] == pytest.approx(expected, abs=1e-6)
    kernels = [w for w in trainer.model.trainable_weights if w.name == "kernel"]
    for kernel, name in zip(kernels, ("proj/kernel", "proj/kernel_1"), strict=True):
        norm = np.linalg.norm(kernel.numpy())
        assert values[f"weight_norm/{name}"] == pytest.approx(norm, abs=1e-6)
