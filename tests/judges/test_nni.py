"""Our choices meet the requirements of NNI's tests of mutables and model spaces.

The requirements are restated here; nothing of NNI is needed or stored.
"""

import math
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from official_lite import nas
from official_lite.common import errors
from official_lite.nas import architecture, resolution
from tests import rounding

_OPS = {
    "linear": lambda: keras.layers.Dense(4),
    "relu": lambda: keras.layers.Dense(4, activation="relu"),
    "skip": keras.layers.Identity,
}
_X = np.arange(8, dtype=np.float32).reshape(2, 4)


def _recording(created: list[str], name: str) -> Callable[[], keras.layers.Layer]:
    def make() -> keras.layers.Layer:
        created.append(name)
        return _OPS[name]()

    return make


def _layer_choice(label: str = "op") -> Any:
    return nas.LayerChoice(_OPS, label=label)


def _model() -> keras.Model:
    inputs = keras.Input((4,))
    first = _layer_choice("first")(inputs)
    second = nas.Repeat(lambda index: keras.layers.Dense(4), (1, 3), label="second")(first)
    return keras.Model(inputs, nas.InputChoice(2, label="third")([first, second]))


_SPACE = {"first": list(_OPS), "second": [1, 2, 3], "third": [[0], [1]]}


# Choices of layers.


@pytest.mark.parametrize("name", _OPS)
def test_fixed_layer_choice_creates_only_the_chosen_candidate(name: str) -> None:
    created: list[str] = []
    candidates = {n: _recording(created, n) for n in _OPS}
    with nas.fixed_arch({"op": name}):
        layer, other = (nas.LayerChoice(candidates, label="op") for _ in range(2))
    layer(_X)
    assert type(layer) is type(other) is type(_OPS[name]())
    assert layer is not other
    assert created == [name, name]
    assert len(layer.weights) == (0 if name == "skip" else 2)


def test_layer_choice_without_a_fixed_architecture_has_all_candidates_in_order() -> None:
    choice: Any = nas.LayerChoice(_OPS, label="op", prior=[3, 2, 1])
    choice.build((None, 4))
    assert (choice.label, choice.options, len(choice.weights)) == ("op", list(_OPS), 4)
    np.testing.assert_allclose(choice.prior, np.array([3, 2, 1]) / 6)
    for index in range(3):
        [layer] = choice.layers_of(index)
        rounding.assert_close(choice.branch(index, _X), layer(_X), roundings=_X.shape[1])


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: nas.LayerChoice(_OPS, label="op", prior=[1.0]), "prior of 'op'"),
        (lambda: nas.LayerChoice(_OPS, label="op", prior=[1.0, 0.0, 1.0]), "prior of 'op'"),
        (lambda: nas.Repeat(keras.layers.Dense, (3, 2), label="op"), "`depth` of 'op'"),
        (lambda: nas.Repeat(keras.layers.Dense, (0, 0), label="op"), "`depth` of 'op'"),
        (lambda: nas.ValueChoice([8, 16], label="op"), "'op'"),
        (lambda: nas.InputChoice(2, 3, label="op"), "`n_chosen` of 'op' is 3"),
        (lambda: nas.InputChoice(2, reduction="som", label="op"), "'som'.*sum"),
        (lambda: nas.InputChoice(20, None, label="op"), "'op'"),
        (lambda: nas.InputChoice(3, label="op").branch(0, [_X]), "'op' expects a list of 3 inputs"),
        (lambda: _twice_with_other_options(), "the label 'op'"),
    ],
)
def test_error_for_an_invalid_architecture_choice_names_its_label(make: Any, named: str) -> None:
    with pytest.raises(errors.ConfigValueError, match=named):
        make()


def _twice_with_other_options() -> None:
    with nas.record_space():
        _layer_choice()
        nas.ValueChoice([1, 2], label="op")


@pytest.mark.parametrize(
    ("outer", "inner"), [("block", "linear"), ("block", "skip"), ("skip", "relu")]
)
def test_nested_layer_choice_needs_a_value_only_if_the_outer_choice_selects_its_candidate(
    outer: str, inner: str
) -> None:
    candidates = {"block": lambda: _layer_choice("inner"), "skip": keras.layers.Identity}
    arch = {"outer": outer} | ({"inner": inner} if outer == "block" else {})
    with nas.fixed_arch(arch):
        layer = nas.LayerChoice(candidates, label="outer")
    assert type(layer) is type(_OPS[inner if outer == "block" else "skip"]())


