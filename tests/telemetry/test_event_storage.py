"""Values that code logs anywhere in a run: eagerly, in graphs, under XLA and on replicas."""

import contextlib
import math
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import telemetry
from official_lite.common import errors
from official_lite.telemetry import event_storage, writer
from tests import rounding

VALUES = np.random.default_rng(0).normal(size=[20, 2]).astype(np.float32)


@pytest.fixture
def storage():
    with telemetry.EventStorage() as storage:
        yield storage


class Probe(keras.layers.Layer):
    """A layer that logs the mean of its inputs."""

    def call(self, inputs, training=False):
        if training:
            with telemetry.name_scope("probe"):
                telemetry.put_scalar("mean", tf.reduce_mean(inputs))
        return inputs


@pytest.mark.parametrize("jit_compile", [False, True])
def test_scalars_that_a_layer_logs_in_a_while_loop_are_averaged(storage, jit_compile):
    probe = Probe()
    data = np.random.default_rng(0).normal(size=[50, 8]).astype(np.float32)

    @tf.function(jit_compile=jit_compile)
    def train(examples):
        def body(i):
            probe(examples[i], training=True)
            return [i + 1]

        tf.while_loop(lambda i: i < 50, body, [0])

    for _ in range(2):
        train(data)
        taken = storage.take().scalars
        rounding.assert_close(taken["probe/mean"], data.mean(), roundings=data.size, scale=1.0)
    assert list(taken) == ["probe/mean"]


def test_same_values_are_logged_in_eager_graph_and_xla_execution(storage):
    def step(value):
        telemetry.put_scalar("mean", value)
        telemetry.put_scalar("latest", value, smoothing_hint=False)
        telemetry.put_histogram("values", [value, 2 * value])
        telemetry.put_image("image", value * tf.ones([4, 4, 3]) / 4)

    taken = []
    for run in (step, tf.function(step), tf.function(step, jit_compile=True)):
        for value in (1.0, 2.0, 3.0):
            run(tf.constant(value))
        taken.append(storage.take())
    for events in taken:
        assert list(events.scalars.items()) == [("latest", 3.0), ("mean", 2.0)]
        np.testing.assert_array_equal(
            events.histograms["values"].counts, taken[0].histograms["values"].counts
        )
        np.testing.assert_array_equal(events.images["image"], np.full([4, 4, 3], 191))


def test_values_logged_eagerly_and_in_a_graph_under_one_name_are_combined(storage):
    mean = tf.function(lambda: telemetry.put_scalar("mean", 1.0))
    latest = tf.function(lambda: telemetry.put_scalar("latest", 1.0, smoothing_hint=False))
    mean()
    for _ in range(2):
        telemetry.put_scalar("mean", 4.0)
    telemetry.put_scalar("latest", 4.0, smoothing_hint=False)
    latest()
    assert storage.take().scalars == {"latest": 4.0, "mean": 3.0}
    latest()
    assert storage.take().scalars == {"latest": 1.0}


def test_image_logged_eagerly_replaces_an_earlier_image_logged_in_a_graph(storage):
    tf.function(lambda: telemetry.put_image("x", tf.zeros([1, 1, 1])))()
    telemetry.put_image("x", np.ones([1, 1, 1]))
    assert storage.take().images["x"].item() == 255


def test_latest_scalar_is_the_replica_mean_unless_the_host_logs_a_later_value(
    storage, two_replicas
):
    def put_on_replica():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        telemetry.put_scalar("x", float(replica) + 1.0, smoothing_hint=False)

    two_replicas.run(put_on_replica)
    telemetry.put_scalar("x", 9.0, smoothing_hint=False)
    assert storage.take().scalars == {"x": 9.0}
    telemetry.put_scalar("x", 9.0, smoothing_hint=False)
    two_replicas.run(put_on_replica)
    assert storage.take().scalars == {"x": 1.5}


def test_reading_only_eager_values_leaves_values_logged_in_graphs_in_the_event_storage(storage):
    telemetry.put_scalar("python", 1.0)
    tf.function(lambda: telemetry.put_scalar("graph", 2.0))()
    assert storage.take(from_graphs=False).scalars == {"python": 1.0}
    assert storage.take().scalars == {"graph": 2.0}


def test_event_storage_take_returns_only_values_logged_since_the_last_take(storage):
    put = tf.function(lambda: telemetry.put_scalar("x", 1.0))
    put()
    telemetry.put_histogram("h", [1.0])
    telemetry.put_scalar("y", 1.0)
    storage.take()
    assert storage.take() == telemetry.Events()
    put()
    assert storage.take().scalars == {"x": 1.0}


