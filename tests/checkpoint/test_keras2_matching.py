from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from official_lite.checkpoint import keras2_converter
from official_lite.checkpoint.saved_graph import SavedGraph, Tensor

SaveKeras2 = Callable[..., str]


def dense(name: str, units: int = 2) -> dict[str, tf.Variable]:
    return {"kernel": tf.Variable(tf.zeros((2, units)), name=f"{name}/kernel")}


def sequential(*names: str) -> keras.Model:
    layers = [keras.layers.Dense(2, use_bias=False, name=name) for name in names]
    return keras.Sequential([keras.Input((2,)), *layers])


def found_names(
    model: Any, path: str, renamed: Mapping[str, str] | None = None
) -> dict[str, list[str]]:
    """What was found for each variable of the model, by the variable's Keras 2 name."""
    root = SavedGraph(path).root(None)
    found = keras2_converter.match_structure(model, root, renamed=renamed or {})
    return {v.path: [t.full_name for t in found.get(id(v), [])] for v in model.weights}


def test_equal_layer_names_go_before_order(save_keras2: SaveKeras2) -> None:
    path = save_keras2(**{"layer_with_weights-0": dense("b"), "layer_with_weights-1": dense("a")})
    found = found_names(sequential("a", "b"), path)
    assert list(found.values()) == [["a/kernel"], ["b/kernel"]]


def test_layers_go_by_order_where_default_names_differ(save_keras2: SaveKeras2) -> None:
    saved = {f"layer_with_weights-{i}": dense(f"dense_{i}") for i in range(2)}
    found = found_names(sequential("dense_1", "dense_2"), save_keras2(**saved))
    assert list(found.values()) == [["dense_0/kernel"], ["dense_1/kernel"]]


def test_layers_with_names_of_their_own_are_not_mistaken_for_each_other(
    save_keras2: SaveKeras2,
) -> None:
    names = ("b", "dense_7", "a")
    saved = {f"layer_with_weights-{i}": dense(name) for i, name in enumerate(names)}
    found = found_names(sequential("dense_3", "a", "b"), save_keras2(**saved))
    assert list(found.values()) == [["dense_7/kernel"], ["a/kernel"], ["b/kernel"]]


def test_order_ends_where_a_layer_was_replaced(save_keras2: SaveKeras2) -> None:
    saved = {f"layer_with_weights-{i}": dense(f"x{i}", units=2 + i) for i in range(3)}
    found = found_names(sequential("a", "b"), save_keras2(**saved))
    assert list(found.values()) == [["x0/kernel"], []]


class Tower(keras.layers.Layer):
    """Holds layers in every way there is."""

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


def test_attributes_lists_and_dicts_are_followed(save_keras2: SaveKeras2) -> None:
    found = found_names(built_tower(), save_keras2(model=saved_tower()))
    assert {name for (name,) in found.values()} == EXPECTED


def test_leading_underscore_makes_no_difference(save_keras2: SaveKeras2) -> None:
    found = found_names(built_tower(), save_keras2(model=saved_tower(first="first")))
    assert {name for (name,) in found.values()} == EXPECTED


def test_renamed_attribute_is_found(save_keras2: SaveKeras2) -> None:
    path = save_keras2(model=saved_tower(first="stem"))
    assert [] in found_names(built_tower(), path).values()
    found = found_names(built_tower(), path, renamed={"stem": "_first"})
    assert {name for (name,) in found.values()} == EXPECTED


def test_saved_attributes_find_layers_of_that_name(save_keras2: SaveKeras2) -> None:
    path = save_keras2(model={"a": dense("tower/dense"), "b": dense("tower/dense_1")})
    found = found_names(sequential("b", "a"), path)
    assert list(found.values()) == [["tower/dense_1/kernel"], ["tower/dense/kernel"]]


def named(*names: str) -> list[Tensor]:
    return [Tensor(key=name, full_name=name, shape=(2, 2)) for name in names]


def test_names_match_by_their_end() -> None:
    model = sequential("a", "b")
    tensors = named("net/a/kernel", "net/b/kernel", "net/a/kernel/Adam", "global_step")
    found = keras2_converter.match_names(model.weights, tensors)
    names = [[t.full_name for t in found[id(v)]] for v in model.weights]
    assert names == [["net/a/kernel"], ["net/b/kernel"]]


def test_names_that_end_alike_are_all_candidates() -> None:
    (kernel,) = sequential("a").weights
    found = keras2_converter.match_names([kernel], named("x/a/kernel", "y/a/kernel", "kernel"))
    assert [t.full_name for t in found[id(kernel)]] == ["x/a/kernel", "y/a/kernel"]


def test_last_part_alone_is_not_a_match() -> None:
    (kernel,) = sequential("a").weights
    assert not keras2_converter.match_names([kernel], named("x/kernel", "kernel"))
