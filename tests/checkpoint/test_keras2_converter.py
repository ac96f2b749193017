"""Tests of the Keras 2 converter on checkpoints with the keys that tf_keras 2.20 writes."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.checkpoint import keras2_converter
from official_lite.checkpoint.keras2_converter import restore_keras2_checkpoint
from official_lite.checkpoint.saved_graph import SavedGraph, Tensor
from official_lite.common import errors
from tests import rounding

SaveKeras2 = Callable[..., str]
SavedLayer = Callable[..., dict[str, tf.Variable]]


# The longest chain of rounded additions: 32 GRU steps, each of which sums 6 inputs and 3 states.
ROUNDINGS = 32 * (6 + 3)


def convnet(k: ModuleType = keras) -> Any:
    inputs = k.Input((8, 8, 3))
    x = k.layers.Conv2D(4, 3)(inputs)
    x = k.layers.BatchNormalization()(x)
    x = k.layers.Activation("relu")(x)
    x = k.layers.Dropout(0.5)(x)
    return k.Model(inputs, k.layers.Dense(2)(k.layers.Flatten()(x)))


def nested(k: ModuleType = keras) -> Any:
    inputs = k.Input((8, 8, 3))
    features = convnet(k)(inputs)
    layers = [k.layers.Dense(5), k.layers.Dense(5), k.layers.Dense(5)]
    return k.Model(inputs, k.Sequential(layers)(features))


def subclassed(k: ModuleType = keras) -> Any:
    class Block(k.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self._inner = k.layers.Dense(6, activation="relu")
            self.norm = k.layers.LayerNormalization()

        def build(self, shape: tuple[int, ...]) -> None:
            self.w = self.add_weight(name="scale", shape=(6,), initializer="ones")
            super().build(shape)

        def call(self, x: Any) -> Any:
            return self.norm(self._inner(x) * self.w)

    class Net(k.Model):
        def __init__(self) -> None:
            super().__init__()
            self._attention = k.layers.MultiHeadAttention(num_heads=2, key_dim=3)
            self.blocks = [Block() for _ in range(2)]
            self.rnn = k.layers.Bidirectional(k.layers.GRU(3))
            self.heads = {"a": k.layers.Dense(2), "b": k.layers.Dense(2)}

        def call(self, images: Any) -> Any:
            x = tf.reshape(images, (-1, 32, 6))
            x = self._attention(x, x)
            for block in self.blocks:
                x = block(x)
            return self.heads["a"](self.rnn(x)) - self.heads["b"](self.rnn(x))

    return Net()


def images() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(4, 8, 8, 3)).astype("float32")


def with_random_weights(model: Any) -> Any:
    """Build the model, assign random weights and moving statistics, and return it."""
    model(images())
    rng = np.random.default_rng(1)
    for variable in model.weights:
        variable.assign(rng.uniform(0.1, 0.5, size=tuple(variable.shape)))
    return model


def saved_convnet(model: Any, saved_layer: SavedLayer) -> dict[str, Any]:
    layers = [layer for layer in model.layers if layer.weights]
    return {f"layer_with_weights-{i}": saved_layer(layer) for i, layer in enumerate(layers)}


def saved_nested(model: Any, saved_layer: SavedLayer) -> dict[str, Any]:
    body, head = (saved_convnet(part, saved_layer) for part in model.layers[1:])
    return {"layer_with_weights-0": body, "layer_with_weights-1": head}


def saved_subclassed(model: Any, saved_layer: SavedLayer) -> dict[str, Any]:
    attention, rnn = model._attention, model.rnn
    names = ("_query_dense", "_key_dense", "_value_dense", "_output_dense")
    return {
        "_attention": {name: saved_layer(getattr(attention, name)) for name in names},
        "blocks": {str(i): saved_block(b, saved_layer) for i, b in enumerate(model.blocks)},
        "rnn": {
            "forward_layer": {"cell": saved_layer(rnn.forward_layer.cell)},
            "backward_layer": {"cell": saved_layer(rnn.backward_layer.cell)},
        },
        "heads": {name: saved_layer(layer) for name, layer in model.heads.items()},
    }


def saved_block(block: Any, saved_layer: SavedLayer) -> dict[str, Any]:
    scale = tf.Variable(block.w, name="net/block/scale")
    inner, norm = saved_layer(block._inner), saved_layer(block.norm)
    return {"_inner": inner, "norm": norm, "scale": scale, "w": scale}


MODELS = [(convnet, saved_convnet), (nested, saved_nested), (subclassed, saved_subclassed)]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("build", "saved"), MODELS, ids=["convnet", "nested", "subclassed"])
def test_model_restored_from_a_keras2_checkpoint_predicts_like_the_saved_model(
    build: Callable[[], Any],
    saved: Callable[..., dict[str, Any]],
    save_keras2: SaveKeras2,
    saved_layer: SavedLayer,
) -> None:
    source, target = with_random_weights(build()), build()
    target(images())
    report = restore_keras2_checkpoint(target, save_keras2(model=saved(source, saved_layer)))
    assert report.is_complete
    assert len(report.matched) == len(target.weights)
    rounding.assert_close(target(images()), source(images()), roundings=ROUNDINGS)


def test_keras_2_checkpoints_written_for_these_tests_have_the_keys_that_tf_keras_writes(
    save_keras2: SaveKeras2, saved_layer: SavedLayer
) -> None:
    source = with_random_weights(nested())
    path = save_keras2(model=saved_nested(source, saved_layer))
    keys = {
        key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE") for key, _ in tf.train.list_variables(path)
    }
    body, head = "model/layer_with_weights-0", "model/layer_with_weights-1"
    assert keys - {"_CHECKPOINTABLE_OBJECT_GRAPH", "save_counter"} == {
        *(f"{body}/layer_with_weights-0/{name}" for name in ("kernel", "bias")),
        *(f"{body}/layer_with_weights-1/{name}" for name in ("gamma", "beta")),
        *(f"{body}/layer_with_weights-1/moving_{name}" for name in ("mean", "variance")),
        *(f"{body}/layer_with_weights-2/{name}" for name in ("kernel", "bias")),
        *(f"{head}/layer_with_weights-{i}/{n}" for i in range(3) for n in ("kernel", "bias")),
    }


def test_root_argument_restores_part_of_a_checkpoint_into_a_submodel(
    save_keras2: SaveKeras2, saved_layer: SavedLayer
) -> None:
    source, target = with_random_weights(convnet()), nested()
    body = saved_convnet(source, saved_layer)
    path = save_keras2(model={"_body": body}, backbone=body, global_step=tf.Variable(7))
    for root in ("backbone", "model/_body"):
        restore_keras2_checkpoint(target.layers[1], path, root=root)
        rounding.assert_close(target.layers[1](images()), source(images()), roundings=ROUNDINGS)


def test_model_inside_a_tf_module_is_restored_from_a_keras2_checkpoint(
    save_keras2: SaveKeras2, saved_layer: SavedLayer
) -> None:
    class Holder(tf.Module):
        def __init__(self, body: Any) -> None:
            super().__init__()
            self._sub_tasks = {"a": body}

    source, target = with_random_weights(convnet()), convnet()
    body = saved_convnet(source, saved_layer)
    path = save_keras2(model={"_sub_tasks": {"a": body}}, optimizer={"iter": tf.Variable(3)})
    assert restore_keras2_checkpoint(Holder(target), path).is_complete
    rounding.assert_close(target(images()), source(images()), roundings=ROUNDINGS)


def test_strict_restore_of_an_incomplete_checkpoint_raises_and_changes_no_weight(
    save_keras2: SaveKeras2, saved_layer: SavedLayer
) -> None:
    source, target = with_random_weights(convnet()), convnet()
    saved = saved_convnet(source, saved_layer)
    del saved["layer_with_weights-2"]["bias"]
    before = target.get_weights()
    with pytest.raises(errors.CheckpointError, match=r"missing from the checkpoint \(1\)"):
        restore_keras2_checkpoint(target, save_keras2(model=saved))
    assert all(np.array_equal(a, b) for a, b in zip(before, target.get_weights(), strict=True))


def test_non_strict_restore_loads_matching_weights_and_reports_the_rest(
    save_keras2: SaveKeras2, saved_layer: SavedLayer
) -> None:
    source, target = with_random_weights(convnet()), convnet()
    saved = saved_convnet(source, saved_layer)
    saved["layer_with_weights-2"] = {"kernel": tf.Variable([1.0]), "extra": tf.Variable([2.0])}
    report = restore_keras2_checkpoint(target, save_keras2(model=saved), strict=False)
    assert (len(report.matched), len(report.missing)) == (6, 1)
    assert [match.key_shape for match in report.mismatched] == [(1,)]
    assert [left.name for left in report.unexpected] == ["model/layer_with_weights-2/extra"]
    np.testing.assert_array_equal(target.layers[1].weights[0], source.layers[1].weights[0])


def test_variable_that_matches_two_tensors_is_reported_as_ambiguous(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, name="a")])
    prefix = str(tmp_path / "model.ckpt")
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=["x/a/kernel", "y/a/kernel", "x/a/bias"],
        shape_and_slices=["", "", ""],
        tensors=[tf.zeros((2, 2)), tf.ones((2, 2)), tf.fill((2,), 7.0)],
    )
    report = restore_keras2_checkpoint(model, prefix, strict=False)
    assert [left.candidates for left in report.ambiguous] == [("x/a/kernel", "y/a/kernel")]
    np.testing.assert_array_equal(model.layers[0].bias, [7.0, 7.0])


def test_restoring_into_an_unbuilt_model_raises(save_keras2: SaveKeras2) -> None:
    path = save_keras2(model={"kernel": tf.Variable(1.0)})
    with pytest.raises(errors.CheckpointError, match="Call it once"):
        restore_keras2_checkpoint(subclassed(), path)


@pytest.mark.parametrize("build", [convnet, nested, subclassed])
def test_model_restored_from_a_checkpoint_of_tf_keras_predicts_like_the_tf_keras_model(
    build: Callable[..., Any], tmp_path: Path
) -> None:
    tf_keras = pytest.importorskip("tf_keras", reason="requires tf_keras (Keras 2)")
    source, target = with_random_weights(build(tf_keras)), build()
    optimizer = tf_keras.optimizers.Adam()
    optimizer.build(source.trainable_variables)
    checkpoint = tf.train.Checkpoint(
        model=source, optimizer=optimizer, global_step=tf.Variable(0, dtype=tf.int64)
    )
    target(images())
    restore_keras2_checkpoint(target, checkpoint.save(str(tmp_path / "ckpt")))
    rounding.assert_close(target(images()), source(images()), roundings=ROUNDINGS)


def dense(name: str, units: int = 2) -> dict[str, tf.Variable]:
    return {"kernel": tf.Variable(tf.zeros((2, units)), name=f"{name}/kernel")}


def sequential(*names: str) -> keras.Model:
    layers = [keras.layers.Dense(2, use_bias=False, name=name) for name in names]
    return keras.Sequential([keras.Input((2,)), *layers])


def found_names(
    model: Any, path: str, renamed: Mapping[str, str] | None = None
) -> dict[str, list[str]]:
    """Return the Keras 2 names of the tensors found for each variable, by the variable's path."""
    root = SavedGraph(path).root(None)
    found = keras2_converter.match_structure(model, root, renamed=renamed or {})
    return {v.path: [t.full_name for t in found.get(id(v), [])] for v in model.weights}


