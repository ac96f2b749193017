"""What NNI's tests of mutables and model spaces promise, for the choices here.

The promises are written here in our own words; nothing of NNI is needed or stored.
"""

import itertools
import math
import pathlib
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


def _layer_choice(label: str = "op") -> Any:
    return nas.LayerChoice(_OPS, label=label)


def _model() -> keras.Model:
    inputs = keras.Input((4,))
    first = _layer_choice("first")(inputs)
    second = nas.Repeat(lambda index: keras.layers.Dense(4), (1, 3), label="second")(first)
    return keras.Model(inputs, nas.InputChoice(2, label="third")([first, second]))


_SPACE = {"first": list(_OPS), "second": [1, 2, 3], "third": [[0], [1]]}
_ALL = [dict(zip(_SPACE, picks, strict=True)) for picks in itertools.product(*_SPACE.values())]


# Choices of layers.


@pytest.mark.parametrize("name", _OPS)
def test_frozen_choice_is_the_candidate_itself(name: str) -> None:
    with nas.fixed_arch({"op": name}):
        layer = _layer_choice()
    assert type(layer) is type(_OPS[name]())
    assert not isinstance(layer, nas.Choice)


@pytest.mark.parametrize("name", _OPS)
def test_frozen_choice_has_the_weights_of_its_candidate_only(name: str) -> None:
    with nas.fixed_arch({"op": name}):
        layer = _layer_choice()
    layer(_X)
    assert len(layer.weights) == (0 if name == "skip" else 2)


def test_open_choice_lists_its_candidates_by_name() -> None:
    choice = _layer_choice()
    assert (choice.label, choice.options) == ("op", list(_OPS))


def test_open_choice_has_the_weights_of_all_candidates() -> None:
    choice = _layer_choice()
    choice.build((None, 4))
    assert len(choice.weights) == 4


@pytest.mark.parametrize("index", range(3))
def test_branches_are_the_candidates_in_order(index: int) -> None:
    choice = _layer_choice()
    choice.build((None, 4))
    [layer] = choice.layers_of(index)
    rounding.assert_close(choice.branch(index, _X), layer(_X), roundings=_X.shape[1])


@pytest.mark.parametrize("prior", [[1, 1, 1], [0.5, 0.25, 0.25], [3, 2, 1]])
def test_prior_is_normalized(prior: list[float]) -> None:
    choice = nas.LayerChoice(_OPS, label="op", prior=prior)
    np.testing.assert_allclose(choice.prior, np.array(prior) / sum(prior))


@pytest.mark.parametrize("prior", [[1.0], [1.0, 0.0, 1.0], [-1.0, 1.0, 1.0], [1.0] * 4])
def test_prior_must_fit_the_candidates(prior: list[float]) -> None:
    with pytest.raises(errors.ConfigValueError, match="prior"):
        nas.LayerChoice(_OPS, label="op", prior=prior)


@pytest.mark.parametrize("candidates", [None, {}, [], "ab"])
def test_candidates_must_be_named_and_not_empty(candidates: Any) -> None:
    with pytest.raises(errors.ConfigTypeError, match="candidates of 'op'"):
        nas.LayerChoice(candidates, label="op")


@pytest.mark.parametrize("outer", ["block", "skip"])
@pytest.mark.parametrize("inner", _OPS)
def test_choice_in_a_candidate_is_asked_for_only_if_it_is_taken(outer: str, inner: str) -> None:
    candidates = {"block": lambda: _layer_choice("inner"), "skip": keras.layers.Identity}
    arch = {"outer": outer} | ({"inner": inner} if outer == "block" else {})
    with nas.fixed_arch(arch):
        layer = nas.LayerChoice(candidates, label="outer")
    assert type(layer) is type(_OPS[inner if outer == "block" else "skip"]())


# Labels.


@pytest.mark.parametrize("name", _OPS)
def test_choices_with_one_label_are_one_decision(name: str) -> None:
    with nas.fixed_arch({"op": name}):
        first, second = _layer_choice(), _layer_choice()
    assert type(first) is type(second)
    assert first is not second


def test_one_label_has_one_list_of_options() -> None:
    with nas.record_space():
        _layer_choice()
        with pytest.raises(errors.ConfigValueError, match="share the label 'op'"):
            nas.ValueChoice([1, 2], label="op")


@pytest.mark.parametrize("arch", [{"op": "skip", "other": 1}, {"other": "skip"}])
def test_labels_of_an_architecture_are_those_of_the_model(arch: dict[str, Any]) -> None:
    with pytest.raises(errors.ConfigValueError, match="other"), nas.fixed_arch(arch):
        _layer_choice()


def test_label_that_is_missing_is_refused() -> None:
    with pytest.raises(errors.ConfigValueError, match="second"), nas.fixed_arch({"first": "skip"}):
        _model()


@pytest.mark.parametrize("value", ["conv", 7, None, ""])
def test_option_that_does_not_exist_is_refused(value: Any) -> None:
    with pytest.raises(errors.ConfigValueError, match="`op`"), nas.fixed_arch({"op": value}):
        _layer_choice()


@pytest.mark.parametrize(
    "make",
    [
        lambda: nas.LayerChoice(_OPS, label=""),
        lambda: nas.InputChoice(2, label=""),
        lambda: nas.Repeat(lambda index: keras.layers.Identity(), (1, 2), label=""),
    ],
)
def test_every_choice_needs_a_label(make: Any) -> None:
    with pytest.raises(errors.ConfigValueError, match="label"):
        make()


