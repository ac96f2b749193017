"""The four models in Keras; the same code builds them with `keras` and `tf_keras`.

TensorFlow is imported only where it is needed, because Keras also runs on JAX without it.
"""

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.steps import models

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = ["build", "build_dataset", "repeat_batches"]


def build(model: models.Model, keras: Any) -> Any:
    """Build the model with its initial weights.

    Args:
        model: The model to build.
        keras: The module `keras` or `tf_keras`.
    """
    built = _BUILDERS[model.name](keras)
    for name, weights in models.layers(model.make_parameters()):
        built.get_layer(name).set_weights(weights)
    return built


def build_dataset(model: models.Model) -> "tf.data.Dataset":
    """Build a dataset that repeats the batches in memory."""
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(_load(model)).repeat().prefetch(2)


def repeat_batches(model: models.Model, keras: Any) -> Iterator[Any]:
    """Yield the batches without end, as tensors of Keras' backend."""
    inputs, labels = keras.tree.map_structure(keras.ops.convert_to_tensor, _load(model))
    batches = [
        keras.tree.map_structure(operator.itemgetter(index), (inputs, labels))
        for index in range(len(labels))
    ]
    while True:
        yield from batches


def _load(model: models.Model) -> tuple[Any, Any]:
    features, labels = model.make_batches()
    return (features if len(features) > 1 else features[0]), labels


def _mlp(keras: Any) -> Any:
    layers = keras.layers
    inputs = keras.Input((models.MLP_UNITS,))
    x = layers.Dense(models.MLP_UNITS, activation="relu", name="hidden")(inputs)
    return keras.Model(inputs, layers.Dense(models.MLP_CLASSES, name="logits")(x))


def _convnet(keras: Any) -> Any:
    layers = keras.layers
    inputs = x = keras.Input(models.CONVNET_IMAGE)
    for index, filters in enumerate(models.CONVNET_FILTERS):
        strides = 1 if index == 0 else 2
        x = layers.Conv2D(
            filters, 3, strides, padding="same", activation="relu", name=f"conv_{index}"
        )(x)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(models.CONVNET_CLASSES, name="logits")(x))


def _transformer(keras: Any) -> Any:
    layers = keras.layers
    attention = _attention_layer(keras)

    def layer_norm(name: str, x: Any) -> Any:
        return layers.LayerNormalization(epsilon=models.LAYER_NORM_EPSILON, name=name)(x)

    inputs = keras.Input((models.LENGTH,), dtype="int32")
    x = layers.Embedding(models.VOCABULARY, models.D_MODEL, name="tokens")(inputs)
    x = _positions_layer(keras)(name="positions")(x)
    for index in range(models.NUM_BLOCKS):
        block = f"block_{index}"
        qkv = layers.Dense(3 * models.D_MODEL, name=f"{block}_qkv")
        attended = attention()(qkv(layer_norm(f"{block}_norm_1", x)))
        x = layers.Add()([x, layers.Dense(models.D_MODEL, name=f"{block}_project")(attended)])
        up = layers.Dense(models.D_FEEDFORWARD, activation="relu", name=f"{block}_up")
        hidden = up(layer_norm(f"{block}_norm_2", x))
        x = layers.Add()([x, layers.Dense(models.D_MODEL, name=f"{block}_down")(hidden)])
    logits = layers.Dense(models.VOCABULARY, name="logits")
    return keras.Model(inputs, logits(layer_norm("norm", x)))


def _ctr(keras: Any) -> Any:
    layers = keras.layers
    numbers = keras.Input((models.NUM_DENSE,))
    categorical = keras.Input((models.NUM_TABLES,), dtype="int32")
    embedded = _tables_layers(keras, categorical)
    x = layers.Concatenate()([numbers, *embedded])
    for index, units in enumerate(models.CTR_UNITS):
        x = layers.Dense(units, activation="relu", name=f"dense_{index}")(x)
    x = layers.Reshape(())(layers.Dense(1, name="logits")(x))
    return keras.Model([numbers, categorical], x)


def _tables_layers(keras: Any, categorical: Any) -> list[Any]:
    layers = keras.layers
    embedded = []
    for index in range(models.NUM_TABLES):
        table = layers.Embedding(models.TABLE_ROWS, models.D_EMBEDDING, name=f"table_{index}")
        embedded.append(table(categorical[:, index]))
    return embedded


_BUILDERS: dict[str, Callable[[Any], Any]] = {
    "tiny_mlp": _mlp,
    "convnet": _convnet,
    "transformer": _transformer,
    "ctr": _ctr,
}


def _positions_layer(keras: Any) -> Any:
    class Positions(keras.layers.Layer):
        """A layer that adds a learned vector for each position."""

        def build(self, _: Any) -> None:
            self.embeddings = self.add_weight(
                shape=(models.LENGTH, models.D_MODEL), name="embeddings"
            )
            self.built = True

        def call(self, x: Any) -> Any:
            return x + _ops(keras).convert_to_tensor(self.embeddings)

    return Positions


def _attention_layer(keras: Any) -> Any:
    class Attention(keras.layers.Layer):
        """Causal attention, from queries, keys and values side by side."""

        def call(self, qkv: Any) -> Any:
            ops = _ops(keras)
            length, size = models.LENGTH, models.D_MODEL
            d_head = size // models.NUM_HEADS
            heads = ops.reshape(qkv, (-1, length, 3, models.NUM_HEADS, d_head))
            query, key, value = ops.unstack(heads, axis=2)
            query, value = (ops.transpose(part, (0, 2, 1, 3)) for part in (query, value))
            scores = ops.matmul(query, ops.transpose(key, (0, 2, 3, 1))) * d_head**-0.5
            mask = np.triu(np.full((length, length), -1e9, np.float32), 1)
            attended = ops.matmul(ops.nn.softmax(scores + mask), value)
            return ops.reshape(ops.transpose(attended, (0, 2, 1, 3)), (-1, length, size))

        def compute_output_shape(self, shape: Any) -> Any:
            return (*shape[:-1], models.D_MODEL)

    return Attention


def _ops(keras: Any) -> Any:
    """Return `keras.ops`; for Keras 2, return TensorFlow, whose functions have the same names."""
    if hasattr(keras, "ops"):
        return keras.ops
    import tensorflow as tf

    return tf
