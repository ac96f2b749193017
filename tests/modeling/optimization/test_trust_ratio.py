"""The ratio of two norms, 1 where there is none."""

import pytest
import tensorflow as tf

from official_lite.modeling.optimization.trust_ratio import trust_ratio


@pytest.mark.parametrize(
    ("weights", "update", "expected"),
    [([3.0, 4.0], [0.0, 2.0], 2.5), ([0.0, 0.0], [1.0, 1.0], 1.0), ([3.0, 4.0], [0.0, 0.0], 1.0)],
)
def test_ratio_of_norms(weights: list[float], update: list[float], expected: float) -> None:
    assert float(trust_ratio(tf.constant(weights), tf.constant(update))) == expected


def test_coefficient_scales_it_unless_a_norm_is_zero() -> None:
    ones, zeros = tf.ones([2]), tf.zeros([2])
    assert float(trust_ratio(ones, ones, coefficient=0.25)) == 0.25
    assert float(trust_ratio(ones, zeros, coefficient=0.25)) == 1.0
