"""Fixtures that write checkpoints as tf_keras does, without tf_keras, or that pause a save."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

SaveKeras2 = Callable[..., str]


class Gate(tf.train.experimental.ShardingCallback):
    """A sharding callback that pauses a save after the state is read, before files are written."""

    description = "a gate"

    def __init__(self):
        self._is_open = threading.Event()

    def open(self):
        self._is_open.set()

    def open_soon(self):
        threading.Timer(0.2, self.open).start()

    def __call__(self, shardable_tensors):
        self._is_open.wait()
        return tf.train.experimental.ShardByTaskPolicy()(shardable_tensors)


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture
def save_keras2(tmp_path: Path) -> SaveKeras2:
    """Return `save(model={"layer_with_weights-0": {"kernel": variable}}, ...) -> prefix`.

    Each dict becomes a trackable object whose children have the dict's keys as names. A dict that
    appears twice becomes one shared object. Variables need the names that tf_keras gives them.
    """

    def save(**tree: Any) -> str:
        return _trackable(tree, {}).save(str(tmp_path / "ckpt"))

    return save


def _trackable(part: Any, made: dict[int, Any]) -> Any:
    if not isinstance(part, Mapping):
        return part
    if id(part) not in made:
        children = {name: _trackable(child, made) for name, child in part.items()}
        made[id(part)] = tf.train.Checkpoint(**children)
    return made[id(part)]


@pytest.fixture
def saved_layer() -> Callable[..., dict[str, tf.Variable]]:
    """Return `save(layer, name=None)`, which copies a layer's variables with tf_keras names."""

    def save(layer: Any, name: str | None = None) -> dict[str, tf.Variable]:
        return {
            variable.name: tf.Variable(variable, name=f"{name or layer.name}/{variable.name}")
            for variable in layer.weights
        }

    return save
