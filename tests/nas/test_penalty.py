import math

import keras
import pytest
import tensorflow as tf

from official_lite import nas
from official_lite.common import errors
from official_lite.nas import probes
from tests import rounding


def _model() -> keras.Model:
    inputs = keras.Input((4,))
    inner = nas.LayerChoice(
        {"big": keras.layers.Dense(4), "skip": keras.layers.Identity()}, label="in"
    )
    outer = nas.LayerChoice(
        {"deep": keras.Sequential([inner, keras.layers.Dense(4)]), "skip": keras.layers.Identity()},
        label="out",
    )
    x = outer(inputs)
    x = nas.Repeat(lambda index: keras.layers.Dense(4), (1, 3), label="depth")(x)
    return keras.Model(inputs, x)


def _cost(model, picks, **config) -> float:
    settings = {"weight": 1.0, "unit": 1.0, **config}
    return probes.Penalty(model, nas.PenaltyConfig(settings)).of(picks)


@pytest.mark.parametrize(
    ("picks", "wanted"),
    [
        ({"out": 0, "in": 0, "depth": 0}, 60),
        ({"out": 0, "in": 1, "depth": 1}, 60),
        ({"out": 1, "in": 0, "depth": 2}, 60),
        ({"out": 1, "in": 0, "depth": 0}, 20),
    ],
)
def test_parameters_are_those_of_the_found_model(picks, wanted) -> None:
    model = _model()
    assert _cost(model, picks) == wanted
    space = {"out": ["deep", "skip"], "in": ["big", "skip"], "depth": [1, 2, 3]}
    arch = {label: space[label][index] for label, index in picks.items()}
    assert nas.fixed_model(model, arch).count_params() == wanted


def test_expected_cost_has_a_gradient() -> None:
    cost = probes.Penalty(_model(), nas.PenaltyConfig({"weight": 2.0, "unit": 20.0}))
    probs = {
        "out": tf.constant([0.5, 0.5]),
        "in": tf.constant([0.5, 0.5]),
        "depth": tf.constant([1.0, 0.0, 0.0]),
    }
    with tf.GradientTape() as tape:
        tape.watch(probs)
        expected = cost(probs)
    # One block, half of the dense layer, a quarter of the inner one.
    rounding.assert_close(expected, 2.0 * (1.0 + 0.5 + 0.25), roundings=3)
    rounding.assert_close(tape.gradient(expected, probs)["in"], [1.0, 0.0], roundings=3)


def test_unit_is_the_most_expensive_architecture() -> None:
    assert _cost(_model(), {"out": 0, "in": 0, "depth": 2}, unit=0.0) == pytest.approx(1.0)


def test_table_has_costs_by_label_and_option() -> None:
    table = {
        "out": {"deep": 5, "skip": 1},
        "in": {"big": 2, "skip": 0},
        "depth": {1: 1, 2: 2, 3: 3},
    }
    picks = {"out": 0, "in": 0, "depth": 1}
    assert _cost(_model(), picks, resource="table", table=table) == 9.0
    for label, message in (("in", "no costs for 'in'"), ("out", "no costs for 'out'")):
        rest = {k: v for k, v in table.items() if k != label}
        with pytest.raises(errors.ConfigValueError, match=message):
            _cost(_model(), picks, resource="table", table=rest)
    with pytest.raises(errors.ConfigValueError, match="which the model does not have"):
        _cost(_model(), picks, resource="table", table={**table, "outt": {"a": 1}})
    with pytest.raises(errors.ConfigValueError, match="no cost for 'skip'"):
        _cost(_model(), picks, resource="table", table={**table, "in": {"big": 2}})
    with pytest.raises(errors.ConfigValueError, match="expected a finite cost"):
        _cost(
            _model(), picks, resource="table", table={**table, "in": {"big": 2, "skip": math.inf}}
        )


def test_operations_are_counted() -> None:
    inputs = keras.Input((8, 8, 2))
    ops = {
        "conv": keras.layers.Conv2D(2, 3, padding="same", use_bias=False),
        "skip": keras.layers.Identity(),
    }
    model = keras.Model(inputs, nas.LayerChoice(ops, label="op")(inputs))
    assert _cost(model, {"op": 0}, resource="flops") == 2 * 8 * 8 * 9 * 2 * 2
    assert _cost(model, {"op": 1}, resource="flops") == 0
    with pytest.raises(errors.ConfigValueError, match="it contains other choices"):
        _cost(_model(), {}, resource="flops")


def test_operations_on_inputs_of_unknown_size_are_refused_by_name() -> None:
    inputs = keras.Input((None, 8, 2))
    ops = {"conv": keras.layers.Conv2D(2, 3, padding="same"), "skip": keras.layers.Identity()}
    model = keras.Model(inputs, nas.LayerChoice(ops, label="op")(inputs))
    with pytest.raises(errors.ConfigValueError, match=r"'op'.* unknown in the axes \[1\]"):
        _cost(model, {"op": 0}, resource="flops")


def test_penalty_turns_a_search_to_what_is_cheap(experiment, make_trainer) -> None:
    for name in ("darts", "proxyless"):
        settings = {"penalty": {"weight": 100.0}, "arch_learning_rate": 0.1}
        trainer = make_trainer(experiment(name, trainer={"one_shot": settings}))
        trainer.train(tf.constant(30))
        assert trainer.export() == {"first": "zero", "second": "zero"}, name
