import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.nas import enas_controllers
from tests import rounding

SIZES = {"first": 3, "second": 2}


@pytest.fixture
def lstm():
    keras.utils.set_random_seed(0)
    return enas_controllers.LstmController(SIZES, units=8, tanh_constant=1.5)


def _along(**indices):
    return lambda label, logits: tf.constant(indices[label])


def test_probabilities_of_all_paths_add_up_to_one(lstm) -> None:
    walks = [lstm.walk(_along(first=i, second=j)) for i in range(3) for j in range(2)]
    # Of six paths with two logarithms each.
    rounding.assert_close(sum(np.exp(walk.log_prob) for walk in walks), 1.0, roundings=6 * 2)


def test_later_label_depends_on_what_was_taken_before(lstm) -> None:
    first, other = (lstm.walk(_along(first=i, second=0)).logits for i in (0, 1))
    np.testing.assert_array_equal(first["first"], other["first"])
    assert not np.allclose(first["second"], other["second"])


def test_no_option_is_ever_ruled_out(lstm) -> None:
    for variable in lstm.variables:
        variable.assign(100.0 * variable)
    walk = lstm.walk(_along(first=0, second=0))
    assert max(float(tf.reduce_max(tf.abs(one))) for one in walk.logits.values()) <= 1.5
    assert 0.0 < float(walk.entropy) < np.log(6.0)


def test_all_of_it_is_trained(lstm) -> None:
    with tf.GradientTape() as tape:
        loss = lstm.walk(_along(first=1, second=1)).log_prob
    gradients = tape.gradient(loss, [v.value for v in lstm.variables])
    unused = [v.name for v, g in zip(lstm.variables, gradients, strict=True) if g is None]
    # After the last label there is nobody to be told.
    assert unused == ["enas_embedding_1"]
