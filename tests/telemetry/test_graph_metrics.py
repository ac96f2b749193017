"""What comes from replicas; what is the same everywhere is in `test_event_storage.py`."""

import numpy as np
import pytest
import tensorflow as tf

from official_lite import telemetry
from tests import rounding

VALUES = np.random.default_rng(0).normal(size=[20, 2]).astype(np.float32)


@pytest.fixture
def storage():
    with telemetry.EventStorage() as storage:
        yield storage


def run(strategy, put, *, jit_compile=False, in_graph=True):
    """Calls `put(value, i)` for each row of `VALUES`, one column a replica."""
    if in_graph:
        put = tf.function(put, jit_compile=jit_compile)

    def step(i):
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        put(tf.constant(VALUES)[i, replica], i)

    def loop():
        for i in tf.range(len(VALUES)):
            strategy.run(step, args=(i,))

    return (tf.function(loop) if in_graph else loop)()


def _assert_is_mean(found, values):
    rounding.assert_close(found, values.mean(), roundings=values.size, scale=np.abs(values).max())


@pytest.mark.parametrize("jit_compile", [False, True])
def test_means_are_over_steps_and_replicas(storage, two_replicas, jit_compile):
    run(two_replicas, lambda v, i: telemetry.put_scalar("x", v), jit_compile=jit_compile)
    _assert_is_mean(storage.take().scalars["x"], VALUES)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_latest_is_the_mean_over_replicas(storage, two_replicas, jit_compile):
    def put(value, _):
        telemetry.put_scalar("x", value, smoothing_hint=False)

    run(two_replicas, put, jit_compile=jit_compile)
    _assert_is_mean(storage.take().scalars["x"], VALUES[-1])


@pytest.mark.parametrize("jit_compile", [False, True])
def test_branch_counts_only_where_it_is_taken(storage, two_replicas, jit_compile):
    def put(value, i):
        def first():
            telemetry.put_scalar("first", value)
            return 0

        def second():
            telemetry.put_scalar("second", value)
            return 0

        def third():
            return 0

        tf.switch_case(i % 3, [first, second, third])
        if value > 0:
            telemetry.put_scalar("positive", value)

    run(two_replicas, put, jit_compile=jit_compile)
    taken = storage.take().scalars
    _assert_is_mean(taken["first"], VALUES[0::3])
    _assert_is_mean(taken["second"], VALUES[1::3])
    _assert_is_mean(taken["positive"], VALUES[VALUES > 0])


@pytest.mark.parametrize("jit_compile", [False, True])
def test_counts_of_histograms_add_up(storage, two_replicas, jit_compile):
    run(two_replicas, lambda v, i: telemetry.put_histogram("h", v), jit_compile=jit_compile)
    taken = storage.take().histograms["h"]
    expected, _ = np.histogram(VALUES, taken.edges)
    np.testing.assert_array_equal(taken.counts, expected)
    assert taken.counts.sum() == VALUES.size


@pytest.mark.parametrize("jit_compile", [False, True])
def test_image_is_the_latest_of_the_first_replica(storage, two_replicas, jit_compile):
    def put(value, _):
        telemetry.put_image("i", tf.ones([1, 2, 2, 1]) * tf.abs(value) / 10)

    run(two_replicas, put, jit_compile=jit_compile)
    expected = np.round(255 * abs(VALUES[-1, 0]) / 10)
    np.testing.assert_array_equal(storage.take().images["i"], np.full([2, 2, 1], expected))


def test_image_of_the_second_replica_is_taken_if_the_first_has_none(storage, two_replicas):
    @tf.function
    def loop(replica, value):
        def step():
            if tf.distribute.get_replica_context().replica_id_in_sync_group == replica:
                telemetry.put_image("i", tf.fill([1, 1, 1], value))

        two_replicas.run(step)

    for replica, value in [(0, 0.0), (1, 1.0)]:
        loop(tf.constant(replica), tf.constant(value))
        assert storage.take().images["i"].item() == 255 * value
    assert storage.take().images == {}


def test_replicas_that_run_eagerly_report_the_same(storage, two_replicas):
    def put(value, _):
        telemetry.put_scalar("mean", value)
        telemetry.put_scalar("latest", value, smoothing_hint=False)

    run(two_replicas, put, in_graph=False)
    taken = storage.take().scalars
    _assert_is_mean(taken["mean"], VALUES)
    _assert_is_mean(taken["latest"], VALUES[-1])


def test_code_that_runs_once_for_all_replicas_counts_once(storage, two_replicas):
    @tf.function
    def loop():
        two_replicas.run(lambda: telemetry.put_scalar("latest", 1.0, smoothing_hint=False))
        with two_replicas.scope():
            telemetry.put_scalar("latest", 5.0, smoothing_hint=False)
            telemetry.put_scalar("mean", 3.0)
            telemetry.put_histogram("h", [1.0, 1.0])
            telemetry.put_image("i", tf.ones([1, 1, 1]))

    loop()
    taken = storage.take()
    assert taken.scalars == {"latest": 5.0, "mean": 3.0}
    assert taken.histograms["h"].counts.tolist() == [2]
    assert taken.images["i"].item() == 255


def test_retrace_finds_the_same_number(storage, two_replicas):
    @tf.function
    def loop(values):
        two_replicas.run(lambda: telemetry.put_scalar("x", tf.reduce_mean(values)))

    loop(tf.constant([1.0]))
    loop(tf.constant([2.0, 4.0]))
    assert loop.experimental_get_tracing_count() == 2
    assert storage.take().scalars == {"x": 2.0}


def test_name_that_comes_up_later_is_read_too(storage, two_replicas):
    for name in ("b", "a"):
        tf.function(lambda name=name: two_replicas.run(telemetry.put_scalar, (name, 1.0)))()
        assert storage.take().scalars == {name: 1.0}


def test_one_name_under_two_strategies_is_one_number(storage, two_replicas):
    put = tf.function(lambda x: telemetry.put_scalar("x", x))
    put(tf.constant(5.0))
    tf.function(lambda: two_replicas.run(telemetry.put_scalar, ("x", 2.0)))()
    assert storage.take().scalars == {"x": 3.0}


def test_image_may_change_its_size(storage):
    put = tf.function(lambda image: telemetry.put_image("i", image))
    for size in (2, 3, 2):
        put(tf.zeros([size, size, 1]))
        assert storage.take().images["i"].shape == (size, size, 1)


def test_latest_of_images_of_several_sizes_is_taken(storage, two_replicas):
    put = tf.function(lambda image: two_replicas.run(telemetry.put_image, ("i", image)))
    for size in (2, 3, 2):
        put(tf.fill([size, size, 1], size / 255.0))
    np.testing.assert_array_equal(storage.take().images["i"], np.full([2, 2, 1], 2))
    assert storage.take().images == {}


@pytest.mark.parametrize("is_python_last", [False, True])
def test_latest_is_either_of_the_replicas_or_of_the_code_around_them(
    storage, two_replicas, is_python_last
):
    def put_outside():
        telemetry.put_scalar("x", 5.0, smoothing_hint=False)

    if not is_python_last:
        put_outside()
    for value in (1.0, 2.0):
        two_replicas.run(lambda v=value: telemetry.put_scalar("x", v, smoothing_hint=False))
    if is_python_last:
        put_outside()
    assert storage.take().scalars == {"x": 5.0 if is_python_last else 2.0}