@pytest.mark.parametrize("convert", [int, lambda x: np.array([x], np.float16), keras.Variable])
def test_put_scalar_accepts_python_numbers_one_element_arrays_and_variables(storage, convert):
    value = convert(3)
    telemetry.put_scalar("eager", value)
    tf.function(lambda: telemetry.put_scalar("traced", value))()
    assert storage.take().scalars == {"eager": 3.0, "traced": 3.0}


def _put_in_graph(put, value, signature=None):
    def step(value):
        put("x", value)

    tf.function(step, autograph=False, input_signature=signature)(value)


@pytest.mark.parametrize(
    ("act", "named"),
    [
        (lambda: telemetry.put_scalar("x", [1.0, 2.0]), "`x` is a list; .*put_histogram"),
        (lambda: telemetry.put_scalar("x", None), "`x` is a NoneType"),
        (lambda: _put_in_graph(telemetry.put_scalar, tf.zeros([2])), "single number"),
        (lambda: telemetry.put_scalar("old", 1.0, smoothing_hint=False), "smoothing_hint=True"),
        (lambda: telemetry.put_image("x", np.zeros([4, 4])), "`x` has the shape"),
        (lambda: telemetry.put_image("x", np.zeros([4, 4, 2])), "`x` has the shape"),
        (lambda: telemetry.put_image("x", np.zeros([4, 4, 1], np.int32)), "int32"),
        (
            lambda: _put_in_graph(
                telemetry.put_image, tf.zeros([1, 2, 2, 3]), [tf.TensorSpec([None, None, None, 3])]
            ),
            "ensure_shape",
        ),
    ],
)
def test_value_that_cannot_be_logged_is_named_in_the_error(storage, act, named):
    telemetry.put_scalar("old", 1.0)
    with pytest.raises(errors.ConfigValueError, match=named):
        act()


def test_logging_without_an_event_storage_drops_values_and_requiring_a_storage_raises():
    tf.function(lambda: telemetry.put_scalar("x", 1.0))()
    telemetry.put_scalar("x", object())
    telemetry.put_image("x", np.zeros([1]))
    telemetry.put_histogram("x", [1.0])
    assert telemetry.get_event_storage().take() == telemetry.Events()
    with pytest.raises(errors.ConfigError):
        telemetry.get_event_storage(required=True)


def test_innermost_event_storage_is_current_even_if_entered_a_second_time():
    outer, inner = telemetry.EventStorage(), telemetry.EventStorage()
    with outer:
        with inner, outer:
            telemetry.put_scalar("x", 1.0)
            assert telemetry.get_event_storage(required=True) is outer
        assert telemetry.get_event_storage() is outer
    assert outer.take().scalars == {"x": 1.0}
    assert inner.take().scalars == {}


def test_entered_event_storage_is_current_in_every_thread(storage):
    thread = threading.Thread(target=lambda: telemetry.put_scalar("x", 1.0))
    thread.start()
    thread.join()
    assert storage.take().scalars == {"x": 1.0}


def test_muted_event_storage_drops_values_also_of_graphs_that_were_traced_while_it_was_muted(
    storage,
):
    step = tf.function(lambda: telemetry.put_scalar("x", 1.0))
    with storage.muted():
        step()
        telemetry.put_scalar("y", 1.0)
        telemetry.put_histogram("h", [1.0])
        telemetry.put_image("i", np.zeros([1, 1, 1], np.float32))
    step()
    assert storage.take() == telemetry.Events()
    telemetry.put_scalar("y", 1.0)
    assert storage.take().scalars == {"y": 1.0}


def test_functional_model_with_a_layer_that_logs_can_be_built_within_an_event_storage(storage):
    inputs = keras.Input([3])
    model = keras.Model(inputs, Probe()(inputs, training=True))
    tf.function(model)(tf.fill([2, 3], 7.0), training=True)
    assert storage.take().scalars == {"probe/mean": 7.0}


# Histories.


def test_scalar_history_contains_each_eager_value_and_the_means_of_values_logged_in_graphs(storage):
    put = tf.function(lambda x: telemetry.put_scalar("traced", x))
    for step, value in enumerate([1.0, 3.0, 8.0], start=1):
        storage.step = step
        telemetry.put_scalar("eager", value)
        put(tf.constant(value))
        if step != 1:
            storage.take()
    assert storage.history("eager").values() == [(1.0, 1), (3.0, 2), (8.0, 3)]
    assert storage.history("traced").values() == [(2.0, 2), (8.0, 3)]
    assert storage.history("traced").global_mean() == 4.0
    with pytest.raises(errors.UnknownNameError, match="`eager`"):
        storage.history("eger")


