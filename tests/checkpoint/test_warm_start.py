import functools
import logging
import os
import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.checkpoint import commit, model_state, warm_start
from official_lite.common import errors
from official_lite.modeling.optimization import ema_optimizer


class Net(keras.Model):
    """A backbone, a head, and blocks in a list, which TensorFlow's checkpoints omit."""

    def __init__(
        self, classes: int = 3, depth: int = 2, seed: int = 0, head_name: str = "head"
    ) -> None:
        super().__init__(name="net")
        keras.utils.set_random_seed(seed)
        self.backbone = keras.Sequential([keras.layers.Dense(4, name="stem")], name="trunk")
        self.blocks = [keras.layers.Dense(4, name=f"block{i}") for i in range(depth)]
        # A checkpoint identifies the head by its attribute name, not by its layer name.
        setattr(self, head_name, keras.layers.Dense(classes, name=head_name))
        self._head_name = head_name
        self(tf.zeros((1, 2)))
        for weight in self.weights:
            weight.assign(keras.random.normal(weight.shape))

    def call(self, x: Any) -> Any:
        x = self.backbone(x)
        for block in self.blocks:
            x = block(x)
        return getattr(self, self._head_name)(x)


def _save(path: Any, **items: Any) -> str:
    return tf.train.Checkpoint(**items).save(str(path / "ckpt"))


def _save_run(path: Any, model: keras.Model) -> str:
    """Save a checkpoint with the same items as a training run."""
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    items = {"model": model, "optimizer": optimizer, **model_state.hidden_items(model)}
    return _save(path, **items, **getattr(model, "checkpoint_items", {}))


def _equal(a: Any, b: Any) -> dict[str, bool]:
    """Return, by the path of each weight in `a`, whether the same weight in `b` is equal."""
    others = {weight.path: weight for weight in b.weights}
    return {
        w.path.removeprefix("net/"): bool(
            w.shape == others[w.path].shape and np.array_equal(w, others[w.path])
        )
        for w in a.weights
        if w.path in others
    }


def _adam(model: keras.Model, seed: int | None = None, cls: Any = keras.optimizers.Adam) -> Any:
    optimizer = cls()
    optimizer.build(model.trainable_variables)
    for number, variable in enumerate(optimizer.variables if seed else []):
        variable.assign(tf.cast(tf.fill(variable.shape, seed + number), variable.dtype))
    return optimizer


def _moments(optimizer: Any) -> dict[str, Any]:
    weights = optimizer._trainable_variables
    return {
        f"{weight.path}/{name}": slot.numpy()
        for name in ("_momentums", "_velocities")
        for weight, slot in zip(weights, getattr(optimizer, name), strict=True)
    }


@pytest.mark.parametrize("depths", [(2, 3), (3, 2)])
def test_optimizer_slots_follow_their_weights_into_a_deeper_or_shallower_model(
    tmp_path, depths: tuple[int, int]
) -> None:
    source, target = Net(depth=depths[0], seed=1), Net(depth=depths[1], seed=2, classes=5)
    adam = _adam(source, seed=10)
    items = {"model": source, "optimizer": adam, **model_state.hidden_items(source)}
    _save(tmp_path, **items)
    other = _adam(target)
    report = warm_start.load_optimizer(other, target, str(tmp_path), strict=False)
    saved, loaded = _moments(adam), _moments(other)
    is_new = {name: name not in saved or "head" in name for name in loaded}
    for name, value in loaded.items():
        np.testing.assert_array_equal(value, 0 if is_new[name] else saved[name], err_msg=name)
    text = str(report)
    assert f"{len(loaded) - sum(is_new.values())} variables matched" in text
    assert "net_head_kernel_momentum [4, 5] <- " in text
    if depths[1] > depths[0]:
        assert "net_block2_kernel_velocity [4, 4]" in text
    assert (report.unexpected != ()) == (depths[0] > depths[1])
    assert other.iterations == 0
    with pytest.raises(errors.CheckpointError, match="init_checkpoint_optimizer` to `none`"):
        warm_start.load_optimizer(other, target, str(tmp_path))


def test_only_optimizer_slots_of_the_requested_modules_are_loaded(tmp_path) -> None:
    source, target = Net(seed=1), Net(seed=2)
    adam, other = _adam(source, seed=10), _adam(target)
    _save(tmp_path, model=source, optimizer=adam, **model_state.hidden_items(source))
    report = warm_start.load_optimizer(
        other, target, str(tmp_path), modules="backbone", with_counters=True
    )
    assert report.is_complete
    assert other.iterations == adam.iterations
    assert float(other.learning_rate) != float(adam.learning_rate)
    saved = _moments(adam)
    for name, value in _moments(other).items():
        np.testing.assert_array_equal(value, saved[name] if "stem" in name else 0)


