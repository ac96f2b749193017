"""Optimizers and schedules that are built from configs, and configs that are refused."""

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

import gin
import keras
import pytest
import tensorflow as tf

from official_lite import orbit
from official_lite.common import errors
from official_lite.modeling import distributed_gradients, optimization
from official_lite.modeling.optimization import ema_optimizer, optimizer_factory
from tests import rounding


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


def test_config_fields_become_optimizer_arguments() -> None:
    optimizer = _optimizer("adamw", {"weight_decay_rate": 0.5, "gradient_clip_norm": 2.0})
    assert (optimizer.weight_decay, optimizer.gradient_clip_norm) == (0.5, 2.0)
    assert _optimizer("adamw_experimental").global_clipnorm == 1.0
    assert _optimizer("sgd", {"momentum": 0.5, "nesterov": True}).nesterov
    assert float(_optimizer("sgd").learning_rate) == pytest.approx(0.1)


def test_setting_an_optimizer_config_field_without_effect_logs_a_warning(
    warnings: list[str],
) -> None:
    _optimizer("adam_experimental")
    assert warnings == []
    _optimizer("adam_experimental", {"jit_compile": True})
    (warning,) = warnings
    assert "optimizer.adam_experimental.jit_compile" in warning


@pytest.mark.parametrize("rate", [0.5, {"type": "power", "power": SCHEDULES["power"]}])
def test_sgd_decay_reduces_the_applied_and_the_reported_learning_rate_over_steps(
    warnings: list[str], rate: Any
) -> None:
    undecayed = _factory({"type": "sgd"}, rate)
    factory = _factory({"type": "sgd", "sgd": {"decay": 0.25}}, rate)
    before = undecayed.build_optimizer(undecayed.build_learning_rate())
    optimizer = factory.build_optimizer(factory.build_learning_rate())
    weight, expected = keras.Variable([0.0]), 0.0
    for step in range(3):
        before.iterations.assign(step)
        decayed = float(before.learning_rate) / (1 + 0.25 * step)
        reported = orbit.utils.current_learning_rate(optimizer, tf.Variable(step))
        rounding.assert_close(reported, decayed, roundings=2)
        optimizer.apply_gradients([(tf.constant([1.0]), weight)])
        expected -= decayed
    rounding.assert_close(weight.numpy(), [expected], roundings=3 * 3)
    assert warnings == []


def test_negative_decay_of_sgd_is_refused() -> None:
    with pytest.raises(errors.ConfigValueError, match=r"optimizer\.sgd\.decay` is -0\.5"):
        _optimizer("sgd", {"decay": -0.5})


def test_gradient_aggregator_and_transformers_run_before_clipping() -> None:
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


def test_optimizer_is_wrapped_in_a_moving_average_if_ema_is_configured() -> None:
    ema = {"average_decay": 0.5, "trainable_weights_only": False}
    optimizer = _factory({"type": "adam"}, ema=ema).build_optimizer(0.1)
    assert isinstance(optimizer, optimization.ExponentialMovingAverage)
    assert isinstance(optimizer.inner_optimizer, keras.optimizers.Adam)
    assert optimizer.get_config()["average_decay"] == 0.5


def test_optimizer_returned_by_the_postprocessor_replaces_the_built_optimizer() -> None:
    other = keras.optimizers.SGD()
    assert _optimizer("adam", postprocessor=lambda _: other) is other
    with pytest.raises(TypeError, match="Keras optimizer"):
        _optimizer("adam", postprocessor=lambda _: None)


def test_gin_binds_arguments_of_build_optimizer() -> None:
    gin.parse_config("build_optimizer.use_legacy_optimizer = False")
    assert isinstance(_optimizer("sgd"), keras.optimizers.SGD)
    with pytest.raises(ValueError, match="learning"):
        gin.parse_config("build_optimizer.learning = 1")


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_is_built_and_sets_the_learning_rate_of_updates(name: str) -> None:
    factory = _factory({"type": "sgd"}, {"type": name, name: SCHEDULES[name]})
    schedule = factory.build_learning_rate()
    optimizer = factory.build_optimizer(schedule)
    weight = keras.Variable([0.0])
    for _ in range(3):
        optimizer.apply_gradients([(tf.constant([1.0]), weight)])
    expected = -sum(float(schedule(step)) for step in range(3))
    # The roundings in three updates.
    rounding.assert_close(weight.numpy(), [expected], roundings=3)


# A schedule, its fields, and the words that the message must contain.
REFUSED_SCHEDULES = [
    *((name, {}, f"{name}.{next(iter(fields))}") for name, fields in SCHEDULES.items()),
    ("polynomial", {"initial_learning_rate": 1.0}, "learning_rate.polynomial.decay_steps"),
    ("cosine", {"initial_learning_rate": 1.0, "decay_steps": 0}, "cosine.decay_steps` is 0"),
    ("cosine", {"decay_ratio": 0.5}, "cosine.decay_ratio` is not converted to steps"),
    (None, {}, "learning_rate.type"),
]


