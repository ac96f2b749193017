"""Every optimizer that a config can name: its updates, replicas, and serialization."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.modeling import distributed_gradients, hyperparams, optimization
from official_lite.modeling.optimization import adamw, lamb, optimizer_factory
from tests import rounding
from tests.modeling.conftest import ADAM_ERROR, ROUNDINGS

# The class of each optimizer, and values of its config that differ from the defaults.
OPTIMIZERS: dict[str, tuple[type, dict[str, Any]]] = {
    "sgd": (keras.optimizers.SGD, {"momentum": 0.9, "nesterov": True, "global_clipnorm": 1.0}),
    "sgd_experimental": (keras.optimizers.SGD, {}),
    "adam": (keras.optimizers.Adam, {"clipvalue": 0.5}),
    "adam_experimental": (keras.optimizers.Adam, {}),
    "adamw": (
        optimization.AdamWeightDecay,
        {"weight_decay_rate": 0.5, "exclude_from_weight_decay": ["^bias$"]},
    ),
    "adamw_experimental": (keras.optimizers.AdamW, {"weight_decay": 0.1}),
    "lamb": (
        optimization.LAMB,
        {"weight_decay_rate": 0.2, "exclude_from_layer_adaptation": ["bias"], "clipnorm": 1.0},
    ),
    "rmsprop": (keras.optimizers.RMSprop, {}),
    "lars": (
        optimization.LARS,
        {"eeta": 0.1, "weight_decay_rate": 0.2, "classic_momentum": False, "clipnorm": 1.0},
    ),
    "adagrad": (keras.optimizers.Adagrad, {}),
    "adafactor": (keras.optimizers.Adafactor, {"clipnorm": 1.0}),
    "adafactor_keras": (keras.optimizers.Adafactor, {}),
    "lion": (keras.optimizers.Lion, {"weight_decay": 0.1, "clipnorm": 1.0}),
    "muon": (keras.optimizers.Muon, {"clipnorm": 1.0}),
    "nadam": (keras.optimizers.Nadam, {}),
    "adamax": (keras.optimizers.Adamax, {}),
    "ftrl": (keras.optimizers.Ftrl, {}),
    "adadelta": (keras.optimizers.Adadelta, {}),
    "schedule_free_adamw": (adamw.ScheduleFreeAdamW, {}),
}


def _built(name: str, fields: dict[str, Any] | None = None) -> Any:
    params = {
        "optimizer": {"type": name, name: OPTIMIZERS[name][1] if fields is None else fields},
        "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.1}},
    }
    factory = optimization.OptimizerFactory(optimization.OptimizationConfig(params))
    return factory.build_optimizer(factory.build_learning_rate())


def test_every_optimizer_that_a_config_can_name_is_tested() -> None:
    fields = set(optimization.OptimizerConfig.__dataclass_fields__) - {"type"}
    fields -= set(hyperparams.Config.__dataclass_fields__)
    assert set(OPTIMIZERS) == fields == set(optimizer_factory.OPTIMIZERS_CLS)


@pytest.mark.sample(11)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_two_replicas_update_like_one_replica_on_the_whole_batch(
    name: str, train_on: Callable[..., Any]
) -> None:
    one, two = (train_on(n, lambda: _built(name)) for n in (1, 2))
    assert isinstance(one.optimizer, OPTIMIZERS[name][0])
    assert isinstance(one.optimizer, distributed_gradients.DistributedOptimizer)
    rounding.assert_close(two.weights, one.weights, roundings=ROUNDINGS)
    assert np.all(np.isfinite(one.weights))
    assert np.all(one.weights != [1.0, 2.0, 3.0, 4.0, 0.5, -0.5])
    assert two.optimizer.iterations.numpy() == one.optimizer.iterations.numpy() == 4


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_serialized_optimizer_is_restored_with_all_its_arguments(name: str) -> None:
    optimizer = _built(name)
    restored = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(restored) is OPTIMIZERS[name][0]
    assert restored.get_config() == optimizer.get_config()
    for argument, value in OPTIMIZERS[name][1].items():
        assert restored.get_config()[argument] == value


# Three updates of a kernel and a bias, with gradients that grow and shrink.

KERNEL = np.array([[1.0, -2.0], [3.0, 0.5]], np.float32)
BIAS = np.array([0.5, -0.25], np.float32)
KERNEL_GRADIENT = np.array([[0.3, -0.1], [0.2, 0.4]], np.float32)
BIAS_GRADIENT = np.array([1.0, -2.0], np.float32)


def _train(optimizer: Any) -> np.ndarray:
    """Return the updated kernel and bias in one flat array."""
    kernel, bias = keras.Variable(KERNEL, name="kernel"), keras.Variable(BIAS, name="bias")
    for step in range(1, 4):
        gradients = [KERNEL_GRADIENT * step, BIAS_GRADIENT / step]
        optimizer.apply_gradients(zip(gradients, [kernel, bias], strict=True))
    return np.concatenate([kernel.numpy().ravel(), bias.numpy()])


Rule = Callable[[np.ndarray, np.ndarray, int, dict[str, Any]], np.ndarray]


def _train_in_numpy(rule: Rule) -> np.ndarray:
    """Return the weights after the updates of `rule(weights, gradient, step, state) -> weights`."""
    kernel_state: dict[str, Any] = {}
    bias_state: dict[str, Any] = {}
    kernel, bias = KERNEL, BIAS
    for step in range(1, 4):
        kernel = rule(kernel, KERNEL_GRADIENT * step, step, kernel_state)
        bias = rule(bias, BIAS_GRADIENT / step, step, bias_state)
    return np.concatenate([kernel.ravel(), bias])


def _assert_close(weights: np.ndarray, expected: Any) -> None:
    np.testing.assert_allclose(
        weights, expected, rtol=rounding.tolerance(roundings=ROUNDINGS), atol=3 * 0.1 * ADAM_ERROR
    )


def _moments(g: np.ndarray, state: dict[str, Any]) -> tuple[Any, Any]:
    state["m"] = 0.9 * state.get("m", 0.0) + 0.1 * g
    state["v"] = 0.999 * state.get("v", 0.0) + 0.001 * g * g
    return state["m"], state["v"]


def _adamw(w: np.ndarray, g: np.ndarray, t: int, state: dict[str, Any]) -> np.ndarray:
    m, v = _moments(g, state)
    rate = 0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
    return w * (1 - 0.1 * 0.2) - rate * m / (np.sqrt(v) + 1e-7)


def _lamb(w: np.ndarray, g: np.ndarray, t: int, state: dict[str, Any]) -> np.ndarray:
    m, v = _moments(g, state)
    update = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-6) + 0.2 * w
    return w - 0.1 * np.linalg.norm(w) / np.linalg.norm(update) * update


def _lars(w: np.ndarray, g: np.ndarray, t: int, state: dict[str, Any]) -> np.ndarray:
    g = g + 0.2 * w
    rate = 0.5 * 0.1 * np.linalg.norm(w) / np.linalg.norm(g)
    state["v"] = 0.9 * state.get("v", 0.0) + rate * g
    return w - state["v"]


def _schedule_free(beta_1: float) -> Rule:
    def rule(w: np.ndarray, g: np.ndarray, t: int, state: dict[str, Any]) -> np.ndarray:
        z, average = state.get("z", w), state.get("average", w)
        _, v = _moments(g, state)
        z = state["z"] = z - 0.1 * min(t / 2, 1.0) * g / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        average = state["average"] = average + (z - average) / t
        return (1 - beta_1) * z + beta_1 * average

    return rule


@pytest.mark.parametrize(
    ("optimizer", "rule"),
    [
        (
            lambda: optimization.AdamWeightDecay(
                0.1, weight_decay_rate=0.2, gradient_clip_norm=0.0
            ),
            _adamw,
        ),
        (lambda: optimization.LAMB(0.1, weight_decay_rate=0.2), _lamb),
        (lambda: optimization.LARS(0.5, eeta=0.1, weight_decay_rate=0.2), _lars),
        (lambda: adamw.ScheduleFreeAdamW(0.1, warmup_steps=2), _schedule_free(0.9)),
        (lambda: adamw.ScheduleFreeAdamW(0.1, beta_1=0.3, warmup_steps=2), _schedule_free(0.3)),
    ],
)
def test_optimizer_update_follows_its_formula(optimizer: Callable[[], Any], rule: Rule) -> None:
    _assert_close(_train(optimizer()), _train_in_numpy(rule))


@pytest.mark.parametrize(
    ("optimizer", "keras_own"),
    [
        (lambda: optimization.LAMB(0.1), lambda: keras.optimizers.Lamb(0.1)),
        (
            lambda: optimization.LARS(0.1, nesterov=True, exclude_from_layer_adaptation=["."]),
            lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
        ),
    ],
)
def test_lamb_matches_keras_lamb_and_lars_without_layer_adaptation_matches_keras_sgd(
    optimizer: Callable[[], Any], keras_own: Callable[[], Any]
) -> None:
    _assert_close(_train(optimizer()), _train(keras_own()))


# The weights of the Model Garden's classes of the same names after the same updates.
GARDEN: list[tuple[Callable[..., Any], dict[str, Any], list[float]]] = [
    (
        optimization.AdamWeightDecay,
        {"weight_decay_rate": 0.2, "exclude_from_weight_decay": ["bias"]},
        [0.6605611, -1.6017603, 2.5429471, 0.1899643, 0.2094985, 0.0405024],
    ),
    (
        optimization.AdamWeightDecay,
        {
            "weight_decay_rate": 0.2,
            "include_in_weight_decay": ["bias"],
            "exclude_from_weight_decay": ["bias", "kernel"],
            "gradient_clip_norm": 0.0,
        },
        [0.7076834, -1.7076871, 2.7076845, 0.207683, 0.1958874, 0.039411],
    ),
    (
        optimization.AdamWeightDecay,
        {"amsgrad": True, "gradient_clip_norm": 0.5},
        [0.7135726, -1.713587, 2.7135763, 0.2135708, 0.2095003, 0.0405015],
    ),
    (
        optimization.LAMB,
        {"weight_decay_rate": 0.2, "exclude_from_weight_decay": ["bias"]},
        [0.5384735, -1.4598974, 2.3813181, 0.0777621, 0.2194666, 0.0305336],
    ),
    (
        optimization.LAMB,
        {
            "weight_decay_rate": 0.2,
            "exclude_from_weight_decay": ["bias"],
            "exclude_from_layer_adaptation": ["kernel"],
        },
        [0.6547648, -1.595958, 2.537149, 0.1841686, 0.3922016, -0.1422015],
    ),
    (
        optimization.LARS,
        {"weight_decay_rate": 0.2, "exclude_from_weight_decay": ["bias"]},
        [0.5366967, -1.6095545, 2.3607156, 0.0002676, -1.4966667, 3.7433333],
    ),
    (
        optimization.LARS,
        {"weight_decay_rate": 0.2, "nesterov": True},
        [0.3556055, -1.4693292, 2.1281822, -0.2012564, 0.3970664, -0.0670281],
    ),
    (
        optimization.LARS,
        {
            "weight_decay_rate": 0.2,
            "classic_momentum": False,
            "exclude_from_layer_adaptation": ["bias"],
        },
        [0.7547547, -1.7900436, 2.657012, 0.2371102, -1.5436667, 3.4518332],
    ),
    (
        optimization.LARS,
        {"classic_momentum": False, "nesterov": True},
        [0.6991061, -1.8997021, 2.7994041, 0.0988081, 0.4639509, -0.1779019],
    ),
]


@pytest.mark.parametrize(("optimizer_cls", "arguments", "expected"), GARDEN)
def test_updated_weights_match_those_of_the_model_garden(
    optimizer_cls: Callable[..., Any], arguments: dict[str, Any], expected: list[float]
) -> None:
    is_lars = optimizer_cls is optimization.LARS
    optimizer = optimizer_cls(
        **({"learning_rate": 0.5, "eeta": 0.1} if is_lars else {"learning_rate": 0.1}), **arguments
    )
    _assert_close(_train(distributed_gradients.make_distributed(optimizer)), expected)


def test_adamw_clips_gradients_to_a_global_norm_of_one() -> None:
    weights = [keras.Variable([0.0]), keras.Variable([0.0])]
    optimizer = optimization.AdamWeightDecay(0.1, beta_1=0.0)
    optimizer.apply_gradients(zip([np.array([3.0]), np.array([4.0])], weights, strict=True))
    rounding.assert_close([m.numpy()[0] for m in optimizer._momentums], [0.6, 0.8], roundings=4)


def test_weight_decay_skips_variables_excluded_by_path_on_every_replica(
    train_on: Callable[..., Any],
) -> None:
    decaying = train_on(2, lambda: _built("adamw"))
    plain = train_on(2, lambda: _built("adamw", {}))
    np.testing.assert_array_equal(decaying.bias.numpy(), plain.bias.numpy())
    assert np.all(decaying.kernel.numpy() < plain.kernel.numpy())


@pytest.mark.parametrize(
    ("weights", "update", "expected"),
    [([3.0, 4.0], [0.0, 2.0], 1.25), ([0.0, 0.0], [1.0, 1.0], 1.0), ([3.0, 4.0], [0.0, 0.0], 1.0)],
)
def test_trust_ratio_is_one_if_either_norm_is_zero(
    weights: list[float], update: list[float], expected: float
) -> None:
    ratio = lamb.trust_ratio(tf.constant(weights), tf.constant(update), coefficient=0.5)
    assert float(ratio) == expected


def test_weights_loaded_after_building_the_optimizer_train_like_initial_weights() -> None:
    def update(weight: keras.Variable, optimizer: Any) -> np.ndarray:
        optimizer.apply_gradients([(np.array([1.0, -1.0], np.float32), weight)])
        return weight.numpy()

    weight, optimizer = keras.Variable([0.0, 0.0]), adamw.ScheduleFreeAdamW(0.1)
    optimizer.build([weight])
    weight.assign([4.0, -1.0])
    optimizer_factory.follow_weights(optimizer)
    expected = update(keras.Variable([4.0, -1.0]), adamw.ScheduleFreeAdamW(0.1))
    np.testing.assert_array_equal(update(weight, optimizer), expected)


@pytest.mark.parametrize(
    ("patterns", "is_match"),
    [
        (["layer_norm"], True),
        (["^gamma$"], True),
        (["kernel", "gamma"], True),
        (["encoder/.*/gamma"], True),
        (["beta", "bias"], False),
        (None, False),
        # Patterns for Keras 2 variable names, which end in `:0`.
        (".*(gamma|kernel):0$", True),
        (["bias:0", "gamma:0"], True),
        ("bias:0", False),
    ],
)
def test_weight_decay_patterns_are_searched_in_the_path_and_name_of_a_variable(
    patterns: Any, is_match: bool
) -> None:
    with keras.name_scope("encoder"), keras.name_scope("layer_normalization"):
        variable = keras.Variable([1.0], name="gamma")
    assert adamw.matches_any(variable, patterns) is is_match
    raw = tf.Variable([1.0], name="dense/bias")
    assert adamw.matches_any(raw, ["bias$"])
    assert not adamw.matches_any(raw, ["0"])


def test_adafactor_config_fields_become_keras_arguments_or_raise_if_unsupported() -> None:
    optimizer = _built("adafactor", {"decay_rate": 0.7, "clipping_threshold": 2.0})
    assert (optimizer.beta_2_decay, optimizer.clip_threshold) == (-0.7, 2.0)
    assert not optimizer.relative_step
    with pytest.raises(errors.ConfigValueError, match=r"optimizer\.adafactor\.beta1"):
        _built("adafactor", {"beta1": 0.9})


@pytest.mark.parametrize(
    "optimizer_cls", [lamb.LAMB, adamw.ScheduleFreeAdamW, keras.optimizers.Adam]
)
def test_bfloat16_weights_move_like_float32_weights_and_stay_finite(optimizer_cls: Any) -> None:
    weights = []
    for dtype in ("float32", "bfloat16"):
        weight = keras.Variable([1.0, 0.5], dtype=dtype)
        optimizer = distributed_gradients.make_distributed(optimizer_cls(0.1))
        for _ in range(3):
            # A gradient of 0 must not make a weight NaN.
            optimizer.apply_gradients([(tf.constant([0.5, 0.0], dtype), weight)])
        weights.append(np.asarray(weight.numpy(), np.float32))
    assert weights[0][0] < 0.9
    np.testing.assert_allclose(weights[1], weights[0], atol=0.02)
