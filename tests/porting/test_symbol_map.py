import keras
import pytest

from official_lite.porting import symbol_map
from official_lite.porting.symbol_map import Destinations, has_name


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("official_lite.core.base_task", True),
        ("official_lite.core.base_task.Task", True),
        ("official_lite.modeling.optimization.OptimizationConfig", True),
        ("official_lite.modeling.optimization.NoSuchConfig", False),
        ("official_lite.vision.configs", False),
    ],
)
def test_modules_and_names_of_packages_are_known(name: str, there: bool) -> None:
    assert has_name(name) is there


def test_what_is_brought_along_is_found_there() -> None:
    destinations = Destinations("garden", frozenset({"official.vision.ops.box_ops"}))
    assert destinations.translate("official.vision.ops.box_ops.f") == "garden.vision.ops.box_ops.f"
    assert destinations.translate("official.core.base_task") == "official_lite.core.base_task"
    assert destinations.translate("official.nlp.data") is None


@pytest.mark.parametrize(
    ("name", "new"),
    [
        ("modeling.activations.gelu.gelu", "modeling.activations.gelu"),
        ("modeling.activations.swish.identity", "modeling.activations.identity"),
        ("modeling.activations.gelu", "modeling.activations.gelu"),
        ("core.base_task.Task.train_step", "core.base_task.Task.train_step"),
    ],
)
def test_members_of_modules_that_are_one_module_here_are_found_in_it(name: str, new: str) -> None:
    assert Destinations().translate(f"official.{name}") == f"official_lite.{new}"


@pytest.mark.parametrize(
    ("name", "public"),
    [
        ("tf_keras.src.layers.core.dense.Dense", "keras.layers.Dense"),
        ("tf_keras.src.engine.base_layer.Layer", "keras.Layer"),
        ("tensorflow.python.keras.losses", "keras.losses"),
        (
            "tf_keras.src.losses.LossFunctionWrapper",
            "keras.__internal__.losses.LossFunctionWrapper",
        ),
        ("tf_keras.src.utils.no_such_name", "keras.src.utils.no_such_name"),
    ],
)
def test_names_in_private_modules_of_keras_2_become_public(name: str, public: str) -> None:
    assert Destinations().translate(name) == public


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("keras.layers.Dense", None),
        ("keras.layers.Dense.from_config", None),
        ("keras.Model", None),
        ("keras.backend.learning_phase", "keras.backend.learning_phase"),
        ("keras.layers.experimental.preprocessing.Resizing", "keras.layers.experimental"),
        ("keras.estimator", "keras.estimator"),
    ],
)
def test_what_keras_lacks(name: str, gone: str | None) -> None:
    assert symbol_map.missing_in_keras(name) == gone


def test_all_that_keras_shows_is_there() -> None:
    shown = [f"keras.layers.{name}" for name in dir(keras.layers) if not name.startswith("_")]
    assert [name for name in shown if symbol_map.missing_in_keras(name)] == []