@pytest.mark.parametrize(("name", "fields", "named"), REFUSED_SCHEDULES)
def test_incomplete_or_invalid_schedule_is_refused(
    name: str | None, fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(errors.ConfigValueError, match=re.escape(named)):
        _factory(
            {"type": "sgd"}, {"type": name, **({name: fields} if name else {})}
        ).build_learning_rate()


def test_missing_or_unknown_optimizer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(errors.ConfigValueError, match=r"optimizer\.type"):
        _factory({})
    with pytest.raises(errors.UnknownKeyError, match="lazy_rows"):
        _optimizer("lamb", {"lazy_rows": True})
    table = {"lambda": keras.optimizers.Lamb}
    monkeypatch.setattr(optimizer_factory, "OPTIMIZERS_CLS", table)
    with pytest.raises(errors.UnknownNameError, match="Did you mean `lambda`"):
        _optimizer("lamb")


@pytest.mark.parametrize("name", ["linear", "polynomial"])
def test_warmup_precedes_a_constant_learning_rate(name: str) -> None:
    warmup = {"type": name, name: {"warmup_steps": 4}}
    schedule = _factory({"type": "sgd"}, warmup=warmup).build_learning_rate()
    assert [float(schedule(t)) for t in (2, 4, 9)] == pytest.approx([0.05, 0.1, 0.1])
    with pytest.raises(errors.ConfigValueError, match=rf"warmup\.{name}\.warmup_steps"):
        _factory({"type": "sgd"}, warmup={"type": name}).build_learning_rate()


@dataclasses.dataclass
class OwnConfig(optimization.BaseOptimizerConfig):
    name: str = "own"
    rho: float = 0.9
    decay: float = 0.0


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
def test_registered_optimizer_is_built_and_its_name_cannot_be_registered_again() -> None:
    params = {"optimizer": {"type": "own", "own": {"rho": 0.5}}}
    config = OwnOptimizationConfig({**params, "learning_rate": {"type": "constant"}})
    optimizer = optimization.OptimizerFactory(config).build_optimizer(0.1)
    assert isinstance(optimizer, keras.optimizers.Adadelta)
    assert optimizer.rho == 0.5
    with pytest.raises(errors.ConfigValueError, match="own already registered as"):
        optimization.register_optimizer_cls("own", keras.optimizers.Adadelta)


def test_built_optimizer_is_restored_from_a_checkpoint(tmp_path: Any) -> None:
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


@pytest.mark.parametrize("name", ["adamw", "rmsprop"])
def test_optimizer_uses_lazy_rows_only_if_lazy_rows_is_true_in_its_config(name: str) -> None:
    assert not distributed_gradients.has_lazy_rows(_optimizer(name))
    assert distributed_gradients.has_lazy_rows(_optimizer(name, {"lazy_rows": True}))


# Tests of `prepare_optimizer`.


def _dense_model() -> keras.Model:
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


def test_prepare_optimizer_builds_the_optimizer_and_makes_it_distributed() -> None:
    optimizer = keras.optimizers.Adam()
    assert optimizer_factory.prepare_optimizer(optimizer, _dense_model()) is optimizer
    assert optimizer.built
    assert isinstance(optimizer, distributed_gradients.DistributedOptimizer)
    average = ema_optimizer.ExponentialMovingAverage(keras.optimizers.SGD())
    assert optimizer_factory.prepare_optimizer(average, _dense_model()).has_shadow_copy
    assert optimizer_factory.prepare_optimizer(None, _dense_model()) is None


def _shape_behind(handle: tf.Tensor) -> list[int]:
    return [dim.size for dim in handle._handle_data.shape_and_type[0].shape.dim]


def _lazy(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    return distributed_gradients.make_distributed(optimizer, lazy_rows=True)


@pytest.mark.parametrize(
    "optimizer_fn",
    [
        lambda: keras.optimizers.SGD(0.1, global_clipnorm=1.0),
        lambda: keras.optimizers.Adagrad(0.1, clipnorm=1.0),
        lambda: _lazy(optimization.AdamWeightDecay(weight_decay_rate=0.1)),
        lambda: _lazy(keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.1)),
        lambda: _lazy(keras.optimizers.RMSprop(0.1, centered=True, momentum=0.9)),
    ],
)
def test_training_step_reads_and_writes_only_the_looked_up_rows_of_an_embedding_table(
    optimizer_fn: Callable[[], keras.optimizers.Optimizer],
) -> None:
    rows = 7919
    model = keras.Sequential([keras.Input((3,)), keras.layers.Embedding(rows, 2)])
    optimizer = optimizer_factory.prepare_optimizer(optimizer_fn(), model)

    @tf.function
    def step(ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(ids) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    graph = step.get_concrete_function(tf.zeros([4, 3], tf.int32)).graph
    handles = [inner for outer, inner in graph.captures if rows in _shape_behind(outer)]
    assert handles
    users = {op.type for handle in handles for op in handle.consumers()}
    assert users == {"ResourceGather", "ResourceScatterUpdate"}


def test_moving_average_over_a_large_embedding_table_logs_a_warning(warnings: list[str]) -> None:
    for rows in (10, 2**18):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Embedding(rows, 16)])
        average = ema_optimizer.ExponentialMovingAverage(keras.optimizers.Adagrad())
        optimizer_factory.prepare_optimizer(average, model)
    (message,) = warnings
    assert "optimizer_config.ema" in message


@pytest.mark.parametrize(
    ("optimizer_fn", "expected"),
    [
        (keras.optimizers.Adagrad, True),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), True),
        (keras.optimizers.Adam, False),
        (lambda: _lazy(keras.optimizers.Adam()), True),
    ],
)
def test_model_reads_single_embedding_rows_only_if_its_optimizer_updates_rows(
    optimizer_fn: Callable[[], keras.optimizers.Optimizer], expected: bool
) -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Embedding(4, 2)])
    optimizer_factory.prepare_optimizer(optimizer_fn(), model)
    assert ("call" in vars(model.layers[0])) == expected
