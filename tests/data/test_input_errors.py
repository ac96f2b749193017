import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.data import damaged_files, input_errors


@pytest.fixture(autouse=True)
def no_files_read(monkeypatch):
    monkeypatch.setattr(damaged_files, "_READ", {})


def failed(run):
    """The error of TensorFlow that `run` ends with."""
    with pytest.raises(tf.errors.OpError) as caught:
        run()
    return caught.value


def explanation(error, **arguments):
    with pytest.raises(errors.DataError) as caught:
        input_errors.raise_if_of_data(error, tf.Variable(7), **arguments)
    assert caught.value.__cause__ is error
    return str(caught.value)


def draw_in_graph(dataset):
    iterator = iter(dataset)
    tf.function(lambda: next(iterator))()


@pytest.mark.parametrize("draw", [draw_in_graph, list], ids=["graph", "eager"])
def test_error_of_python_is_shown_with_its_line(draw):
    def rows():
        yield 1
        raise OSError("no answer")

    dataset = tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec([], tf.int32))
    text = explanation(failed(lambda: draw(dataset.batch(2))))
    assert "The training data can't be used around step 7: OSError: no answer (" in text
    assert "test_input_errors.py, line" in text
    assert "in `rows`" in text


def test_error_of_an_op_is_one_line(tmp_path):
    path = str(tmp_path / "missing")
    text = explanation(failed(lambda: draw_in_graph(tf.data.TFRecordDataset(path))), split="eval")
    assert text.startswith("The eval data can't be used around step 7: ")
    assert path in text
    assert "{{" not in text
    assert "\n" not in text


@pytest.mark.parametrize(
    "run",
    [
        lambda: tf.nn.sparse_softmax_cross_entropy_with_logits([5], [[0.0, 1.0]]),
        lambda: tf.gather(tf.zeros([3, 2]), tf.constant([9])),
    ],
)
def test_index_out_of_range_is_put_down_to_the_data(run):
    for call in (run, tf.function(run)):
        assert "a label or an index in a batch is out of range" in explanation(failed(call))


def test_error_of_the_model_is_not():
    error = failed(lambda: tf.linalg.matmul(tf.zeros([2, 3]), tf.zeros([2, 3])))
    input_errors.raise_if_of_data(error, None)
