import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.telemetry import event_storage


def test_floats_are_scaled_and_clipped():
    image = np.array([0.0, 0.5, 1.0, 2.0, -1.0, np.nan, np.inf], np.float32).reshape([1, 7, 1])
    assert event_storage.to_pixels("i", image).numpy().ravel().tolist() == [
        0,
        128,
        255,
        255,
        0,
        0,
        255,
    ]


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64])
def test_any_float_will_do(dtype):
    assert event_storage.to_pixels("i", tf.ones([1, 1, 3], dtype)).numpy().tolist() == [[[255] * 3]]


def test_uint8_stays():
    image = np.arange(12, dtype=np.uint8).reshape([2, 2, 3])
    np.testing.assert_array_equal(event_storage.to_pixels("i", image), image)


def test_first_of_a_batch_is_taken():
    batch = tf.stack([tf.zeros([2, 2, 1]), tf.ones([2, 2, 1])])
    assert event_storage.to_pixels("i", batch).numpy().max() == 0


@pytest.mark.parametrize(
    "image", [np.zeros([4, 4]), np.zeros([4, 4, 2]), np.zeros([1, 1, 1, 1, 1])]
)
def test_other_shapes_are_refused(image):
    with pytest.raises(errors.ConfigValueError, match="`i` has the shape"):
        event_storage.to_pixels("i", image)


def test_other_types_are_refused():
    with pytest.raises(errors.ConfigValueError, match="`i` is of type int32"):
        event_storage.to_pixels("i", np.zeros([4, 4, 1], np.int32))


def test_unknown_size_in_a_graph_is_refused():
    signature = [tf.TensorSpec([None, None, None, 3])]

    @tf.function(input_signature=signature, autograph=False)
    def step(images):
        return event_storage.to_pixels("i", images)

    with pytest.raises(errors.ConfigValueError, match=r"ensure_shape"):
        step(tf.zeros([1, 2, 2, 3]))


def test_unknown_batch_size_in_a_graph_is_fine():
    step = tf.function(
        lambda images: event_storage.to_pixels("i", images),
        input_signature=[tf.TensorSpec([None, 2, 2, 3])],
    )
    assert step(tf.ones([1, 2, 2, 3])).numpy().min() == 255
