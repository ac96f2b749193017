import keras

from official_lite.porting import keras_changes, symbol_map
from official_lite.porting.symbol_map import Destinations, has_name

NAMES = {
    "official_lite.core.base_task": True,
    "official_lite.core.base_task.Task": True,
    "official_lite.modeling.optimization.OptimizationConfig": True,
    "official_lite.modeling.optimization.NoSuchConfig": False,
    "official_lite.vision.configs": False,
}


def test_has_name_is_true_only_for_modules_and_members_of_official_lite() -> None:
    assert {name: has_name(name) for name in NAMES} == NAMES


def test_names_of_copied_modules_are_translated_to_the_package_of_the_copies() -> None:
    destinations = Destinations("garden", frozenset({"official.vision.ops.box_ops"}))
    assert destinations.translate("official.vision.ops.box_ops.f") == "garden.vision.ops.box_ops.f"
    assert destinations.translate("official.core.base_task") == "official_lite.core.base_task"
    assert destinations.translate("official.nlp.data") is None


MERGED = {
    "modeling.activations.gelu.gelu": "modeling.activations.gelu",
    "modeling.activations.swish.identity": "modeling.activations.identity",
    "modeling.activations.gelu": "modeling.activations.gelu",
    "core.base_task.Task.train_step": "core.base_task.Task.train_step",
}


def test_old_names_of_merged_modules_are_translated_to_the_new_module() -> None:
    expected = {name: f"official_lite.{new}" for name, new in MERGED.items()}
    assert {name: Destinations().translate(f"official.{name}") for name in MERGED} == expected


PRIVATE = {
    "tf_keras.src.layers.core.dense.Dense": "keras.layers.Dense",
    "tf_keras.src.engine.base_layer.Layer": "keras.Layer",
    "tensorflow.python.keras.losses": "keras.losses",
    "tf_keras.src.losses.LossFunctionWrapper": "keras.__internal__.losses.LossFunctionWrapper",
    "tf_keras.src.utils.no_such_name": "keras.src.utils.no_such_name",
}


def test_names_in_private_modules_of_keras_2_become_public_names() -> None:
    assert {name: Destinations().translate(name) for name in PRIVATE} == PRIVATE


GONE = {
    "keras.layers.Dense": None,
    "keras.layers.Dense.from_config": None,
    "keras.Model": None,
    "keras.backend.learning_phase": "keras.backend.learning_phase",
    "keras.layers.experimental.preprocessing.Resizing": "keras.layers.experimental",
    "keras.estimator": "keras.estimator",
}


def test_shortest_prefix_that_is_missing_in_keras_is_reported() -> None:
    assert {name: symbol_map.missing_in_keras(name) for name in GONE} == GONE


def test_no_layer_of_keras_3_is_reported_as_missing() -> None:
    shown = [f"keras.layers.{name}" for name in dir(keras.layers) if not name.startswith("_")]
    assert [name for name in shown if symbol_map.missing_in_keras(name)] == []


def test_every_replacement_name_of_the_port_exists_in_keras() -> None:
    names = {*keras_changes.RENAMED.values(), *keras_changes.BACKEND_TO_OPS.values()}
    ops = {new for new, _ in keras_changes.TF_TO_OPS.values()}
    names |= {f"keras.ops.{op}" for op in ops}
    assert [name for name in sorted(names) if symbol_map.missing_in_keras(name)] == []


def test_names_that_keras_3_still_has_are_not_listed_as_removed() -> None:
    assert [name for name in keras_changes.ADVICE if not symbol_map.missing_in_keras(name)] == []