def test_scalar_history_statistics_after_a_rewind_cover_only_the_remaining_values():
    history = telemetry.ScalarHistory(max_length=3)
    for step, value in enumerate([4.0, 5.0, 6.0, math.nan], start=1):
        history.add(value, step, weight=step)
    history.rewind(3)
    assert history.values() == [(5.0, 2), (6.0, 3)]
    # The global mean still includes the first value, which is no longer stored.
    assert history.global_mean() == (4.0 + 2 * 5.0 + 3 * 6.0) / 6
    history.rewind(0)
    history.add(7.0, 1)
    assert (history.values(), history.global_mean()) == ([(7.0, 1)], 7.0)


@pytest.mark.parametrize("window", [1, 20, 1000])
def test_scalar_history_statistics_equal_those_of_numpy(window):
    values = np.random.default_rng(0).normal(size=100)
    history = telemetry.ScalarHistory(max_length=90)
    for step, value in enumerate(values):
        history.add(value, step)
    assert history.values() == [(values[i], i) for i in range(10, 100)]
    assert history.latest() == values[-1]
    assert history.median(window) == np.median(values[10:][-window:])
    assert history.mean(window) == pytest.approx(np.mean(values[10:][-window:]))
    # The global mean includes values that are no longer stored.
    assert history.global_mean() == pytest.approx(values.mean())
    history.add(math.nan, 100)
    numbers = (history.latest(), history.median(), history.mean(), history.global_mean())
    assert all(map(math.isnan, numbers))


# Replicas.


def run(strategy, put, *, jit_compile=False, in_graph=True):
    """Call `put(value, i)` for each row of `VALUES`, with one column per replica."""
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
def test_values_of_all_steps_and_replicas_are_combined(storage, two_replicas, jit_compile):
    def put(value, i):
        def first():
            telemetry.put_scalar("first", value)
            return 0

        def second():
            telemetry.put_scalar("second", value)
            return 0

        def third():
            return 0

        telemetry.put_scalar("mean", value)
        telemetry.put_scalar("latest", value, smoothing_hint=False)
        telemetry.put_histogram("h", value)
        telemetry.put_image("i", tf.ones([1, 2, 2, 1]) * tf.abs(value) / 10)
        # A branch logs its value only at the steps that take it.
        tf.switch_case(i % 3, [first, second, third])
        if value > 0:
            telemetry.put_scalar("positive", value)

    run(two_replicas, put, jit_compile=jit_compile)
    taken = storage.take()
    _assert_is_mean(taken.scalars["mean"], VALUES)
    _assert_is_mean(taken.scalars["latest"], VALUES[-1])
    _assert_is_mean(taken.scalars["first"], VALUES[0::3])
    _assert_is_mean(taken.scalars["second"], VALUES[1::3])
    _assert_is_mean(taken.scalars["positive"], VALUES[VALUES > 0])
    histogram = taken.histograms["h"]
    np.testing.assert_array_equal(histogram.counts, np.histogram(VALUES, histogram.edges)[0])
    assert histogram.counts.sum() == VALUES.size
    # The image is the latest one of the first replica.
    expected = np.round(255 * abs(VALUES[-1, 0]) / 10)
    np.testing.assert_array_equal(taken.images["i"], np.full([2, 2, 1], expected))


def test_scalars_of_eager_replicas_are_averaged_over_steps_unless_smoothing_hint_is_false(
    storage, two_replicas
):
    def put(value, _):
        telemetry.put_scalar("mean", value)
        telemetry.put_scalar("latest", value, smoothing_hint=False)

    run(two_replicas, put, in_graph=False)
    taken = storage.take().scalars
    _assert_is_mean(taken["mean"], VALUES)
    _assert_is_mean(taken["latest"], VALUES[-1])


def test_image_of_the_second_replica_is_reported_if_the_first_replica_logs_none(
    storage, two_replicas
):
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


def test_value_logged_outside_replica_code_is_counted_once(storage, two_replicas):
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


def test_values_logged_in_a_second_trace_or_under_a_new_name_are_reported(storage, two_replicas):
    @tf.function
    def loop(values):
        two_replicas.run(lambda: telemetry.put_scalar("x", tf.reduce_mean(values)))

    loop(tf.constant([1.0]))
    loop(tf.constant([2.0, 4.0]))
    assert loop.experimental_get_tracing_count() == 2
    assert storage.take().scalars == {"x": 2.0}
    tf.function(lambda: two_replicas.run(telemetry.put_scalar, ("a", 1.0)))()
    assert storage.take().scalars == {"a": 1.0}


def test_values_logged_under_one_name_in_two_strategies_are_averaged(storage, two_replicas):
    put = tf.function(lambda x: telemetry.put_scalar("x", x))
    put(tf.constant(5.0))
    tf.function(lambda: two_replicas.run(telemetry.put_scalar, ("x", 2.0)))()
    assert storage.take().scalars == {"x": 3.0}


