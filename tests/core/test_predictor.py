import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import base_task, predictor


def _traced(outputs, scores_classes: bool = True) -> dict[str, np.ndarray]:
    """Compute the columns of `outputs()` in a graph and return them as arrays."""
    columns = tf.function(
        lambda: base_task.outputs_as_columns(outputs(), scores_classes=scores_classes)
    )()
    return {name: column.numpy() for name, column in columns.items()}


def test_nested_model_outputs_become_prediction_columns_with_unique_names() -> None:
    one, two = tf.zeros([3]), tf.ones([3, 2])
    assert list(base_task.outputs_as_columns(one, scores_classes=False)) == ["output"]
    nested = {"boxes": two, "heads": [one, {"mask": two}], "heads_0": two}
    columns = base_task.outputs_as_columns(nested, scores_classes=True)
    assert list(columns) == ["boxes", "heads_0", "heads_1.mask", "heads_0_1"]
    assert list(base_task.outputs_as_columns((one, two), scores_classes=True)) == [
        "output_0",
        "output_1",
    ]


def test_model_output_that_is_none_has_no_prediction_column() -> None:
    outputs = {"score": tf.zeros([3]), "state": None}
    assert list(base_task.outputs_as_columns(outputs, scores_classes=False)) == ["score"]


def test_class_column_requires_class_scores_and_probability_column_requires_a_softmax() -> None:
    logits = np.float32([[0.0, 2.0], [3.0, 1.0]])
    columns = _traced(lambda: tf.identity(tf.nn.softmax(logits)))
    assert columns["class"].tolist() == [1, 0]
    np.testing.assert_array_equal(columns["probability"], columns["output"].max(axis=1))
    assert list(_traced(lambda: tf.constant(logits) * 2.0)) == ["output", "class"]
    assert list(_traced(lambda: tf.nn.softmax(logits), scores_classes=False)) == ["output"]
    assert list(_traced(lambda: tf.nn.softmax(logits[:, :1]))) == ["output"]


def test_categorical_metrics_indicate_class_scores_and_binary_metrics_do_not() -> None:
    assert predictor.are_of_classes([keras.metrics.SparseCategoricalAccuracy()])
    assert not predictor.are_of_classes([keras.metrics.BinaryAccuracy()])


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda: tf.zeros([3]), "returned predictions of type EagerTensor"),
        (dict, "returned no predictions"),
        (lambda: {"index": tf.zeros([3])}, "returned predictions named 'index'"),
        (lambda: {"x": tf.constant(1.0)}, "returned a scalar as 'x'"),
        (lambda: {"x": tf.ragged.constant([[1], []])}, r"RaggedTensor as 'x'.*to_tensor"),
    ],
)
def test_error_for_invalid_predictions_names_the_file_that_defines_predict_step(
    returned, message: str
) -> None:
    def predict_step() -> None: ...

    with pytest.raises(errors.ConfigError, match=message) as caught:
        predictor.checked(predict_step, returned())
    assert "test_predictor.py" in str(caught.value)


def test_replica_predictions_are_joined_in_replica_order_even_if_one_is_empty() -> None:
    predictions = {"x": (tf.constant([[1, 2]]), tf.zeros([0, 5], tf.int32))}
    counts = (tf.constant(1), tf.constant(0))
    parts = predictor.as_arrays(
        predictions,
        counts,
        test_categorical_metrics_indicate_class_scores_and_binary_metrics_do_not,
    )
    (columns,) = predictor.joined(parts)
    assert columns["x"].tolist() == [[1, 2]]
    predictions = {"x": (tf.constant([1, 2]), tf.constant([3]))}
    (columns,) = predictor.joined(predictor.as_arrays(predictions, (tf.constant(-1),) * 2, print))
    assert columns["x"].tolist() == [1, 2, 3]


def test_prediction_with_fewer_rows_than_examples_raises() -> None:
    with pytest.raises(errors.ConfigValueError, match="1 rows as 'x' for a batch of 3 examples"):
        predictor.as_arrays(
            {"x": (tf.zeros([1]),)},
            (tf.constant(3),),
            test_prediction_with_fewer_rows_than_examples_raises,
        )
