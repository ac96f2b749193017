"""Saved models and checkpoints are complete, and Keras 2 checkpoints can be read."""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import keras2
from official_lite.checkpoint import committed_checkpoint_manager
from official_lite.common import errors

Pair = collections.namedtuple("Pair", "left right")


def _dense() -> keras.Layer:
    return keras.layers.Dense(3)


class Stack(keras2.Layer):
    def __init__(self):
        super().__init__()
        self.blocks = []
        self.grid = [[_dense()], [{"in": _dense()}, (_dense(), [])]]
        self.pair = Pair(_dense(), [_dense()])
        self.heads = {"only": [keras.layers.Dense(1)]}

    def build(self, input_shape):
        self.blocks.extend(_dense() for _ in range(2))
        self.grid[1][1][1].append(_dense())

    def call(self, inputs):
        for block in tf.nest.flatten([[*self.blocks], self.grid[0][0], self.grid[1][0]["in"]]):
            inputs = block(inputs)
        inputs = self.grid[1][1][1][0](self.grid[1][1][0](inputs))
        inputs = self.pair.right[0](self.pair.left(inputs))
        return self.heads["only"][0](inputs)


def test_checkpoint_contains_layers_in_lists_and_dictionaries(tmp_path) -> None:
    inputs = np.ones([1, 3], np.float32)
    stack, other = Stack(), Stack()
    expected = stack(inputs)
    path = tf.train.Checkpoint(model=stack).save(tmp_path / "ckpt")
    names = {name for name, _ in tf.train.list_variables(path)}
    for key in ("blocks/1", "grid/0/0", "grid/1/0/in", "grid/1/1/1/0", "pair/right/0"):
        assert f"model/{key}/_kernel/.ATTRIBUTES/VARIABLE_VALUE" in names
    other(inputs)
    assert len(other.weights) == len(names) - 2 == 18
    tf.train.Checkpoint(model=other).restore(path).assert_existing_objects_matched()
    np.testing.assert_array_equal(other(inputs), expected)


class Twice(keras2.Keras2Habits, keras.Model):
    """A model subclass without a constructor of its own."""


def test_saved_model_takes_and_returns_tensors_by_name(tmp_path) -> None:
    image = keras.Input([1], name="image")
    first, second = keras.layers.Rescaling(2.0, name="first"), keras.layers.ReLU(name="second")
    # A layer that is used twice has two outputs.
    Twice(image, [first(image), second(image), first(first(image))]).save(tmp_path / "saved")
    serve = tf.saved_model.load(tmp_path / "saved").signatures["serving_default"]
    outputs = serve(image=tf.constant([[-3.0]]))
    assert {name: float(value[0, 0]) for name, value in outputs.items()} == {
        "first": -6.0,
        "second": 0.0,
        "first_1": -12.0,
    }


class Lookup(keras2.Keras2Habits, keras.Model):
    """A subclassed model with arguments of several types."""

    def __init__(self):
        super().__init__()
        self.table = [[keras.layers.Embedding(5, 2)]]

    def call(self, inputs, weights=None, training=False):
        found = self.table[0][0](inputs["ids"]) * tf.cast(inputs["on"], tf.float32)[..., None]
        found *= tf.cast(tf.strings.length(inputs["word"]), tf.float32)[..., None]
        return {"found": found if weights is None else found * weights}


class Words(keras2.Keras2Habits, keras.Sequential):
    """A sequential model that is built by its first call."""


@pytest.mark.parametrize("save", ["save", "tf.saved_model.save"])
def test_serving_signature_of_a_model_without_declared_inputs_matches_its_first_call(
    tmp_path, save: str
) -> None:
    def saved(model):
        path = str(tmp_path / model.name)
        model.save(path) if save == "save" else tf.saved_model.save(model, path)
        return tf.saved_model.load(path).signatures["serving_default"]

    inputs = {"ids": np.int32([[1, 4]]), "on": [[True, False]], "word": [["a", "b"]]}
    inputs = {name: tf.constant(value) for name, value in inputs.items()}
    model = Lookup()
    expected = model(inputs, tf.constant(2.0))["found"]
    serve = saved(model)
    np.testing.assert_array_equal(serve(weights=tf.constant(2.0), **inputs)["found"], expected)
    assert serve.structured_input_signature[1]["ids"] == tf.TensorSpec([None, 2], tf.int32, "ids")

    model = Words([keras.layers.Embedding(5, 2)])
    expected = model(inputs["ids"])
    serve = saved(model)
    np.testing.assert_array_equal(next(iter(serve(inputs["ids"]).values())), expected)


def _model() -> keras.Model:
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])


@pytest.fixture
def of_keras2(tmp_path) -> str:
    layer = tf.train.Checkpoint(kernel=tf.Variable([[3.0]], name="dense/kernel"))
    saved = tf.train.Checkpoint(backbone=tf.train.Checkpoint(**{"layer_with_weights-0": layer}))
    return saved.write(str(tmp_path / "weights"))


def test_backbone_weights_are_read_from_a_keras_2_checkpoint(of_keras2: str) -> None:
    model = _model()
    status = keras2.Checkpoint(backbone=model).read(of_keras2)
    status.expect_partial().assert_existing_objects_matched()
    assert float(model.weights[0][0, 0]) == 3.0


def test_restoring_an_object_missing_from_a_keras_2_checkpoint_is_refused(of_keras2: str) -> None:
    with pytest.raises(errors.CheckpointError, match="It contains `backbone`"):
        keras2.Checkpoint(head=_model()).restore(of_keras2)


def test_keras2_checkpoint_saves_and_restores_a_model(tmp_path) -> None:
    model, other = _model(), _model()
    path = keras2.Checkpoint(model=model).save(str(tmp_path / "ckpt"))
    keras2.Checkpoint(model=other).restore(path).assert_consumed()
    assert float(other.weights[0][0, 0]) == float(model.weights[0][0, 0])
    keras2.Checkpoint(model=other).restore(None)


def test_checkpoint_saved_after_restoring_a_keras_2_checkpoint_has_the_next_number(
    tmp_path,
) -> None:
    layer = tf.train.Checkpoint(kernel=tf.Variable([[3.0]], name="dense/kernel"))
    saved = tf.train.Checkpoint(model=tf.train.Checkpoint(**{"layer_with_weights-0": layer}))
    for _ in range(2):
        path = saved.save(str(tmp_path / "ckpt"))
    manager = committed_checkpoint_manager.CommittedCheckpointManager(
        tf.train.Checkpoint(model=_model()), str(tmp_path), max_to_keep=1
    )
    manager.restore_or_initialize()
    assert manager.save() == str(tmp_path / "ckpt-3")
    checkpoint = keras2.Checkpoint(model=_model())
    checkpoint.read(path)
    assert int(checkpoint.save_counter) == 0  # As with `tf.train.Checkpoint.read`.
    checkpoint.restore(path)
    assert int(checkpoint.save_counter) == 2
