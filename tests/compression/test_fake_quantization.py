import numpy as np
import tensorflow as tf

from official_lite.compression import fake_quantization


def test_each_channel_has_at_most_255_values_and_keeps_its_largest() -> None:
    kernel = tf.random.stateless_normal((3, 3, 64, 2), (0, 1)) * [0.01, 10.0]
    rounded = fake_quantization.quantize_kernel(kernel, (3,)).numpy()
    for one, exact in zip(
        np.moveaxis(rounded, 3, 0), np.moveaxis(kernel.numpy(), 3, 0), strict=True
    ):
        step = np.abs(exact).max() / 127
        assert len(np.unique(np.round(one / step))) <= 255
        assert np.abs(one - exact).max() <= step / 2 * 1.001
        np.testing.assert_allclose(np.abs(one).max(), np.abs(exact).max(), rtol=1e-6)


def test_folding_a_scale_into_a_kernel_changes_no_integer() -> None:
    kernel = tf.random.stateless_normal((64, 8), (0, 1))
    scale = tf.random.stateless_normal((8,), (2, 3))
    before = fake_quantization.quantize_kernel(kernel, (1,)) * scale
    after = fake_quantization.quantize_kernel(kernel * scale, (1,))
    np.testing.assert_allclose(before, after, rtol=1e-5, atol=1e-6)


def test_kernel_of_zeros_stays_zero() -> None:
    assert not np.any(fake_quantization.quantize_kernel(tf.zeros((4, 2)), (1,)))


def test_gradient_passes_the_rounding_and_stops_outside_of_the_range() -> None:
    x = tf.constant([-3.0, -0.5, 0.5, 3.0])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        kernel = fake_quantization.quantize_kernel(x[:, None], (1,))
        activation = fake_quantization.quantize_activation(x, -1.0, 1.0)
    np.testing.assert_array_equal(tape.gradient(kernel, x), [1.0, 1.0, 1.0, 1.0])
    np.testing.assert_array_equal(tape.gradient(activation, x), [0.0, 1.0, 1.0, 0.0])