# Labels.


@pytest.mark.parametrize(
    ("arch", "named"),
    [({"first": "skip"}, "second"), ({"other": "skip"}, "other"), ({"first": "conv"}, "`first`")],
)
def test_architecture_that_does_not_fit_the_model_is_refused(
    arch: dict[str, Any], named: str
) -> None:
    with pytest.raises(errors.ConfigValueError, match=named), nas.fixed_arch(arch):
        _model()


# Values.


def test_value_choice_returns_the_fixed_value_or_else_its_first_option() -> None:
    with nas.fixed_arch({"units": 16}):
        assert nas.ValueChoice([8, 16, 32], label="units") == 16
    with nas.record_space() as space:
        assert nas.ValueChoice([8, 16, 32], label="units") == 8
    assert space == {"units": [8, 16, 32]}


# Inputs.


@pytest.mark.parametrize(("count", "chosen"), [(1, 1), (4, 2), (3, None)])
def test_input_choice_offers_every_combination_of_inputs(count: int, chosen: int | None) -> None:
    options = nas.InputChoice(count, chosen, label="in").options
    assert len(options) == (2**count - 1 if chosen is None else math.comb(count, chosen))
    assert all(sorted(set(one)) == one for one in options)


@pytest.mark.parametrize("reduction", ["sum", "mean", "concat", "none"])
def test_input_choice_reduces_inputs_the_same_way_with_and_without_fixed_arch(
    reduction: str,
) -> None:
    option = [0, 2]
    inputs = [_X, 2 * _X, 4 * _X]
    choice = nas.InputChoice(3, 2, reduction, label="in")
    with nas.fixed_arch({"in": option}):
        frozen = nas.InputChoice(3, 2, reduction, label="in")
    is_open = choice.branch(choice.options.index(option), inputs)
    wanted = {
        "sum": lambda chosen: np.sum(chosen, axis=0),
        "mean": lambda chosen: np.mean(chosen, axis=0),
        "concat": lambda chosen: np.concatenate(chosen, axis=-1),
        "none": lambda chosen: chosen,
    }[reduction]([inputs[index] for index in option])
    np.testing.assert_allclose(np.array(is_open), wanted)
    np.testing.assert_allclose(np.array(frozen(inputs)), wanted)


# Repeats.


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_fixed_repeat_creates_as_many_blocks_as_its_depth(depth: int) -> None:
    created: list[int] = []

    def block(index: int) -> keras.layers.Layer:
        created.append(index)
        return keras.layers.Dense(4)

    with nas.fixed_arch({"depth": depth}):
        layer = nas.Repeat(block, (0, 3), label="depth")
    outputs = layer(_X)
    assert depth or np.array_equal(outputs, _X)
    assert created == list(range(depth))
    assert len(layer.weights) == 2 * depth


@pytest.mark.parametrize("depth", [1, 3])
def test_searchable_repeat_applies_as_many_blocks_as_the_chosen_depth(
    depth: int,
) -> None:
    choice = nas.Repeat(lambda index: keras.layers.Dense(4), (1, 3), label="depth")
    choice.build((None, 4))
    wanted = _X
    for block in choice.blocks[:depth]:
        wanted = block(wanted)
    for found in (choice.branch(depth - 1, _X), choice.outputs(_X)[depth - 1]):
        rounding.assert_close(found, wanted, roundings=depth * _X.shape[1])


# Model spaces.


def test_written_architectures_are_read_back_and_build_their_models(tmp_path: pathlib.Path) -> None:
    assert resolution.space_of(_model()) == _SPACE
    # Together, the three architectures use every option of every label.
    for number in range(3):
        arch = {label: options[number % len(options)] for label, options in _SPACE.items()}
        architecture.write_arch(str(tmp_path), arch, space=_SPACE)
        assert nas.read_arch(tmp_path) == arch
        with nas.fixed_arch(tmp_path):
            model = _model()
        assert model(_X).shape == (2, 4)
        assert not [layer for layer in model.layers if isinstance(layer, nas.Choice)]


def test_fixed_architecture_does_not_apply_after_its_context_ended_with_an_error() -> None:
    with pytest.raises(ZeroDivisionError), nas.fixed_arch({"op": "skip"}):
        raise ZeroDivisionError
    assert isinstance(_layer_choice(), nas.LayerChoice)