def test_layer_names_take_precedence_over_layer_order(save_keras2: SaveKeras2) -> None:
    path = save_keras2(**{"layer_with_weights-0": dense("b"), "layer_with_weights-1": dense("a")})
    found = found_names(sequential("a", "b"), path)
    assert list(found.values()) == [["a/kernel"], ["b/kernel"]]


def test_keras2_checkpoint_layers_with_generated_names_are_matched_by_order(
    save_keras2: SaveKeras2,
) -> None:
    saved = {f"layer_with_weights-{i}": dense(f"dense_{i}") for i in range(2)}
    found = found_names(sequential("dense_1", "dense_2"), save_keras2(**saved))
    assert list(found.values()) == [["dense_0/kernel"], ["dense_1/kernel"]]


def test_explicitly_named_layers_match_by_name_even_if_their_order_differs(
    save_keras2: SaveKeras2,
) -> None:
    names = ("b", "dense_7", "a")
    saved = {f"layer_with_weights-{i}": dense(name) for i, name in enumerate(names)}
    found = found_names(sequential("dense_3", "a", "b"), save_keras2(**saved))
    assert list(found.values()) == [["dense_7/kernel"], ["a/kernel"], ["b/kernel"]]


def test_layers_are_matched_by_order_only_up_to_the_first_shape_mismatch(
    save_keras2: SaveKeras2,
) -> None:
    saved = {f"layer_with_weights-{i}": dense(f"x{i}", units=2 + i) for i in range(3)}
    found = found_names(sequential("a", "b"), save_keras2(**saved))
    assert list(found.values()) == [["x0/kernel"], []]


