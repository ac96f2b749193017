"""An embedding whose table lies on several parameter servers.

`tf.distribute.ParameterServerStrategy` can divide variables by itself (`variable_partitioner`), but
no optimizer of Keras 3 takes what comes of that: it has no `handle`. Here each shard is a variable
of its own, with its own slots in the optimizer, which any optimizer and any checkpoint handles.
"""

from typing import Any

import keras
import tensorflow as tf

__all__ = ["ShardedEmbedding"]

# A smaller shard is not worth a call to another server.
_FEWEST_BYTES = 2**18


@keras.saving.register_keras_serializable("official_lite")
class ShardedEmbedding(keras.layers.Layer):
    """As `keras.layers.Embedding`, with a table that is divided into shards.

    Row `i` is in shard `i % num_shards`, so that ids that are frequent, and therefore often small
    numbers, are not all in one. A look-up asks each shard for its own rows and reads nothing else;
    an optimizer that updates rows does so on the server that holds them.

    Under `parameter_server`, variables are placed on the servers in turn.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        num_shards: int | None = None,
        embeddings_initializer: Any = "uniform",
        mask_zero: bool = False,
        **kwargs: Any,
    ) -> None:
        """Takes what `keras.layers.Embedding` takes.

        Args:
            input_dim: The number of rows.
            output_dim: The length of a row.
            num_shards: How many shards. None is one for each parameter server, but none of less
                than 256 KB; and a single one without parameter servers. A checkpoint can only be
                restored with the same number.
            embeddings_initializer: Of the rows; each shard gets values of its own.
            mask_zero: Whether the id 0 stands for nothing.
            **kwargs: See `keras.layers.Layer`.
        """
        super().__init__(**kwargs)
        self.input_dim = input_dim
        self.output_dim = output_dim
        self.num_shards = num_shards
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.mask_zero = mask_zero
        self.supports_masking = mask_zero
        self.autocast = False

    def build(self, input_shape: Any = None) -> None:
        """Creates the shards."""
        del input_shape
        count = self.num_shards or self._default_count()
        self._names = [f"embeddings_{index}" for index in range(count)]
        for index, name in enumerate(self._names):
            shard = self.add_weight(
                shape=(len(range(index, self.input_dim, count)), self.output_dim),
                initializer=self._initializer_of(index),
                name=name,
            )
            # In a list TensorFlow's checkpoints would not find it.
            setattr(self, name, shard)
        self.built = True

    @property
    def shards(self) -> list[keras.Variable]:
        """Shard `s` holds the rows `s`, `s + n`, `s + 2 n` …, where `n` is how many there are."""
        return [getattr(self, name) for name in self._names]

    @property
    def embeddings(self) -> tf.Tensor:
        """The whole table, (input_dim, output_dim). It is put together in each call."""
        count = len(self._names)
        rows = [tf.range(index, self.input_dim, count) for index in range(count)]
        return tf.dynamic_stitch(rows, [tf.convert_to_tensor(shard) for shard in self.shards])

    def call(self, inputs: Any) -> tf.Tensor:
        """Rows of shape `(*inputs.shape, output_dim)`."""
        ids = tf.convert_to_tensor(inputs)
        ids = ids if ids.dtype in (tf.int32, tf.int64) else tf.cast(ids, tf.int32)
        # As in Keras, negative ones count from the end.
        ids = tf.where(ids < 0, ids + tf.cast(self.input_dim, ids.dtype), ids)
        return tf.cast(self._look_up(ids), self.compute_dtype)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Where the ids are not 0, if 0 stands for nothing."""
        del mask
        return keras.ops.not_equal(inputs, 0) if self.mask_zero else None

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        return (*input_shape, self.output_dim)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
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
        return int(max(1, min(num_servers, num_bytes // _FEWEST_BYTES)))

    def _initializer_of(self, index: int) -> Any:
        """One that draws other numbers for each shard."""
        config = self.embeddings_initializer.get_config()
        if isinstance(config.get("seed"), int):
            config["seed"] += index
        return type(self.embeddings_initializer).from_config(config)
