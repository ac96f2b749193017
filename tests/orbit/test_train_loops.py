import tensorflow as tf

from official_lite.orbit import standard_runner
from official_lite.orbit.utils import loop_fns


def _loop(dataset: tf.data.Dataset, drawn: tf.Variable) -> standard_runner.IteratorLoop:
    def step(iterator):
        drawn.assign(drawn * 10 + next(iterator))

    return standard_runner.IteratorLoop(
        lambda: tf.function(loop_fns.create_tf_while_loop_fn(step)), dataset
    )


def test_loop_goes_on_where_it_stopped() -> None:
    drawn = tf.Variable(0, dtype=tf.int64)
    loop = _loop(tf.data.Dataset.range(1, 9), drawn)
    loop(tf.constant(2))
    loop(tf.constant(1))
    assert drawn.numpy() == 123


def test_loop_that_is_traced_anew_goes_on_with_its_data() -> None:
    drawn = tf.Variable(0, dtype=tf.int64)
    loop = _loop(tf.data.Dataset.range(1, 9), drawn)
    loop(tf.constant(2))
    (before,) = loop.trace()
    loop.retrace()
    loop(tf.constant(1))
    assert drawn.numpy() == 123
    assert loop.trace()[0] is not before


def test_other_data_are_read_from_their_beginning_without_a_new_trace() -> None:
    drawn = tf.Variable(0, dtype=tf.int64)
    loop = _loop(tf.data.Dataset.range(1, 9), drawn)
    loop(tf.constant(2))
    (before,) = loop.trace()
    loop.read(tf.data.Dataset.range(5, 9))
    loop(tf.constant(2))
    assert drawn.numpy() == 1256
    assert loop.trace()[0] is before


def test_tracing_runs_nothing() -> None:
    drawn = tf.Variable(0, dtype=tf.int64)
    _loop(tf.data.Dataset.range(1, 9), drawn).trace()
    assert drawn.numpy() == 0
