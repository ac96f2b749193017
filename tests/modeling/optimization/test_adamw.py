"""Adam with weight decay, against its formula and the Model Garden's numbers."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from official_lite.modeling.distributed_gradients import make_distributed
from official_lite.modeling.optimization.adamw import AdamWeightDecay
from tests import rounding
from tests.modeling.conftest import ADAM_ERROR, ROUNDINGS

# Arguments, and what the Model Garden's class of the same name makes of them.
GOLDEN = [
    (
        {"weight_decay_rate": 0.2, "exclude_from_weight_decay": ["bias"]},
        [0.6605611, -1.6017603, 2.5429471, 0.1899643, 0.2094985, 0.0405024],
    ),
    (
        {
            "weight_decay_rate": 0.2,
            "include_in_weight_decay": ["bias"],
            "exclude_from_weight_decay": ["bias", "kernel"],
            "gradient_clip_norm": 0.0,
        },
        [0.7076834, -1.7076871, 2.7076845, 0.207683, 0.1958874, 0.039411],
    ),
    (
        {"amsgrad": True, "gradient_clip_norm": 0.5},
        [0.7135726, -1.713587, 2.7135763, 0.2135708, 0.2095003, 0.0405015],
    ),
]


@pytest.mark.parametrize(("arguments", "expected"), GOLDEN)
def test_numbers_are_those_of_the_model_garden(
    three_updates: Callable[..., np.ndarray], arguments: dict[str, Any], expected: list[float]
) -> None:
    weights = three_updates(make_distributed(AdamWeightDecay(0.1, **arguments)))
    np.testing.assert_allclose(
        weights, expected, rtol=rounding.tolerance(roundings=ROUNDINGS), atol=3 * 0.1 * ADAM_ERROR
    )


def test_update_is_decay_and_then_adam(
    three_updates: Callable[..., np.ndarray], three_updates_in_numpy: Callable[..., np.ndarray]
) -> None:
    def step(w: np.ndarray, g: np.ndarray, t: int, state: dict[str, Any]) -> np.ndarray:
        m = state["m"] = 0.9 * state.get("m", 0.0) + 0.1 * g
        v = state["v"] = 0.999 * state.get("v", 0.0) + 0.001 * g * g
        rate = 0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        return w * (1 - 0.1 * 0.2) - rate * m / (np.sqrt(v) + 1e-7)

    optimizer = AdamWeightDecay(0.1, weight_decay_rate=0.2, gradient_clip_norm=0.0)
    expected = three_updates_in_numpy(step)
    rtol = rounding.tolerance(roundings=ROUNDINGS)
    atol = 3 * 0.1 * ADAM_ERROR
    np.testing.assert_allclose(three_updates(optimizer), expected, rtol=rtol, atol=atol)


def test_gradients_are_clipped_to_a_global_norm_of_one() -> None:
    weights = [keras.Variable([0.0]), keras.Variable([0.0])]
    optimizer = AdamWeightDecay(0.1, beta_1=0.0)
    optimizer.apply_gradients(zip([np.array([3.0]), np.array([4.0])], weights, strict=True))
    rounding.assert_close([m.numpy()[0] for m in optimizer._momentums], [0.6, 0.8], roundings=4)


def test_decay_is_chosen_by_path_on_every_replica(train_on: Callable[..., Any]) -> None:
    def optimizer() -> Any:
        return make_distributed(
            AdamWeightDecay(0.1, weight_decay_rate=0.5, exclude_from_weight_decay=["^bias$"])
        )

    one, two = (train_on(n, optimizer) for n in (1, 2))
    plain = train_on(1, lambda: make_distributed(AdamWeightDecay(0.1)))
    rounding.assert_close(two.weights, one.weights, roundings=ROUNDINGS)
    np.testing.assert_array_equal(one.bias.numpy(), plain.bias.numpy())
    assert np.all(one.kernel.numpy() < plain.kernel.numpy())


def test_config_is_complete() -> None:
    optimizer = AdamWeightDecay(
        0.25,
        weight_decay_rate=0.5,
        include_in_weight_decay=["a"],
        exclude_from_weight_decay=["b", "c"],
        gradient_clip_norm=2.0,
    )
    restored = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(restored) is AdamWeightDecay
    assert restored.get_config() == optimizer.get_config()
    assert restored.get_config()["exclude_from_weight_decay"] == ["b", "c"]
    assert restored.weight_decay == 0.5
