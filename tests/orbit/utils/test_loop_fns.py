import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.orbit import utils
from official_lite.orbit.utils import loop_fns


def draw(iterator):
    return next(iterator)


def add(state, outputs):
    return state + outputs


def data(size):
    return iter(tf.data.Dataset.range(size))


def test_python_loop_passes_step_outputs_to_the_reduce_function():
    loop_fn = utils.create_loop_fn(draw)
    assert loop_fn(data(10), 4, state=0, reduce_fn=add) == 6
    assert loop_fn(data(10), tf.constant(-1), state=0, reduce_fn=add) == 45
    assert loop_fn(data(10), 3) is None


@pytest.mark.parametrize("step_fn", [draw, tf.function(draw)])
def test_python_loop_ends_without_an_error_when_the_data_end(step_fn):
    assert utils.create_loop_fn(step_fn)(data(3), 100, state=0, reduce_fn=add) == 3


@pytest.mark.parametrize("step_fn", [draw, tf.function(draw)])
def test_exact_loop_raises_if_the_data_end_before_num_steps(step_fn):
    with pytest.raises(loop_fns.END_OF_DATA):
        loop_fns.create_exact_loop_fn(step_fn)(data(3), tf.constant(4))


def test_while_loop_is_traced_once_for_any_number_of_steps():
    total, traces = tf.Variable(0, dtype=tf.int64), []

    def step_fn(iterator):
        traces.append(1)
        total.assign_add(next(iterator))

    loop_fn = tf.function(utils.create_tf_while_loop_fn(step_fn))
    iterator = data(10)
    for length in (1, 2, 7):
        loop_fn(iterator, tf.constant(length))
    assert (total.numpy(), len(traces)) == (45, 1)


def test_state_of_a_while_loop_may_change_its_shape():
    def append(state, outputs):
        return tf.concat([state, [outputs]], 0)

    loop_fn = tf.function(utils.create_tf_while_loop_fn_with_state(draw))
    state = loop_fn(data(9), tf.constant(3), state=tf.zeros([0], tf.int64), reduce_fn=append)
    assert state.numpy().tolist() == [0, 1, 2]


def test_while_loop_with_a_python_number_as_num_steps_raises():
    for create in (utils.create_tf_while_loop_fn, utils.create_tf_while_loop_fn_with_state):
        arguments = (0, add) if "state" in create.__name__ else ()
        with pytest.raises(errors.ConfigValueError, match="Python value 3"):
            create(draw)(data(9), 3, *arguments)


def test_step_counter_of_a_loop_counts_only_completed_steps():
    step_fn = loop_fns.CountedStep(draw)
    utils.create_loop_fn(step_fn)(data(3), -1)
    assert step_fn.calls == 3


def test_while_loop_writes_summaries_only_in_its_first_step(tmp_path):
    step = tf.Variable(0, dtype=tf.int64)

    def step_fn(iterator):
        tf.summary.scalar("step", next(iterator), step=step)
        step.assign_add(1)

    loop_fn = utils.LoopFnWithSummaries(utils.create_tf_while_loop_fn(step_fn))
    writer = tf.summary.create_file_writer(str(tmp_path))
    with writer.as_default(), tf.summary.record_if(lambda: step == 0):
        loop_fn(data(9), tf.constant(4))
        loop_fn(data(9), tf.constant(4))
    [path] = tmp_path.glob("events*")
    steps = [e.step for e in tf.compat.v1.train.summary_iterator(str(path)) if e.summary.value]
    assert steps == [0]
    assert step.numpy() == 8