class Tower(keras.layers.Layer):
    """A layer with sublayers in an attribute, a list and a dict."""

    def __init__(self) -> None:
        super().__init__()
        self._first = keras.layers.Dense(2, use_bias=False)
        self.rest = [keras.layers.Dense(2, use_bias=False) for _ in range(2)]
        self.heads = {"left": keras.layers.Dense(2, use_bias=False)}

    def build(self, shape: tuple[int, ...]) -> None:
        self.w = self.add_weight(name="scale", shape=(2,))
        for layer in (self._first, *self.rest, self.heads["left"]):
            layer.build(shape)


def saved_tower(first: str = "_first") -> dict[str, Any]:
    return {
        first: dense("first"),
        "rest": {"0": dense("rest_0"), "1": dense("rest_1")},
        "heads": {"left": dense("left")},
        "scale": tf.Variable(tf.zeros((2,)), name="scale"),
    }


def built_tower() -> Tower:
    tower = Tower()
    tower.build((None, 2))
    return tower


EXPECTED = {"scale", "first/kernel", "rest_0/kernel", "rest_1/kernel", "left/kernel"}


@pytest.mark.parametrize("first", ["_first", "first"])
def test_sublayers_in_attributes_lists_and_dicts_match_with_or_without_underscore(
    save_keras2: SaveKeras2, first: str
) -> None:
    found = found_names(built_tower(), save_keras2(model=saved_tower(first)))
    assert {name for (name,) in found.values()} == EXPECTED