def test_latest_image_is_reported_even_if_image_sizes_differ(storage, two_replicas):
    put = tf.function(lambda image: two_replicas.run(telemetry.put_image, ("i", image)))
    for size in (2, 3, 2):
        put(tf.fill([size, size, 1], size / 255.0))
    np.testing.assert_array_equal(storage.take().images["i"], np.full([2, 2, 1], 2))
    assert storage.take().images == {}


# Name scopes.


def test_name_scopes_nest_and_end_even_after_an_error(storage):
    with telemetry.name_scope("a"):
        with contextlib.suppress(ZeroDivisionError), telemetry.name_scope("b"):
            telemetry.put_scalar("x", 1.0)
            raise ZeroDivisionError
        telemetry.put_histogram("x", [1.0])
    telemetry.put_image("x", tf.zeros([1, 1, 1]))
    events = storage.take()
    assert [*events.scalars, *events.histograms, *events.images] == ["a/b/x", "a/x", "x"]


def test_name_scopes_are_kept_when_replicas_alternate_inside_them(storage, two_replicas):
    def step():
        with telemetry.name_scope("inner"):
            context = tf.distribute.get_replica_context()
            # Each replica waits here for the other, which opens its scope meanwhile.
            context.all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(1.0))
            telemetry.put_scalar("x", 1.0)

    @tf.function
    def loop():
        with telemetry.name_scope("outer"):
            two_replicas.run(step)

    loop()
    assert storage.take().scalars == {"outer/inner/x": 1.0}


# Images and histograms.


def test_logged_image_is_the_first_of_its_batch_scaled_to_8_bits():
    values = np.array([0.0, 0.5, 1.0, 2.0, -1.0, np.nan, np.inf], np.float32)
    pixels = event_storage.to_pixels("i", values.reshape([1, 7, 1])).numpy().ravel()
    assert pixels.tolist() == [0, 128, 255, 255, 0, 0, 255]
    assert (event_storage.to_pixels("i", tf.ones([1, 1, 3], tf.bfloat16)).numpy() == 255).all()
    integers = np.arange(12, dtype=np.uint8).reshape([2, 2, 3])
    np.testing.assert_array_equal(event_storage.to_pixels("i", integers), integers)
    batch = tf.stack([tf.zeros([2, 2, 1]), tf.ones([2, 2, 1])])
    assert event_storage.to_pixels("i", batch).numpy().max() == 0


def test_image_batch_in_a_graph_may_have_an_unknown_batch_size():
    step = tf.function(
        lambda images: event_storage.to_pixels("i", images),
        input_signature=[tf.TensorSpec([None, 2, 2, 3])],
    )
    assert step(tf.ones([1, 2, 2, 3])).numpy().min() == 255


@pytest.mark.parametrize("scale", [1e-13, 1.0, 1e6])
def test_histogram_counts_equal_those_of_numpy(scale):
    values = (np.random.default_rng(0).normal(size=[100, 10]) * scale).astype(np.float32)
    found = writer.histogram_of(writer.bucket_counts(values))
    np.testing.assert_array_equal(found.counts, np.histogram(values, found.edges)[0])
    assert found.counts.sum() == values.size


def test_histogram_has_narrow_buckets_but_no_more_than_wandb_accepts():
    edges = writer.histogram_of(np.ones(writer.NUM_BUCKETS)).edges
    positive = edges[edges > 0]
    assert np.max(positive[1:] / positive[:-1]) <= 1.25
    assert (np.diff(edges) > 0).all()
    assert writer.NUM_BUCKETS <= 512


def test_histogram_value_on_a_bucket_edge_is_counted_in_the_bucket_away_from_zero():
    [above] = writer.histogram_of(writer.bucket_counts([1.0])).edges.reshape([1, 2])
    [below] = writer.histogram_of(writer.bucket_counts([-1.0])).edges.reshape([1, 2])
    assert above.tolist() == [1.0, 1.25]
    assert below.tolist() == [-1.25, -1.0]


def test_histogram_accepts_values_of_any_size_shape_and_type():
    values = [np.nan, np.inf, -np.inf, 1e30, -1e30, 0.0, -0.0]
    counts = writer.bucket_counts(np.array(values)).numpy()
    assert counts.sum() == 6
    assert counts[0] == counts[-1] == counts[writer.NUM_BUCKETS // 2] == 2
    for shape in ([], [3, 0], [2, 3, 4]):
        for dtype in (tf.bfloat16, tf.int32, tf.bool):
            counts = writer.bucket_counts(tf.cast(tf.ones(shape), dtype))
            assert counts.numpy().sum() == np.prod(shape)
    assert writer.histogram_of(np.zeros(writer.NUM_BUCKETS)).counts.size == 0
