import numpy as np
import tensorflow as tf

from official_lite.nas import draws


def _noise(step, seed=1, salt=2):
    return draws.gumbel_noise([3, 2], seed=seed, step=tf.constant(step, tf.int64), salt=salt)


def test_draw_is_a_function_of_seed_step_and_salt() -> None:
    first, again = _noise(5), _noise(5)
    np.testing.assert_array_equal(first[0], again[0])
    assert [one.shape[0] for one in first] == [3, 2]
    for other in (_noise(6), _noise(5, seed=2), _noise(5, salt=3)):
        assert not np.array_equal(first[0], other[0])


def test_samples_have_the_distribution_of_the_logits() -> None:
    probs = np.array([0.7, 0.2, 0.1], np.float32)

    @tf.function
    def index(step):
        noise = draws.gumbel_noise([3], seed=0, step=step, salt=0)
        return draws.sample([tf.math.log(probs)], noise)[0]

    counts = np.bincount([int(index(tf.constant(s, tf.int64))) for s in range(600)], minlength=3)
    np.testing.assert_allclose(counts / 600, probs, atol=0.06)


def test_draw_is_active_only_within_the_block() -> None:
    draw = draws.Draw(temperature=2.0)
    with draws.active(draw):
        assert draws.current() is draw
    assert draws.current() is None