def _averaged(model: keras.Model) -> Any:
    optimizer = ema_optimizer.ExponentialMovingAverage(keras.optimizers.Adam())
    optimizer.shadow_copy(model)
    optimizer.build(model.trainable_variables)
    return optimizer


def _scaled(model: keras.Model) -> Any:
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    optimizer.build(model.trainable_variables)
    return optimizer


@pytest.mark.parametrize("makers", [(_averaged, _scaled), (_scaled, _averaged)])
def test_inner_optimizer_state_is_loaded_across_averaging_and_loss_scale_wrappers(
    tmp_path, makers
) -> None:
    source, target = Net(seed=1), Net(seed=2)
    saved, other = makers[0](source), makers[1](target)
    for number, variable in enumerate(saved.inner_optimizer.variables):
        variable.assign(tf.cast(tf.fill(variable.shape, 3 + number), variable.dtype))
    before = {v.path: v.numpy() for v in other._variables}
    _save(tmp_path, model=source, optimizer=saved, **model_state.hidden_items(source))
    warm_start.load_optimizer(other, target, str(tmp_path), with_counters=True)
    expected = _moments(saved.inner_optimizer)
    for name, value in _moments(other.inner_optimizer).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)
    assert other.inner_optimizer.iterations == saved.inner_optimizer.iterations == 3
    own = {v.path: v for v in other._variables if "average" in v.path or "scale" in v.name}
    assert own
    for path, variable in own.items():
        np.testing.assert_array_equal(variable, before[path], err_msg=path)


@pytest.mark.parametrize("is_described", [True, False])
def test_loading_the_state_of_a_different_optimizer_raises(tmp_path, is_described: bool) -> None:
    source, target = Net(seed=1), Net(seed=2)
    sgd = _adam(source, cls=lambda: keras.optimizers.SGD(momentum=0.9))
    path = _save(tmp_path, model=source, optimizer=sgd, **model_state.hidden_items(source))
    if is_described:
        commit.write(path, model_state.describe(source, sgd))
    told = "SGD.*Adam" if is_described else "slots of Adam"
    for strict in (True, False):
        with pytest.raises(errors.CheckpointError, match=told):
            warm_start.load_optimizer(_adam(target), target, str(tmp_path), strict=strict)
    _save(tmp_path / "weights", model=source)
    with pytest.raises(errors.CheckpointError, match="contains no optimizer"):
        warm_start.load_optimizer(_adam(target), target, str(tmp_path / "weights"))


@pytest.mark.parametrize("has_averages", [True, False])
def test_averages_are_loaded_only_from_an_optimizer_that_keeps_averages(
    tmp_path, has_averages: bool
) -> None:
    def create(*, use_ema: bool, momentum: float) -> Any:
        return keras.optimizers.SGD(use_ema=use_ema, momentum=momentum)

    source, target = Net(seed=1), Net(seed=2)
    make = functools.partial(create, use_ema=has_averages, momentum=0.0 if has_averages else 0.9)
    saved = _adam(source, seed=10, cls=make)
    _save(tmp_path, model=source, optimizer=saved, **model_state.hidden_items(source))
    other = _adam(target, cls=functools.partial(create, use_ema=True, momentum=0.0))
    ema_optimizer.evaluate_averages(other)
    before = [average.numpy() for average in other._model_variables_moving_average]
    expected = saved._model_variables_moving_average if has_averages else before
    warm_start.load_averages(other, target, str(tmp_path))
    for average, value in zip(other._model_variables_moving_average, expected, strict=True):
        np.testing.assert_array_equal(average, value)


def test_all_weights_are_loaded_from_a_checkpoint_prefix_file_or_directory(tmp_path) -> None:
    assert warm_start.find_checkpoint(str(tmp_path)) is None
    assert warm_start.find_checkpoint(str(tmp_path / "ckpt-7")) is None
    source, target = Net(seed=1), Net(seed=2)
    prefix = _save_run(tmp_path, source)
    for name in ("", "ckpt-1", "ckpt-1.index"):
        assert warm_start.find_checkpoint(os.path.join(tmp_path, name)) == prefix
    report = warm_start.load_weights(target, prefix)
    assert all(_equal(source, target).values())
    assert (report.is_complete, len(report.matched)) == (True, 8)


