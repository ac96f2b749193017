from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import base_task, model_building, train_lib
from official_lite.core import config_definitions as cfg


def _model() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((2,)),
            keras.layers.Dense(3, name="stem"),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Dense(1, name="head"),
        ],
        name="net",
    )


class NetTask(base_task.Task):
    def build_model(self) -> keras.Model:
        return _model()

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        x = tf.random.stateless_normal((16, 2), (1, 2)) + 3.0
        return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(4)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        return tf.reduce_mean(tf.square(model_outputs - labels))


def _values(model: keras.Model) -> dict[str, np.ndarray]:
    return {weight.path: weight.numpy() for weight in model.weights}


def _changed(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> set[str]:
    return {p.removeprefix("net/") for p in before if not np.array_equal(before[p], after[p])}


def _train(experiment, model_dir, steps: int, freeze: list[str], strategy: Any = None) -> Any:
    params = experiment(trainer={"train_steps": steps, "freeze": freeze})
    task = NetTask(params.task)
    model, _ = train_lib.run_experiment(strategy, task, "train", params, str(model_dir))
    return model


STEM_AND_NORM = ["^net/stem/", "norm"]
HEAD = {"head/kernel", "head/bias"}


def test_frozen_weights_stay_bit_identical_while_other_weights_train(experiment, tmp_path) -> None:
    start = _values(_train(experiment, tmp_path, 1, STEM_AND_NORM))
    # The second run resumes at the step where the first run ended.
    end = _values(_train(experiment, tmp_path, 8, STEM_AND_NORM))
    assert _changed(start, end) == HEAD
    np.testing.assert_array_equal(end["net/norm/moving_mean"], np.zeros(3))


def test_single_weight_can_be_frozen_in_a_layer_that_trains(experiment, tmp_path) -> None:
    start = _values(_train(experiment, tmp_path, 1, ["stem/kernel", "norm/(gamma|beta)"]))
    end = _values(_train(experiment, tmp_path, 4, ["stem/kernel", "norm/(gamma|beta)"]))
    assert _changed(start, end) == {
        *HEAD,
        "stem/bias",
        "norm/moving_mean",
        "norm/moving_variance",
    }


class _EqualLayersTask(NetTask):
    """A task with a model of equal layers, which only the numbers in their names tell apart."""

    def build_model(self) -> keras.Model:
        return keras.Sequential([keras.Input((2,)), *(keras.layers.Dense(2) for _ in range(3))])

    @classmethod
    def create_optimizer(cls, *args: Any, **kwargs: Any) -> keras.optimizers.Optimizer:
        return keras.optimizers.Adam()


def test_resume_that_freezes_another_layer_of_equal_shape_raises_checkpoint_error(
    experiment, tmp_path
) -> None:
    def train(steps: int, freeze: list[str]) -> None:
        params = experiment(trainer={"train_steps": steps, "freeze": freeze})
        task = _EqualLayersTask(params.task)
        train_lib.run_experiment(
            None, task, "train", params, str(tmp_path), allow_config_change=True
        )

    train(1, ["dense_1/"])
    train(2, ["dense_1/"])
    with pytest.raises(errors.CheckpointError, match=r"weights\[4\].* for `model.weights\[2\]"):
        train(3, ["dense_2/"])


@pytest.mark.parametrize("optimizer", [keras.optimizers.SGD, keras.optimizers.Adam])
def test_evaluation_with_an_unfrozen_config_restores_every_layer_of_a_partly_frozen_model(
    experiment, tmp_path, optimizer
) -> None:
    class Task(_EqualLayersTask):
        def build_model(self) -> keras.Model:
            widths = (2, 2, 2, 3)
            return keras.Sequential([keras.Input((2,)), *map(keras.layers.Dense, widths)])

        @classmethod
        def create_optimizer(cls, *args: Any, **kwargs: Any) -> keras.optimizers.Optimizer:
            return optimizer()

    def run(mode: str, freeze: list[str]) -> list[np.ndarray]:
        params = experiment(trainer={"train_steps": 1, "freeze": freeze})
        model, _ = train_lib.run_experiment(None, Task(params.task), mode, params, str(tmp_path))
        return model.get_weights()

    trained = run("train", ["dense_1/"])
    keras.utils.set_random_seed(7)
    for weight, other in zip(run("eval", []), trained, strict=True):
        np.testing.assert_array_equal(weight, other)


def test_resume_of_plain_sgd_with_another_frozen_layer_restores_every_layer(
    experiment, tmp_path
) -> None:
    class Task(_EqualLayersTask):
        @classmethod
        def create_optimizer(cls, *args: Any, **kwargs: Any) -> keras.optimizers.Optimizer:
            return keras.optimizers.SGD()

    def train(freeze: list[str]) -> list[np.ndarray]:
        params = experiment(trainer={"train_steps": 1, "freeze": freeze})
        model, _ = train_lib.run_experiment(
            None, Task(params.task), "train", params, str(tmp_path), allow_config_change=True
        )
        return model.get_weights()

    trained = train(["dense_1/"])
    keras.utils.set_random_seed(7)
    # The second run resumes at its last step, so it only restores.
    for weight, other in zip(train(["dense_2/"]), trained, strict=True):
        np.testing.assert_array_equal(weight, other)


def test_layer_is_not_trainable_if_freeze_patterns_match_all_its_weights() -> None:
    model = _model()
    model_building.freeze(model, ["norm/gamma", "norm/beta", "norm/moving"])
    assert [layer.trainable for layer in model.layers] == [True, False, True]


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["stme/kernel"], "'stme/kernel', which matches no variable.*`net/stem/kernel`"),
        (["norm/moving_mean"], "'net/norm/moving_mean'.*whole layer instead: 'net/norm/'"),
        ([""], "nothing is left to train"),
    ],
)
def test_invalid_freeze_pattern_raises(patterns: list[str], message: str) -> None:
    with pytest.raises(errors.ConfigValueError, match=message):
        model_building.freeze(_model(), patterns)


def test_freeze_pattern_may_match_part_of_a_layer_that_the_task_has_frozen() -> None:
    model = _model()
    model.get_layer("norm").trainable = False
    model_building.freeze(model, ["norm/moving_mean"])
    assert len(model.trainable_variables) == 4


def test_freeze_pattern_for_a_model_that_is_not_a_keras_model_raises() -> None:
    model_building.freeze(tf.Module(), cfg.TrainerConfig().freeze)
    with pytest.raises(errors.ConfigValueError, match="Keras models"):
        model_building.freeze(tf.Module(), ["a"])


# Keras triggers this warning when it quantizes.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("quantized", [False, True])
def test_freeze_pattern_may_match_the_kernel_of_a_layer_with_lora(
    experiment, tmp_path, quantized: bool
) -> None:
    class LoraTask(NetTask):
        def build_model(self) -> keras.Model:
            model = _model()
            if quantized:
                model.get_layer("stem").quantize("int8")
            model.get_layer("stem").enable_lora(2)
            return model

    def train(steps: int) -> dict[str, np.ndarray]:
        params = experiment(
            trainer={"train_steps": steps, "freeze": [r"stem/(kernel|bias)", "norm", "head"]}
        )
        task = LoraTask(params.task)
        model, _ = train_lib.run_experiment(None, task, "train", params, str(tmp_path))
        return _values(model)

    assert _changed(train(1), train(3)) == {"stem/lora_kernel_a", "stem/lora_kernel_b"}
