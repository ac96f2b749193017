"""An embedding that reads only rows computes what the Keras embedding computes."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.modeling import embedding_lookups

IDS = [[0, 3, 3], [-1, 2, -4]]


def _model(**kwargs: Any) -> keras.Model:
    ids = keras.Input((3,), dtype=kwargs.pop("input_dtype", "int32"))
    table = keras.layers.Embedding(4, 2, name="table", mask_zero=True, **kwargs)
    return keras.Model(ids, table(ids))


def _look_up(model: keras.Model, ids: Any) -> tuple[Any, Any]:
    """Return the rows and the gradient of the sum of their squares."""

    @tf.function
    def look_up(ids: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            rows = model(ids)
            loss = tf.reduce_sum(tf.cast(rows, tf.float32) ** 2)
        return rows, tape.gradient(loss, model.trainable_variables)

    return look_up(tf.constant(ids))


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        ({}, IDS),
        ({"input_dtype": "int64"}, np.array(IDS, np.int64)),
        ({"input_dtype": "float32"}, np.array(IDS, np.float32)),
        ({"dtype": "mixed_float16"}, IDS),
        ({"lora_rank": 1}, IDS),
    ],
)
def test_embedding_row_lookups_and_their_gradients_match_keras(
    arguments: dict[str, Any], ids: Any
) -> None:
    model = _model(**arguments)
    expected_rows, expected = _look_up(model, ids)
    embedding_lookups.read_rows_only(model)
    rows, gradients = _look_up(model, ids)
    assert rows.dtype == expected_rows.dtype
    np.testing.assert_array_equal(rows, expected_rows)
    for one, other in zip(gradients, expected, strict=True):
        np.testing.assert_array_equal(tf.convert_to_tensor(one), tf.convert_to_tensor(other))


def _ops_that_read(model: keras.Model) -> set[str]:
    look_up = tf.function(lambda ids: model(ids)).get_concrete_function(tf.constant(IDS))
    handles = [captured for _, captured in look_up.graph.captures]
    assert len(handles) == 1
    (table,) = (internal for _, internal in look_up.graph.captures)
    return {op.type for op in table.consumers()}


def test_lookup_gathers_rows_without_reading_the_whole_table() -> None:
    model = _model()
    assert "ReadVariableOp" in _ops_that_read(model)
    embedding_lookups.read_rows_only(model)
    assert _ops_that_read(model) == {"ResourceGather"}


def test_embedding_row_lookups_on_two_replicas_match_keras(
    two_replicas: tf.distribute.Strategy,
) -> None:
    with two_replicas.scope():
        model = _model()
    expected = model(tf.constant(IDS))
    embedding_lookups.read_rows_only(model)
    rows = two_replicas.run(tf.function(lambda: model(tf.constant(IDS))))
    for one in two_replicas.experimental_local_results(rows):
        np.testing.assert_array_equal(one, expected)


def test_stateless_embedding_call_looks_up_rows_in_the_table_passed_to_it() -> None:
    model = _model()
    embedding_lookups.read_rows_only(model)
    rows, _ = model.stateless_call([tf.ones((4, 2))], [], tf.constant(IDS))
    np.testing.assert_array_equal(rows, np.ones((2, 3, 2)))


def test_model_that_reads_single_embedding_rows_can_be_exported_and_supports_lora(
    tmp_path: Any,
) -> None:
    model = _model()
    embedding_lookups.read_rows_only(model)
    model.export(tmp_path / "model", verbose=False)
    exported = tf.saved_model.load(str(tmp_path / "model"))
    np.testing.assert_array_equal(exported.serve(tf.constant(IDS)), model(tf.constant(IDS)))
    model.get_layer("table").enable_lora(1)
    _, gradients = _look_up(model, IDS)
    assert [gradient is None for gradient in gradients] == [False, False]


def test_subclassed_embeddings_are_not_replaced_by_single_row_lookups() -> None:
    class Doubled(keras.layers.Embedding):
        def call(self, inputs: Any) -> Any:
            return 2.0 * super().call(inputs)

    model = keras.Sequential([Doubled(4, 2)])
    expected = model(tf.constant(IDS))
    for other in (model, tf.Module(), keras.Sequential([keras.layers.Embedding(2, 2)])):
        embedding_lookups.read_rows_only(other)
    np.testing.assert_array_equal(model(tf.constant(IDS)), expected)


def test_only_trainable_embeddings_of_a_model_are_found_as_embedding_tables() -> None:
    layers = [keras.layers.Embedding(2**18, 16), keras.layers.Embedding(10, 2)]
    frozen = keras.layers.Embedding(10, 2, trainable=False)
    ids = keras.Input((3,), dtype="int32")
    outputs = [layer(ids) for layer in (*layers, frozen, layers[0])]
    model = keras.Model(ids, outputs)
    tables = embedding_lookups.tables(model)
    assert {id(table) for table in tables} == {id(layer.embeddings) for layer in layers}
    assert sorted(map(embedding_lookups.is_large, tables)) == [False, True]
