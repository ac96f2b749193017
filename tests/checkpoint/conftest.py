"""Checkpoints as tf_keras writes them, without tf_keras; and a gate that holds a save back."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

SaveKeras2 = Callable[..., str]


class Gate(tf.train.experimental.ShardingCallback):
    """Holds a save back when the state has been read and nothing has been written."""

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
    """`save_keras2(model={"layer_with_weights-0": {"kernel": variable}}, ...) -> prefix`.

    A dict is an object and its names are the paths to its parts; a part that appears twice is
    shared. A variable's own name is what tf_keras would have called it.
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
    """`saved_layer(layer, name=None)`: a Keras 3 layer's own variables as tf_keras keeps them."""

    def save(layer: Any, name: str | None = None) -> dict[str, tf.Variable]:
        return {
            variable.name: tf.Variable(variable, name=f"{name or layer.name}/{variable.name}")
            for variable in layer.weights
        }

    return save
