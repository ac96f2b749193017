import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.modeling import distributed_gradients, sharded_embedding
from tests import parameter_servers, rounding

# A script for two parameter servers. It creates a table of 1 MB and updates three rows once.
UPDATE = """
import keras
import numpy as np
import tensorflow as tf

from official_lite.modeling import distributed_gradients, sharded_embedding

coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    layer = sharded_embedding.ShardedEmbedding(2**15, 8)
    layer.build()
    optimizer = distributed_gradients.make_distributed(keras.optimizers.SGD(1.0))
    optimizer.build(layer.trainable_variables)
before = layer.embeddings.numpy()


@tf.function
def step():
    def on_replica():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.constant([[1, 4], [4, 7]])))
        gradients = tape.gradient(loss, layer.trainable_variables)
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables))

    strategy.run(on_replica)


coordinator.schedule(step)
coordinator.join()
graph = step.get_concrete_function().graph
ops = [op for op in graph.get_operations()]
changed = np.abs(layer.embeddings.numpy() - before).sum(axis=1)
results["devices"] = [shard.value.device for shard in layer.shards]
results["changed"] = {int(row): round(float(changed[row]), 3) for row in np.flatnonzero(changed)}
tables = [shard.shape[0] for shard in layer.shards]
results["whole_reads"] = sum(
    op.type == "ReadVariableOp" and op.outputs[0].shape[:1].as_list() == [tables[0]] for op in ops
)
"""


@pytest.mark.parametrize("num_shards", [1, 3])
def test_sharded_embedding_looks_up_and_trains_like_the_keras_embedding(num_shards):
    ids = tf.constant([[0, 5, 5], [9, -1, 3]])
    ours = sharded_embedding.ShardedEmbedding(10, 4, num_shards=num_shards)
    ours.build()
    rows = [shard.shape[0] for shard in ours.shards]
    assert rows == ([10] if num_shards == 1 else [4, 3, 3])
    plain = keras.layers.Embedding(10, 4)
    plain.build()
    plain.embeddings.assign(ours.embeddings)
    results = []
    for layer in (ours, plain):
        optimizer = distributed_gradients.make_distributed(keras.optimizers.Adagrad(0.1))
        with tf.GradientTape() as tape:
            output = layer(ids)
            loss = tf.reduce_sum(tf.square(output))
        gradients = tape.gradient(loss, layer.trainable_variables)
        assert all(isinstance(gradient, tf.IndexedSlices) for gradient in gradients)
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
        results.append((output.numpy(), tf.convert_to_tensor(layer.embeddings).numpy()))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    # The roundings of one update with sums over at most two rows.
    rounding.assert_close(results[0][1], results[1][1], roundings=2)


def test_embedding_shards_have_different_initial_values_and_are_saved_in_checkpoints(tmp_path):
    layer = sharded_embedding.ShardedEmbedding(
        8, 2, num_shards=2, embeddings_initializer=keras.initializers.RandomNormal(seed=3)
    )
    model = keras.Sequential([keras.Input((4,), dtype="int32"), layer])
    first, second = (shard.numpy() for shard in layer.shards)
    assert not np.array_equal(first, second)
    path = tf.train.Checkpoint(model=model).write(str(tmp_path / "ckpt"))
    names = [name for name, _ in tf.train.list_variables(path)]
    assert any("embeddings_0" in name for name in names)
    copy = sharded_embedding.ShardedEmbedding.from_config(layer.get_config())
    copy.build()
    np.testing.assert_array_equal(copy.embeddings, layer.embeddings)


def test_sharded_embedding_masks_ids_and_accepts_empty_batches():
    layer = sharded_embedding.ShardedEmbedding(6, 2, num_shards=2, mask_zero=True)
    assert layer(tf.zeros([0, 3], tf.int64)).shape == (0, 3, 2)
    assert layer.compute_mask(tf.constant([0, 2])).numpy().tolist() == [False, True]


def test_each_parameter_server_stores_a_shard_and_only_looked_up_rows_are_read(tmp_path):
    found = parameter_servers.run_script(tmp_path, UPDATE, num_ps=2)
    servers = [f"/job:ps/replica:0/task:{index}/" for index in range(2)]
    assert all(s in device for s, device in zip(servers, sorted(found["devices"]), strict=True))
    assert found["changed"] == {"1": 8.0, "4": 16.0, "7": 8.0}
    assert found["whole_reads"] == 0
