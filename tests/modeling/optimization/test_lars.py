"""LARS, against its formula and the Model Garden's numbers."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from official_lite.modeling.distributed_gradients import make_distributed
from official_lite.modeling.optimization.lars import LARS
from tests import rounding
from tests.modeling.conftest import ROUNDINGS

# Arguments, and what the Model Garden's class of the same name makes of them.
GOLDEN = [
    (
        {"weight_decay_rate": 0.2, "exclude_from_weight_decay": ["bias"]},
        [0.5366967, -1.6095545, 2.3607156, 0.0002676, -1.4966667, 3.7433333],
    ),
    (
        {"weight_decay_rate": 0.2, "nesterov": True},
        [0.3556055, -1.4693292, 2.1281822, -0.2012564, 0.3970664, -0.0670281],
    ),
    (
        {
            "weight_decay_rate": 0.2,
            "classic_momentum": False,
            "exclude_from_layer_adaptation": ["bias"],
        },
        [0.7547547, -1.7900436, 2.657012, 0.2371102, -1.5436667, 3.4518332],
    ),
    (
        {"classic_momentum": False, "nesterov": True},
        [0.6991061, -1.8997021, 2.7994041, 0.0988081, 0.4639509, -0.1779019],
    ),
]


@pytest.mark.parametrize(("arguments", "expected"), GOLDEN)
def test_numbers_are_those_of_the_model_garden(
    three_updates: Callable[..., np.ndarray], arguments: dict[str, Any], expected: list[float]
) -> None:
    weights = three_updates(LARS(0.5, eeta=0.1, **arguments))
    rounding.assert_close(weights, expected, roundings=ROUNDINGS)


def test_learning_rate_follows_the_ratio_of_norms(
    three_updates: Callable[..., np.ndarray], three_updates_in_numpy: Callable[..., np.ndarray]
) -> None:
    def step(w: np.ndarray, g: np.ndarray, t: int, state: dict[str, Any]) -> np.ndarray:
        g = g + 0.2 * w
        rate = 0.5 * 0.1 * np.linalg.norm(w) / np.linalg.norm(g)
        state["v"] = 0.9 * state.get("v", 0.0) + rate * g
        return w - state["v"]

    expected = three_updates_in_numpy(step)
    actual = three_updates(LARS(0.5, eeta=0.1, weight_decay_rate=0.2))
    rounding.assert_close(actual, expected, roundings=ROUNDINGS)


def test_without_adaptation_it_is_sgd(three_updates: Callable[..., np.ndarray]) -> None:
    expected = three_updates(keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True))
    optimizer = LARS(0.1, nesterov=True, exclude_from_layer_adaptation=["."])
    rounding.assert_close(three_updates(optimizer), expected, roundings=ROUNDINGS)


def test_two_replicas_update_like_one(train_on: Callable[..., Any]) -> None:
    def optimizer() -> Any:
        return make_distributed(LARS(0.1, eeta=0.1, weight_decay_rate=0.2, clipnorm=1.0))

    one, two = (train_on(n, optimizer) for n in (1, 2))
    rounding.assert_close(two.weights, one.weights, roundings=ROUNDINGS)


def test_config_is_complete() -> None:
    optimizer = LARS(
        0.25,
        momentum=0.5,
        weight_decay_rate=0.125,
        eeta=0.5,
        nesterov=True,
        classic_momentum=False,
        exclude_from_weight_decay=["a"],
        exclude_from_layer_adaptation=["b"],
    )
    restored = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(restored) is LARS
    assert restored.get_config() == optimizer.get_config()
    assert restored.get_config()["exclude_from_weight_decay"] == ["a"]
