"""Embedding layer whose table is distributed over several parameter servers.

`tf.distribute.ParameterServerStrategy` can partition variables itself (`variable_partitioner`),
but no Keras 3 optimizer accepts the result, because it has no `handle`. Here each shard is a
separate variable with its own optimizer slots, which any optimizer and any checkpoint supports.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

__all__ = ["ShardedEmbedding"]

# The minimum size of a shard in bytes. A smaller shard is not worth a call to another server.
_MIN_BYTES = 2**18


@keras.saving.register_keras_serializable("official_lite")
class ShardedEmbedding(keras.layers.Layer):
    """Layer like `keras.layers.Embedding` with a table that is split into shards.

    Row `i` is in shard `i % num_shards`. Frequent ids are often small numbers; this spreads them
    over all shards. A look-up requests only the required rows from each shard. An optimizer that
    updates individual rows does so on the server that holds them.

    Under `parameter_server`, variables are placed on the servers in turn.

    Args:
        input_dim: The number of rows.
        output_dim: The length of a row.
        num_shards: The number of shards. None uses one shard per parameter server, but no shard
            smaller than 256 KB, and a single shard without parameter servers. A checkpoint can only
            be restored with the same number of shards.
        embeddings_initializer: The initializer of the rows; each shard gets different values.
        mask_zero: Whether the id 0 is padding to be masked.
        **kwargs: Arguments of `keras.layers.Layer`.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        num_shards: int | None = None,
        embeddings_initializer: str | keras.initializers.Initializer = "uniform",
        mask_zero: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.input_dim = input_dim
        self.output_dim = output_dim
        self.num_shards = num_shards
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.mask_zero = mask_zero
        self.supports_masking = mask_zero
        self.autocast = False

    def build(self, input_shape: Sequence[int | None] | None = None) -> None:
        """Create the shards."""
        del input_shape
        count = self.num_shards or self._default_count()
        self._names = [f"embeddings_{index}" for index in range(count)]
        for index, name in enumerate(self._names):
            shard = self.add_weight(
                shape=(len(range(index, self.input_dim, count)), self.output_dim),
                initializer=self._initializer_of(index),
                name=name,
            )
            # Store the shard in an attribute: TensorFlow checkpoints would not find a variable
            # inside a list.
            setattr(self, name, shard)
        self.built = True

    @property
    def shards(self) -> list[keras.Variable]:
        """The shards; with `n` shards, shard `s` holds the rows `s`, `s + n`, `s + 2 n`, …."""
        return [getattr(self, name) for name in self._names]

    @property
    def embeddings(self) -> tf.Tensor:
        """The whole table of shape (input_dim, output_dim), assembled on each access."""
        count = len(self._names)
        rows = [tf.range(index, self.input_dim, count) for index in range(count)]
        return tf.dynamic_stitch(rows, [tf.convert_to_tensor(shard) for shard in self.shards])

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the rows, of shape `(*inputs.shape, output_dim)`."""
        ids = tf.convert_to_tensor(inputs)
        ids = ids if ids.dtype in (tf.int32, tf.int64) else tf.cast(ids, tf.int32)
        # As in Keras, negative ids count from the end.
        ids = tf.where(ids < 0, ids + tf.cast(self.input_dim, ids.dtype), ids)
        return tf.cast(self._look_up(ids), self.compute_dtype)

    def compute_mask(self, inputs: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor | None:
        """Return a mask that is True where the id is not 0, or None without `mask_zero`."""
        del mask
        return keras.ops.not_equal(inputs, 0) if self.mask_zero else None

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        return (*input_shape, self.output_dim)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments."""
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "num_shards": self.num_shards,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "mask_zero": self.mask_zero,
        }

    def _look_up(self, ids: tf.Tensor) -> tf.Tensor:
        if len(self._names) == 1:
            return tf.gather(self.shards[0].value, ids)
        flat = tf.reshape(ids, [-1])
        count = len(self._names)
        shard_of = tf.cast(flat % count, tf.int32)
        rows = tf.dynamic_partition(flat // count, shard_of, count)
        places = tf.dynamic_partition(tf.range(tf.size(flat)), shard_of, count)
        found = [
            tf.gather(shard.value, part) for shard, part in zip(self.shards, rows, strict=True)
        ]
        looked_up = tf.dynamic_stitch(places, found)
        shape = tf.concat([tf.shape(ids), [self.output_dim]], axis=0)
        return tf.ensure_shape(tf.reshape(looked_up, shape), [*ids.shape, self.output_dim])

    def _default_count(self) -> int:
        num_servers = getattr(tf.distribute.get_strategy(), "_num_ps", 1)
        num_bytes = self.input_dim * self.output_dim * tf.as_dtype(self.variable_dtype).size
        return int(max(1, min(num_servers, num_bytes // _MIN_BYTES)))

    def _initializer_of(self, index: int) -> Any:
        """Return an initializer that draws different numbers for each shard."""
        config = self.embeddings_initializer.get_config()
        if isinstance(config.get("seed"), int):
            config["seed"] += index
        return type(self.embeddings_initializer).from_config(config)
