from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.checkpoint import matching, model_state, saved_graph, warm_start
from official_lite.common import errors

Names = Sequence[str | None]


def _dense(names: Names, units: int) -> list[keras.layers.Layer]:
    return [keras.layers.Dense(units, name=name) for name in names]


def functional(names: Names, units: int = 3, model_name: str = "net") -> keras.Model:
    outputs = inputs = keras.Input((units,))
    for layer in _dense(names, units):
        outputs = layer(outputs)
    return keras.Model(inputs, outputs, name=model_name)


def sequential(names: Names, units: int = 3, model_name: str | None = None) -> keras.Model:
    return keras.Sequential([keras.Input((units,)), *_dense(names, units)], name=model_name)


class Listed(keras.Model):
    """A model with its layers in a list, which TensorFlow's checkpoints omit."""

    def __init__(self, names: Names, units: int, name: str) -> None:
        super().__init__(name=name)
        self.blocks = _dense(names, units)

    def call(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x


def listed(names: Names, units: int = 3, model_name: str = "net") -> keras.Model:
    model = Listed(names, units, model_name)
    model(tf.zeros((1, units)))
    return model


EVERY_KIND = pytest.mark.parametrize("build", [functional, sequential, listed])
AUTO = (None, None)


def _load(directory: Any, source: keras.Model, target: keras.Model, **options: Any) -> Any:
    """Save `source` as a run does, with layer i's weights set to i + 1, and load into `target`."""
    for i, layer in enumerate(source.layers):
        for weight in layer.weights:
            weight.assign(tf.fill(weight.shape, float(i + 1)))
    for weight in target.weights:
        weight.assign(tf.zeros(weight.shape))
    items = {"model": source, **model_state.hidden_items(source)}
    path = tf.train.Checkpoint(**items).save(str(directory / "ckpt"))
    return warm_start.load_weights(target, path, **options)


def _values(model: keras.Model) -> list[int]:
    """Return, for each layer, the number of the saved layer that was loaded into it, or 0."""
    layers = [layer for layer in model.layers if layer.weights]
    for layer in layers:
        assert len({float(np.max(weight)) for weight in layer.weights}) == 1
    return [int(np.max(layer.kernel)) for layer in layers]


def _saved(source: keras.Model) -> dict[str, int]:
    layers = [layer for layer in source.layers if layer.weights]
    return {layer.name: int(np.max(layer.kernel)) for layer in layers}


@pytest.mark.parametrize(
    ("build", "names"),
    [
        (functional, ["b", "a", "c"]),
        (functional, ["a", "c"]),
        (sequential, ["b", "c"]),
        (listed, ["b", "a", "c"]),
        (listed, ["c"]),
    ],
)
def test_swapped_and_removed_layers_are_matched_by_name(tmp_path, build: Callable, names) -> None:
    source, target = build(["a", "b", "c"]), build(names)
    report = _load(tmp_path, source, target)
    assert _values(target) == [_saved(source)[name] for name in names]
    assert not [match for match in report.matched if match.is_by_position]


@EVERY_KIND
def test_inserted_layer_raises_if_strict_and_otherwise_keeps_its_initial_weights(
    tmp_path, build: Callable
) -> None:
    source, target = build(["a", "b"]), build(["new", "a", "b"])
    with pytest.raises(errors.CheckpointError, match=r"missing from the checkpoint \(2\)"):
        _load(tmp_path, source, target)
    assert _values(target) == [0, 0, 0]
    report = _load(tmp_path, source, target, strict=False)
    assert _values(target) == [0, *_saved(source).values()]
    assert {left.name.rpartition("/")[0].rpartition("/")[2] for left in report.missing} == {"new"}


@EVERY_KIND
def test_renamed_layer_is_matched_by_position_and_reported(tmp_path, build: Callable) -> None:
    source, target = build(["a", "b"]), build(["a", "other"])
    report = _load(tmp_path, source, target)
    assert _values(target) == list(_saved(source).values())
    moved = [match.variable for match in report.matched if match.is_by_position]
    assert [name.split("/")[-2:] for name in moved] == [["other", "kernel"], ["other", "bias"]]
    assert "of these, by position (2)" in str(report)
    assert "b/kernel)" in str(report)


@pytest.mark.parametrize("build", [functional, listed])
def test_loading_a_new_layer_raises_instead_of_using_a_removed_layers_weights(
    tmp_path, build: Callable
) -> None:
    with pytest.raises(errors.CheckpointError, match="missing from the checkpoint"):
        _load(tmp_path, build(["a", "b"]), build(["b", "c"]))


@pytest.mark.parametrize(("build", "shift"), [(functional, -1), (sequential, 1), (listed, 1)])
def test_layers_with_generated_names_are_matched_by_position(
    tmp_path, build: Callable, shift: int
) -> None:
    """Numbers in generated names differ between processes, so equal names prove nothing."""
    keras.backend.clear_session()
    first = build([*AUTO, None])
    keras.backend.clear_session()
    keras.layers.Dense(1)
    second = build([*AUTO, None])
    assert {layer.name for layer in first.layers} & {layer.name for layer in second.layers}
    source, target = (first, second) if shift > 0 else (second, first)
    report = _load(tmp_path, source, target)
    assert _values(target) == list(_saved(source).values())
    assert len(report.matched) == 6


@EVERY_KIND
def test_loading_a_different_number_of_unnamed_layers_raises_if_strict(
    tmp_path, build: Callable
) -> None:
    source, target = build([None, None, None]), build(AUTO)
    with pytest.raises(errors.CheckpointError, match=r"(?s)more or fewer layers.*by position"):
        _load(tmp_path, source, target)
    assert _values(target) == [0, 0]
    _load(tmp_path, source, target, strict=False)
    assert _values(target) == list(_saved(source).values())[:2]


def test_layer_with_a_changed_shape_does_not_take_the_weights_of_its_neighbor(tmp_path) -> None:
    def build(names: Sequence[str], units: dict[str, int]) -> keras.Model:
        layers = [keras.layers.Dense(units[name], name=name) for name in names]
        return keras.Sequential([keras.Input((3,)), *layers], name="net")

    source = build(["a", "b"], {"a": 3, "b": 3})
    target = build(["new", "a", "b"], {"new": 3, "a": 3, "b": 5})
    report = _load(tmp_path, source, target, strict=False)
    assert _values(target) == [0, _saved(source)["a"], 0]
    assert [match.variable for match in report.mismatched] == ["net/b/kernel", "net/b/bias"]


@pytest.mark.parametrize("build", [sequential, listed])
def test_weights_are_matched_even_if_the_model_name_differs(tmp_path, build: Callable) -> None:
    source, target = build(["a", "b"], model_name="old"), build(["b", "a"], model_name="new")
    report = _load(tmp_path, source, target)
    assert _values(target) == [_saved(source)[name] for name in ("b", "a")]
    assert report.is_complete


class Named(keras.Model):
    """A model with its layers in attributes."""

    def __init__(self, names: Names) -> None:
        super().__init__(name="net")
        self.first, self.second = _dense(names, 3)
        self(tf.zeros((1, 3)))

    def call(self, x: Any) -> Any:
        return self.second(self.first(x))


def test_attribute_names_take_precedence_over_layer_names(tmp_path) -> None:
    source, target = Named(["a", "b"]), Named(["b", "a"])
    report = _load(tmp_path, source, target)
    assert _values(target) == list(_saved(source).values())
    assert not [match for match in report.matched if match.is_by_position]


class Shortcut(keras.Model):
    """A functional model that also has its last layer as an attribute."""

    def __init__(self, is_deep: bool) -> None:
        inputs = keras.Input((3,))
        head = keras.layers.Dense(3)
        x = keras.layers.Dense(3)(inputs) if is_deep else inputs
        super().__init__(inputs, head(x))
        self.head = head


@pytest.mark.parametrize("is_deep", [False, True])
def test_attribute_names_take_precedence_over_layer_positions(tmp_path, is_deep: bool) -> None:
    source, target = Shortcut(is_deep), Shortcut(not is_deep)
    _load(tmp_path, source, target, strict=False)
    assert np.max(target.head.kernel) == np.max(source.head.kernel)


def test_weights_in_a_list_without_names_are_matched_by_position(tmp_path) -> None:
    source, target = listed(["a", "b"]), listed(["a", "b"])
    items = {"model": source, "hidden_weights": source.weights}
    path = tf.train.Checkpoint(**items).save(str(tmp_path / "ckpt"))
    checkpoint = saved_graph.SavedGraph(path)
    pairs = matching.pair(target, {"model": target}, target.weights, checkpoint)
    assert {pair.evidence for pair in pairs.values()} == {matching.Evidence.POSITION}