# Values.


@pytest.mark.parametrize("value", [8, 16, 32])
def test_value_is_the_chosen_one(value: int) -> None:
    with nas.fixed_arch({"units": value}):
        assert nas.ValueChoice([8, 16, 32], label="units") == value


def test_default_is_the_first_value() -> None:
    with nas.record_space() as space:
        assert nas.ValueChoice([8, 16, 32], label="units") == 8
    assert space == {"units": [8, 16, 32]}


def test_open_value_is_refused() -> None:
    with pytest.raises(errors.ConfigValueError, match="units"):
        nas.ValueChoice([8, 16], label="units")


# Inputs.


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("chosen", [1, 2, None])
def test_input_choice_has_every_set_of_inputs(count: int, chosen: int | None) -> None:
    if chosen is not None and chosen > count:
        with pytest.raises(errors.ConfigValueError, match="n_chosen"):
            nas.InputChoice(count, chosen, label="in")
        return
    options = nas.InputChoice(count, chosen, label="in").options
    assert len(options) == (2**count - 1 if chosen is None else math.comb(count, chosen))
    assert all(sorted(set(one)) == one for one in options)


@pytest.mark.parametrize("option", [[0, 1], [0, 2], [1, 2]])
@pytest.mark.parametrize("reduction", ["sum", "mean", "concat", "none"])
def test_open_and_frozen_inputs_are_reduced_alike(option: list[int], reduction: str) -> None:
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


@pytest.mark.parametrize("given", [1, 2, 4])
def test_input_choice_checks_the_number_of_inputs(given: int) -> None:
    with pytest.raises(errors.ConfigValueError, match="expects 3 inputs"):
        nas.InputChoice(3, label="in").branch(0, [_X] * given)


# Repeats.


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_depth_is_the_number_of_blocks(depth: int) -> None:
    created: list[int] = []

    def block(index: int) -> keras.layers.Layer:
        created.append(index)
        return keras.layers.Dense(4)

    with nas.fixed_arch({"depth": depth}):
        layer = nas.Repeat(block, (1, 3), label="depth")
    layer(_X)
    assert created == list(range(depth))
    assert len(layer.weights) == 2 * depth


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_open_repeat_applies_the_first_blocks(depth: int) -> None:
    choice = nas.Repeat(lambda index: keras.layers.Dense(4), (1, 3), label="depth")
    choice.build((None, 4))
    wanted = _X
    for block in choice.blocks[:depth]:
        wanted = block(wanted)
    for found in (choice.branch(depth - 1, _X), choice.outputs(_X)[depth - 1]):
        rounding.assert_close(found, wanted, roundings=depth * _X.shape[1])


def test_repeat_of_nothing_is_the_identity() -> None:
    with nas.fixed_arch({"depth": 0}):
        layer = nas.Repeat(lambda index: keras.layers.Dense(4), (0, 2), label="depth")
    np.testing.assert_allclose(layer(_X), _X)


@pytest.mark.parametrize("depth", [(3, 2), (-1, 2), (0, 0)])
def test_depths_must_increase(depth: tuple[int, int]) -> None:
    with pytest.raises(errors.ConfigValueError, match="depth"):
        nas.Repeat(lambda index: keras.layers.Dense(4), depth, label="depth")


# Model spaces.


def test_space_of_a_model_has_each_label_once() -> None:
    assert resolution.space_of(_model()) == _SPACE


@pytest.mark.parametrize("arch", _ALL, ids=lambda arch: "-".join(map(str, arch.values())))
def test_every_architecture_of_the_space_can_be_built(arch: dict[str, Any]) -> None:
    with nas.fixed_arch(arch):
        model = _model()
    assert model(_X).shape == (2, 4)
    assert not [layer for layer in model.layers if isinstance(layer, nas.Choice)]


@pytest.mark.parametrize("arch", _ALL, ids=lambda arch: "-".join(map(str, arch.values())))
def test_architecture_is_read_back_as_written(arch: dict[str, Any], tmp_path: pathlib.Path) -> None:
    architecture.write_arch(str(tmp_path), arch, space=_SPACE)
    assert nas.read_arch(tmp_path) == arch
    with nas.fixed_arch(tmp_path):
        assert _model()(_X).shape == (2, 4)


def test_model_is_open_outside_of_an_architecture() -> None:
    with nas.fixed_arch({"op": "skip"}):
        _layer_choice()
    assert isinstance(_layer_choice(), nas.LayerChoice)


def test_architecture_is_left_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), nas.fixed_arch({"op": "skip"}):
        raise ZeroDivisionError
    assert isinstance(_layer_choice(), nas.LayerChoice)


@pytest.mark.parametrize("kind", ["layer", "input", "repeat"])
def test_open_choice_survives_its_config(kind: str) -> None:
    choice = {
        "layer": lambda: _layer_choice("c"),
        "input": lambda: nas.InputChoice(3, 2, "mean", label="c"),
        "repeat": lambda: nas.Repeat(lambda index: keras.layers.Dense(4), (1, 3), label="c"),
    }[kind]()
    again = type(choice).from_config(choice.get_config())
    assert (again.label, again.options) == (choice.label, choice.options)