def test_renamed_attribute_is_matched_only_if_listed_in_renamed(save_keras2: SaveKeras2) -> None:
    path = save_keras2(model=saved_tower(first="stem"))
    assert [] in found_names(built_tower(), path).values()
    found = found_names(built_tower(), path, renamed={"stem": "_first"})
    assert {name for (name,) in found.values()} == EXPECTED


def test_attributes_saved_in_a_keras2_checkpoint_are_matched_to_layers_of_the_same_name(
    save_keras2: SaveKeras2,
) -> None:
    path = save_keras2(model={"a": dense("tower/dense"), "b": dense("tower/dense_1")})
    found = found_names(sequential("b", "a"), path)
    assert list(found.values()) == [["tower/dense_1/kernel"], ["tower/dense/kernel"]]


def named(*names: str) -> list[Tensor]:
    return [Tensor(key=name, full_name=name, shape=(2, 2)) for name in names]


def test_tensors_of_a_name_based_checkpoint_are_matched_by_name_suffix() -> None:
    model = sequential("a", "b")
    tensors = named("net/a/kernel", "net/b/kernel", "net/a/kernel/Adam", "global_step")
    found = keras2_converter.match_names(model.weights, tensors)
    names = [[t.full_name for t in found[id(v)]] for v in model.weights]
    assert names == [["net/a/kernel"], ["net/b/kernel"]]


def test_variable_names_match_by_the_longest_common_suffix_of_at_least_two_path_parts() -> None:
    (kernel,) = sequential("a").weights
    found = keras2_converter.match_names([kernel], named("x/a/kernel", "y/a/kernel", "kernel"))
    assert [t.full_name for t in found[id(kernel)]] == ["x/a/kernel", "y/a/kernel"]
    assert not keras2_converter.match_names([kernel], named("x/kernel", "kernel"))
