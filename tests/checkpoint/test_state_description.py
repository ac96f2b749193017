import json
from typing import Any

import keras
import pytest
import tensorflow as tf

from official_lite.checkpoint import model_state
from official_lite.common import errors


def _describe(optimizer: Any = None, names: tuple[str, ...] = ("a", "b"), units: int = 2) -> Any:
    model = keras.Sequential([keras.Input((2,))])
    for name in names:
        model.add(keras.layers.Dense(units, name=name))
    optimizer = optimizer or keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    # As it comes back from a commit file.
    return json.loads(json.dumps(model_state.describe(model, optimizer)))


def test_same_run_is_the_same_also_under_new_numbers() -> None:
    first, second = (_describe(names=(f"dense_{2 * i}", f"dense_{2 * i + 1}")) for i in range(2))
    assert first == second
    model_state.require_same(first, second, "ckpt-1")


def test_other_optimizer_is_refused_by_its_class() -> None:
    adamw = _describe(keras.optimizers.AdamW())
    with pytest.raises(errors.CheckpointError, match=r"Adam;.*AdamW.*init_checkpoint"):
        model_state.require_same(_describe(), adamw, "ckpt-1")


def test_wrapped_optimizer_is_described_with_what_it_wraps() -> None:
    wrapped = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    assert _describe(wrapped)["optimizer"]["class"] == "LossScaleOptimizer of SGD"


def test_layers_that_change_places_are_refused() -> None:
    with pytest.raises(errors.CheckpointError, match="in a different order"):
        model_state.require_same(_describe(), _describe(names=("b", "a")), "ckpt-1")


def test_new_layer_is_refused_and_named() -> None:
    with pytest.raises(errors.CheckpointError, match="c_kernel_momentum` is new"):
        model_state.require_same(_describe(), _describe(names=("a", "b", "c")), "ckpt-1")


def test_renamed_layer_and_other_shape_are_left_to_tensorflow() -> None:
    model_state.require_same(_describe(), _describe(names=("a", "z")), "ckpt-1")
    model_state.require_same(_describe(), _describe(units=3), "ckpt-1")


def test_checkpoint_that_says_nothing_is_not_compared() -> None:
    model_state.require_same({}, _describe(), "ckpt-1")
    assert model_state.describe(None, None) == {}


def test_long_list_is_represented_by_its_checksum() -> None:
    module = tf.Module()
    module.parts = [tf.Variable(0.0, name=f"v{i}") for i in range(1200)]
    described = model_state.describe(module, None)["model"]
    assert described["count"] == 1200
    assert len(json.dumps(described)) < 200


def test_what_changes_the_last_bits_is_told(caplog: pytest.LogCaptureFixture) -> None:
    saved = {"num_replicas": 2, "global_batch_size": 8, "versions": {"tensorflow": "2.21.0"}}
    model_state.warn_of_inexact_state(saved, saved, "ckpt-1")
    model_state.warn_of_inexact_state(saved, {}, "ckpt-1")
    assert not caplog.text
    model_state.warn_of_inexact_state(saved, {**saved, "num_replicas": 4}, "ckpt-1")
    assert "from ckpt-1" in caplog.text
    assert "bit for bit the same: replicas 2 → 4." in caplog.text
