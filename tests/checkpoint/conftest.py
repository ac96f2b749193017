"""Checkpoints with the keys and the tree of objects that tf_keras writes, without tf_keras."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

SaveKeras2 = Callable[..., str]


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