def test_shape_mismatch_raises_if_strict_and_otherwise_keeps_the_weight(tmp_path, caplog) -> None:
    caplog.set_level(logging.INFO, logger="absl")
    source, target = Net(seed=1, classes=5), Net(seed=2)
    path = _save_run(tmp_path, source)
    before = [weight.numpy() for weight in target.weights]
    line = "net/head/kernel [4, 3] <- model/head/_kernel [4, 5]"
    with pytest.raises(errors.CheckpointError, match=re.escape(line)) as caught:
        warm_start.load_weights(target, path)
    assert "init_checkpoint_strict" in str(caught.value)
    np.testing.assert_equal([weight.numpy() for weight in target.weights], before)
    report = warm_start.load_weights(target, path, strict=False)
    kept = {name for name, same in _equal(source, target).items() if not same}
    assert kept == {"head/kernel", "head/bias"}
    assert [match.variable for match in report.mismatched] == ["net/head/kernel", "net/head/bias"]
    assert line in caplog.text


def test_missing_weights_are_reported_with_the_nearest_saved_name(tmp_path) -> None:
    source, target = Net(seed=1, head_name="top"), Net(seed=2)
    report = warm_start.load_weights(target, _save_run(tmp_path, source), strict=False)
    assert [leftover.name for leftover in report.missing] == ["net/head/kernel", "net/head/bias"]
    assert report.missing[0].candidates == ("model/top/_kernel",)
    assert {left.name for left in report.unexpected} == {"model/top/_kernel", "model/top/bias"}


def test_error_for_a_checkpoint_without_matching_weights_lists_its_objects(tmp_path) -> None:
    path = _save(tmp_path, net=Net(seed=1))
    with pytest.raises(errors.CheckpointError, match=r"'model'.*`net`"):
        warm_start.load_weights(Net(seed=2), path, strict=False)


@pytest.mark.parametrize(("save", "modules"), [(_save_run, "all"), (None, ["backbone"])])
def test_checkpoint_items_of_the_model_determine_which_weights_are_loaded(
    tmp_path, save: Callable | None, modules
) -> None:
    source, target = Net(seed=1, classes=5), Net(seed=2)
    for model in (source, target):
        model.checkpoint_items = {"backbone": model.backbone}
    path = save(tmp_path, source) if save else _save(tmp_path, **source.checkpoint_items)
    report = warm_start.load_weights(target, path, modules=modules)
    assert {name for name, same in _equal(source, target).items() if same} == {
        "trunk/stem/kernel",
        "trunk/stem/bias",
    }
    assert len(report.matched) == 2


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        ("trunk", {"trunk/stem"}),
        ("backbone, head", {"trunk/stem", "head"}),
        (["block1"], {"block1"}),
    ],
)
def test_modules_argument_selects_weights_by_layer_name_or_attribute_name(
    tmp_path, modules, expected
) -> None:
    source, target = Net(seed=1), Net(seed=2)
    warm_start.load_weights(target, _save_run(tmp_path, source), modules=modules)
    loaded = {name.rpartition("/")[0] for name, same in _equal(source, target).items() if same}
    assert loaded == expected


def test_error_for_an_unknown_module_suggests_the_nearest_name(tmp_path) -> None:
    with pytest.raises(errors.UnknownNameError, match="`backbone`"):
        warm_start.load_weights(Net(), _save_run(tmp_path, Net()), modules="bakbone")


@pytest.mark.parametrize("saved", ["float32", "bfloat16"])
def test_weights_saved_with_another_precision_are_cast(tmp_path, saved: str) -> None:
    def build(dtype: str, seed: int) -> Net:
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(dtype)
        try:
            return Net(seed=seed)
        finally:
            keras.config.set_dtype_policy(before)

    source = build(saved, seed=1)
    _save_run(tmp_path, source)
    target = build("bfloat16" if saved == "float32" else "float32", seed=2)
    warm_start.load_weights(target, str(tmp_path))
    for weight, expected in zip(target.weights, source.weights, strict=True):
        np.testing.assert_array_equal(weight, keras.ops.cast(expected, weight.dtype))


