"""What is built from a config, and what is refused."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import gin
import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import logging

from official_lite.common import errors
from official_lite.modeling import distributed_gradients, hyperparams, optimization
from official_lite.modeling.optimization import optimizer_factory
from tests import rounding
from tests.modeling.conftest import ROUNDINGS

BUILT = {
    "sgd": keras.optimizers.SGD,
    "sgd_experimental": keras.optimizers.SGD,
    "adam": keras.optimizers.Adam,
    "adam_experimental": keras.optimizers.Adam,
    "adamw": optimization.AdamWeightDecay,
    "adamw_experimental": keras.optimizers.AdamW,
    "lamb": optimization.LAMB,
    "rmsprop": keras.optimizers.RMSprop,
    "lars": optimization.LARS,
    "adagrad": keras.optimizers.Adagrad,
    "adafactor": keras.optimizers.Adafactor,
    "adafactor_keras": keras.optimizers.Adafactor,
    "lion": keras.optimizers.Lion,
    "muon": keras.optimizers.Muon,
    "nadam": keras.optimizers.Nadam,
    "adamax": keras.optimizers.Adamax,
    "ftrl": keras.optimizers.Ftrl,
    "adadelta": keras.optimizers.Adadelta,
    "schedule_free_adamw": keras.optimizers.ScheduleFreeAdamW,
}


def _factory(
    optimizer: dict[str, Any], learning_rate: Any = 0.1, **rest: Any
) -> optimization.OptimizerFactory:
    if not isinstance(learning_rate, dict):
        constant = {"learning_rate": learning_rate}
        learning_rate = {"type": "constant", "constant": constant}
    params = {"optimizer": optimizer, "learning_rate": learning_rate, **rest}
    return optimization.OptimizerFactory(optimization.OptimizationConfig(params))


def _optimizer(name: str, fields: dict[str, Any] | None = None, **kwargs: Any) -> Any:
    factory = _factory({"type": name, name: fields or {}})
    return factory.build_optimizer(factory.build_learning_rate(), **kwargs)


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    messages: list[str] = []
    monkeypatch.setattr(logging, "warning", lambda text, *args: messages.append(text % args))
    return messages


def test_every_optimizer_of_the_config_is_tested() -> None:
    fields = set(optimization.OptimizerConfig.__dataclass_fields__) - {"type"}
    fields -= set(hyperparams.Config.__dataclass_fields__)
    assert set(BUILT) == fields == set(optimizer_factory.OPTIMIZERS_CLS)


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", BUILT)
def test_every_optimizer_is_built_and_updates(name: str, train_on: Callable[..., Any]) -> None:
    optimizer = _optimizer(name)
    assert isinstance(optimizer, BUILT[name])
    assert isinstance(optimizer, distributed_gradients.DistributedOptimizer)
    trained = train_on(1, lambda: optimizer)
    assert np.all(np.isfinite(trained.weights))
    assert np.all(trained.weights != [1.0, 2.0, 3.0, 4.0, 0.5, -0.5])


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["sgd", "adamw", "lamb", "lars", "muon", "lion", "adafactor"])
def test_built_optimizer_is_the_same_on_two_replicas(
    name: str, train_on: Callable[..., Any]
) -> None:
    one, two = (train_on(n, lambda: _optimizer(name, {"clipnorm": 1.0})) for n in (1, 2))
    rounding.assert_close(two.weights, one.weights, roundings=ROUNDINGS)


def test_fields_reach_the_optimizer() -> None:
    optimizer = _optimizer("adamw", {"weight_decay_rate": 0.5, "gradient_clip_norm": 2.0})
    assert (optimizer.weight_decay, optimizer.gradient_clip_norm) == (0.5, 2.0)
    assert _optimizer("adamw_experimental").global_clipnorm == 1.0
    assert _optimizer("sgd", {"momentum": 0.5, "nesterov": True}).nesterov
    assert float(_optimizer("sgd").learning_rate) == pytest.approx(0.1)


def test_adafactor_takes_the_names_of_its_authors() -> None:
    optimizer = _optimizer("adafactor", {"decay_rate": 0.7, "clipping_threshold": 2.0})
    assert (optimizer.beta_2_decay, optimizer.clip_threshold) == (-0.7, 2.0)
    assert not optimizer.relative_step
    with pytest.raises(errors.ConfigValueError, match=r"optimizer\.adafactor\.beta1"):
        _optimizer("adafactor", {"beta1": 0.9})


@pytest.mark.parametrize(
    ("name", "fields"),
    [("sgd", {"decay": 0.5}), ("adam_experimental", {"jit_compile": True})],
)
def test_dead_field_is_warned_of_once_it_is_set(
    warnings: list[str], name: str, fields: dict[str, Any]
) -> None:
    _optimizer(name)
    assert warnings == []
    _optimizer(name, fields)
    (warning,) = warnings
    assert f"optimizer.{name}.{next(iter(fields))}" in warning


@pytest.mark.parametrize(
    ("clip", "expected"),
    [
        ({}, [0.9, 1.9, 1.0, 1.0]),
        ({"clipvalue": 1.0}, [0.9, 1.9, 2.0, 3.0]),
        ({"clipnorm": 1.0}, [0.9, 1.9, 2.4452999, 3.1679497]),
        ({"global_clipnorm": 1.0}, [0.97229, 1.97229, 2.44572, 3.16859]),
    ],
)
def test_gradients_are_clipped(clip: dict[str, float], expected: list[float]) -> None:
    variables = [keras.Variable([1.0, 2.0]), keras.Variable([3.0, 4.0])]
    factory = _factory({"type": "sgd", "sgd": clip}, learning_rate=1.0)
    optimizer = factory.build_optimizer(factory.build_learning_rate())
    gradients = [tf.constant([0.1, 0.1]), tf.constant([2.0, 3.0])]
    optimizer.apply_gradients(zip(gradients, variables, strict=True))
    actual = np.concatenate([variable.numpy() for variable in variables])
    np.testing.assert_allclose(actual, expected, atol=1e-4)


def test_aggregator_and_transformers_come_before_the_clipping() -> None:
    seen = []

    def aggregate(pairs: list[Any]) -> list[Any]:
        seen.append("aggregate")
        return [(2.0 * gradient, variable) for gradient, variable in pairs]

    def transform(pairs: list[Any]) -> Iterator[Any]:
        seen.append("transform")
        return ((gradient + 1.0, variable) for gradient, variable in pairs)

    optimizer = _optimizer(
        "sgd",
        {"clipvalue": 6.0},
        gradient_aggregator=aggregate,
        gradient_transformers=[transform],
    )
    weights = [keras.Variable([1.0]), keras.Variable([1.0])]
    gradients = [tf.constant([2.0]), tf.constant([50.0])]
    optimizer.apply_gradients(zip(gradients, weights, strict=True))
    rounding.assert_close([w.numpy()[0] for w in weights], [0.5, 0.4], roundings=4)
    assert seen == ["aggregate", "transform"]


def test_average_wraps_the_optimizer() -> None:
    ema = {"average_decay": 0.5, "trainable_weights_only": False}
    optimizer = _factory({"type": "adam"}, ema=ema).build_optimizer(0.1)
    assert isinstance(optimizer, optimization.ExponentialMovingAverage)
    assert isinstance(optimizer.inner_optimizer, keras.optimizers.Adam)
    assert optimizer.get_config()["average_decay"] == 0.5


def test_postprocessor_has_the_last_word_if_it_returns_an_optimizer() -> None:
    other = keras.optimizers.SGD()
    assert _optimizer("adam", postprocessor=lambda _: other) is other
    with pytest.raises(TypeError, match="Keras optimizer"):
        _optimizer("adam", postprocessor=lambda _: None)


def test_gin_binds_the_arguments() -> None:
    gin.parse_config("build_optimizer.use_legacy_optimizer = False")
    assert isinstance(_optimizer("sgd"), keras.optimizers.SGD)
    with pytest.raises(ValueError, match="learning"):
        gin.parse_config("build_optimizer.learning = 1")


@pytest.mark.parametrize("name", ["optimizer", "learning_rate"])
def test_type_must_be_set(name: str) -> None:
    params = {"optimizer": {"type": "sgd"}, "learning_rate": {"type": "constant"}}
    del params[name]
    with pytest.raises(errors.ConfigValueError, match=rf"{name}\.type"):
        optimization.OptimizerFactory(optimization.OptimizationConfig(params))


SCHEDULES = {
    "stepwise": {"boundaries": [5], "values": [1.0, 0.5]},
    "exponential": {"initial_learning_rate": 1.0, "decay_steps": 10, "decay_rate": 0.5},
    "polynomial": {"initial_learning_rate": 1.0, "decay_steps": 10},
    "cosine": {"initial_learning_rate": 1.0, "decay_steps": 10},
    "power": {"initial_learning_rate": 1.0},
    "power_linear": {"initial_learning_rate": 1.0, "total_decay_steps": 10},
    "power_with_offset": {"initial_learning_rate": 1.0},
    "step_cosine_with_offset": {"boundaries": [0, 5], "values": [1.0, 0.5]},
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_is_built_and_drives_an_optimizer(name: str) -> None:
    factory = _factory({"type": "sgd"}, {"type": name, name: SCHEDULES[name]})
    schedule = factory.build_learning_rate()
    optimizer = factory.build_optimizer(schedule)
    weight = keras.Variable([0.0])
    for _ in range(3):
        optimizer.apply_gradients([(tf.constant([1.0]), weight)])
    expected = -sum(float(schedule(step)) for step in range(3))
    # Three updates.
    rounding.assert_close(weight.numpy(), [expected], roundings=3)


@pytest.mark.parametrize(
    ("name", "field"), [(name, field) for name, fields in SCHEDULES.items() for field in fields]
)
def test_schedule_with_a_field_missing_names_it(name: str, field: str) -> None:
    fields = {key: value for key, value in SCHEDULES[name].items() if key != field}
    factory = _factory({"type": "sgd"}, {"type": name, name: fields})
    with pytest.raises(errors.ConfigValueError, match=rf"learning_rate\.{name}\.{field}"):
        factory.build_learning_rate()


def test_schedule_over_no_steps_is_refused() -> None:
    fields = {"initial_learning_rate": 1.0, "decay_steps": 0}
    factory = _factory({"type": "sgd"}, {"type": "cosine", "cosine": fields})
    with pytest.raises(errors.ConfigValueError, match=r"cosine\.decay_steps` is 0"):
        factory.build_learning_rate()


@pytest.mark.parametrize("name", ["linear", "polynomial"])
def test_warmup_goes_before_a_constant(name: str) -> None:
    warmup = {"type": name, name: {"warmup_steps": 4}}
    schedule = _factory({"type": "sgd"}, warmup=warmup).build_learning_rate()
    assert [float(schedule(t)) for t in (2, 4, 9)] == pytest.approx([0.05, 0.1, 0.1])
    with pytest.raises(errors.ConfigValueError, match=rf"warmup\.{name}\.warmup_steps"):
        _factory({"type": "sgd"}, warmup={"type": name}).build_learning_rate()


@dataclasses.dataclass
class OwnConfig(optimization.BaseOptimizerConfig):
    name: str = "own"
    rho: float = 0.9


@dataclasses.dataclass
class OwnOptimizerConfig(optimization.OptimizerConfig):
    own: OwnConfig = dataclasses.field(default_factory=OwnConfig)


@dataclasses.dataclass
class OwnOptimizationConfig(optimization.OptimizationConfig):
    optimizer: OwnOptimizerConfig = dataclasses.field(default_factory=OwnOptimizerConfig)


@pytest.fixture
def own_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    table = dict(optimizer_factory.OPTIMIZERS_CLS)
    monkeypatch.setattr(optimizer_factory, "OPTIMIZERS_CLS", table)
    optimization.register_optimizer_cls("own", keras.optimizers.Adadelta)


@pytest.mark.usefixtures("own_optimizer")
def test_registered_optimizer_is_built_and_its_name_is_taken() -> None:
    params = {"optimizer": {"type": "own", "own": {"rho": 0.5}}}
    config = OwnOptimizationConfig({**params, "learning_rate": {"type": "constant"}})
    optimizer = optimization.OptimizerFactory(config).build_optimizer(0.1)
    assert isinstance(optimizer, keras.optimizers.Adadelta)
    assert optimizer.rho == 0.5
    with pytest.raises(errors.ConfigValueError, match="own already registered as"):
        optimization.register_optimizer_cls("own", keras.optimizers.Adadelta)


def test_unregistered_name_is_answered_with_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"lambda": keras.optimizers.Lamb}
    monkeypatch.setattr(optimizer_factory, "OPTIMIZERS_CLS", table)
    with pytest.raises(errors.UnknownNameError, match="Did you mean `lambda`"):
        _optimizer("lamb")


def test_built_optimizer_survives_a_checkpoint(tmp_path: Any) -> None:
    optimizer = _optimizer(
        "adamw",
        {"exclude_from_weight_decay": ["bias"]},
        gradient_transformers=[lambda pairs: pairs],
    )
    weight = keras.Variable([1.0])
    optimizer.apply_gradients([(tf.constant([1.0]), weight)])
    path = tf.train.Checkpoint(optimizer=optimizer).save(str(tmp_path / "ckpt"))
    fresh = _optimizer("adamw")
    fresh.build([weight])
    tf.train.Checkpoint(optimizer=fresh).restore(path).assert_consumed()
    assert fresh.iterations.numpy() == 1


def test_ratio_that_is_not_in_steps_yet_is_refused() -> None:
    config = optimization.OptimizationConfig(
        {
            "optimizer": {"type": "sgd"},
            "learning_rate": {"type": "cosine", "cosine": {"decay_ratio": 0.5}},
        }
    )
    with pytest.raises(errors.ConfigValueError, match="is not converted to steps yet"):
        optimization.OptimizerFactory(config).build_learning_rate()


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "rmsprop", "adagrad"])
def test_rows_are_lazy_only_where_the_config_says_so(name: str) -> None:
    assert not distributed_gradients.has_lazy_rows(_optimizer(name))
    assert distributed_gradients.has_lazy_rows(_optimizer(name, {"lazy_rows": True}))


def test_optimizer_that_has_no_lazy_rows_has_no_such_field() -> None:
    with pytest.raises(errors.UnknownKeyError, match="lazy_rows"):
        _optimizer("lamb", {"lazy_rows": True})
