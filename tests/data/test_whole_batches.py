import pytest
import tensorflow as tf

from official_lite.core import tf_example_builder
from official_lite.data import whole_batches

FEATURES = {
    "dense": tf.io.FixedLenFeature([2], tf.float32),
    "words": tf.io.VarLenFeature(tf.string),
}


@pytest.fixture
def records():
    return [
        tf_example_builder.TfExampleBuilder()
        .add_floats_feature("dense", [n, -n])
        .add_bytes_feature("words", [b"w"] * n)
        .example.SerializeToString()
        for n in range(4)
    ]


def test_a_mark_changes_nothing_else():
    def scale(x, factor=2):
        """Doc."""
        return x * factor

    marked = whole_batches.takes_batches(scale)
    assert whole_batches.is_for_batches(marked)
    assert marked(3, factor=5) == 15
    assert marked.__doc__ == "Doc."
    assert not whole_batches.is_for_batches(scale)
    assert not whole_batches.is_for_batches(None)


def test_features_of_a_batch_are_those_of_its_examples(records):
    decoder = whole_batches.FeatureDecoder(FEATURES)
    assert whole_batches.is_for_batches(decoder.decode)
    batch = decoder.decode(tf.constant(records))
    assert batch["dense"].numpy().tolist() == [[n, -n] for n in range(4)]
    assert batch["words"].indices[:, 0].numpy().tolist() == [1, 2, 2, 3, 3, 3]


def test_one_record_is_decoded_as_well(records):
    example = whole_batches.FeatureDecoder(FEATURES).decode(tf.constant(records[3]))
    assert example["dense"].numpy().tolist() == [3, -3]
    assert example["words"].values.shape == (3,)


def test_functions_of_one_example_are_vectorized():
    examples = tf.data.Dataset.from_tensor_slices((tf.range(4), tf.range(4.0)))
    fn = whole_batches.vectorize(lambda i, x: {"sum": tf.cast(i, tf.float32) + x})
    (batch,) = examples.batch(4).map(fn)
    assert batch["sum"].numpy().tolist() == [0, 2, 4, 6]


def test_what_cannot_be_vectorized_is_named():
    images = tf.data.Dataset.from_tensors(["", ""])
    with pytest.raises(ValueError, match="DecodeJpeg"):
        images.map(whole_batches.vectorize(tf.io.decode_jpeg))