class Towers(keras.Model):
    """A model with layers in a dict."""

    def __init__(self, names: str, value: float = 0.0) -> None:
        super().__init__(name="towers")
        self.towers = {name: keras.layers.Dense(2, use_bias=False) for name in names.split()}
        self(tf.zeros((1, 2)))
        for number, tower in enumerate(self.towers.values()):
            tower.kernel.assign(tf.fill((2, 2), value and value + number))

    def call(self, x: Any) -> Any:
        return sum(tower(x) for tower in self.towers.values())

    def values(self) -> dict[str, float]:
        return {name: float(tower.kernel.numpy()[0, 0]) for name, tower in self.towers.items()}


def test_layers_in_a_dict_are_loaded_by_their_keys(tmp_path) -> None:
    _save_run(tmp_path, Towers("en de", 1.0))
    swapped = Towers("de en")
    warm_start.load_weights(swapped, str(tmp_path))
    assert swapped.values() == {"de": 2.0, "en": 1.0}
    for names in ("de fr", "en fr"):
        other = Towers(names)
        with pytest.raises(errors.CheckpointError, match=r"missing from the checkpoint \(1\)"):
            warm_start.load_weights(other, str(tmp_path))
        warm_start.load_weights(other, str(tmp_path), strict=False)
        expected = {"en": 1.0, "de": 2.0, "fr": 0.0}
        assert other.values() == {name: expected[name] for name in names.split()}


def test_layers_in_lists_of_a_keras_model_in_a_module_are_loaded(tmp_path) -> None:
    def build(seed: int) -> tf.Module:
        module = tf.Module()
        module.net = Net(seed=seed)
        return module

    source, target = build(1), build(2)
    _save(tmp_path, **model_state.weight_items(source))
    warm_start.load_weights(target, str(tmp_path))
    assert all(_equal(target.net, source.net).values())
    _save(tmp_path / "older", model=source)
    with pytest.raises(errors.CheckpointError, match=r"missing from the checkpoint \(4\)"):
        warm_start.load_weights(target, str(tmp_path / "older"))


def test_warm_start_loads_weights_on_all_replicas(tmp_path, two_replicas) -> None:
    source = Net(seed=1, classes=5)
    path = _save_run(tmp_path, source)
    with two_replicas.scope():
        target = Net(seed=2)
        warm_start.load_weights(target, path, strict=False)
    for weight, expected in zip(target.backbone.weights, source.backbone.weights, strict=True):
        for replica in two_replicas.experimental_local_results(weight.value):
            np.testing.assert_array_equal(replica, expected)


def test_loading_weights_into_an_unbuilt_model_raises(tmp_path) -> None:
    path = _save_run(tmp_path, Net())
    with pytest.raises(errors.CheckpointError, match="Call it once"):
        warm_start.load_weights(keras.Sequential([keras.layers.Dense(3)]), path)


class Lexicon(tf.Module):
    """A `tf.Module` with a variable and a lookup table."""

    def __init__(self, value: int) -> None:
        super().__init__()
        self.weight = tf.Variable(float(value))
        self.table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
        self.table.insert(["a"], [value])


def test_lookup_tables_are_loaded_with_the_weights(tmp_path) -> None:
    target = Lexicon(0)
    report = warm_start.load_weights(target, _save(tmp_path, model=Lexicon(5)))
    assert (float(target.weight), int(target.table.lookup(tf.constant("a")))) == (5.0, 5)
    assert len(report.matched) == 1


class Words(keras.Model):
    """Two towers, each with a vocabulary and an embedding of its own, and a head."""

    def __init__(self, *words: str) -> None:
        super().__init__()
        self.titles, self.bodies = (
            keras.Sequential(
                [
                    keras.Input((), dtype="string"),
                    keras.layers.StringLookup(),
                    keras.layers.Embedding(4, 2),
                ],
                name=name,
            )
            for name in ("titles", "bodies")
        )
        for tower in (self.titles, self.bodies):
            tower.layers[0].adapt(list(words))
        self.head = keras.layers.Dense(1)
        self(tf.constant(["a"]))

    def call(self, texts: Any) -> Any:
        return self.head(self.titles(texts) + self.bodies(texts))


def test_vocabularies_of_the_requested_modules_are_loaded(tmp_path) -> None:
    source, target = Words("a", "b"), Words("x")
    warm_start.load_weights(target, _save_run(tmp_path, source), modules="titles")
    learned = source.titles.layers[0].get_vocabulary()
    assert target.titles.layers[0].get_vocabulary() == learned
    assert target.bodies.layers[0].get_vocabulary() == ["[UNK]", "x"]
