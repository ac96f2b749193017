import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import telemetry
from official_lite.common import errors
from tests import rounding


@pytest.fixture
def storage():
    with telemetry.EventStorage() as storage:
        yield storage


class Probe(keras.layers.Layer):
    """A layer that reports what it sees."""

    def call(self, inputs, training=False):
        if training:
            with telemetry.name_scope("probe"):
                telemetry.put_scalar("mean", tf.reduce_mean(inputs))
        return inputs


@pytest.mark.parametrize("jit_compile", [False, True])
def test_mean_of_what_a_layer_puts_in_inside_a_loop_equals_numpy(storage, jit_compile):
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


def test_eager_and_traced_runs_report_the_same(storage):
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
        assert events.scalars == {"mean": 2.0, "latest": 3.0}
        np.testing.assert_array_equal(
            events.histograms["values"].counts, taken[0].histograms["values"].counts
        )
        np.testing.assert_array_equal(events.images["image"], np.full([4, 4, 3], 191))


def test_name_from_python_and_from_a_graph_is_one_number(storage):
    tf.function(lambda: telemetry.put_scalar("x", 1.0))()
    telemetry.put_scalar("x", 4.0)
    telemetry.put_scalar("x", 4.0)
    assert storage.take().scalars == {"x": 3.0}


def test_latest_of_a_name_from_both_sides_is_that_of_python(storage):
    telemetry.put_scalar("x", 4.0, smoothing_hint=False)
    tf.function(lambda: telemetry.put_scalar("x", 1.0, smoothing_hint=False))()
    assert storage.take().scalars == {"x": 4.0}
    tf.function(lambda: telemetry.put_scalar("x", 1.0, smoothing_hint=False))()
    assert storage.take().scalars == {"x": 1.0}


def test_image_from_python_is_later_than_one_from_a_graph(storage):
    tf.function(lambda: telemetry.put_image("x", tf.zeros([1, 1, 1])))()
    telemetry.put_image("x", np.ones([1, 1, 1]))
    assert storage.take().images["x"].item() == 255


def test_latest_value_is_of_the_replicas_or_of_the_host(storage, two_replicas):
    def put_on_replica():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        telemetry.put_scalar("x", float(replica) + 1.0, smoothing_hint=False)

    two_replicas.run(put_on_replica)
    telemetry.put_scalar("x", 9.0, smoothing_hint=False)
    assert storage.take().scalars == {"x": 9.0}
    telemetry.put_scalar("x", 9.0, smoothing_hint=False)
    two_replicas.run(put_on_replica)
    assert storage.take().scalars == {"x": 1.5}


def test_values_of_graphs_stay_until_they_are_asked_for(storage):
    telemetry.put_scalar("python", 1.0)
    tf.function(lambda: telemetry.put_scalar("graph", 2.0))()
    assert storage.take(from_graphs=False).scalars == {"python": 1.0}
    assert storage.take().scalars == {"graph": 2.0}


def test_what_did_not_come_up_again_is_absent(storage):
    put = tf.function(lambda: telemetry.put_scalar("x", 1.0))
    put()
    telemetry.put_histogram("h", [1.0])
    telemetry.put_scalar("y", 1.0)
    storage.take()
    assert storage.take() == telemetry.Events()
    put()
    assert storage.take().scalars == {"x": 1.0}


def test_order_is_that_of_the_names(storage):
    for name in ("b", "c", "a"):
        telemetry.put_scalar(name, 1.0)
    assert list(storage.take().scalars) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "convert",
    [int, float, np.float16, tf.constant, lambda x: np.array([x]), tf.Variable, keras.Variable],
)
def test_any_single_number_will_do(storage, convert):
    value = convert(3)
    telemetry.put_scalar("eager", value)
    tf.function(lambda: telemetry.put_scalar("traced", value))()
    assert storage.take().scalars == {"eager": 3.0, "traced": 3.0}


@pytest.mark.parametrize("value", [[1.0, 2.0], None, "x", np.zeros([2, 2])])
def test_what_is_no_single_number_is_refused(storage, value):
    with pytest.raises(errors.ConfigValueError, match=r"`x` is a .*put_histogram"):
        telemetry.put_scalar("x", value)


def test_several_numbers_are_refused_while_tracing(storage):
    with pytest.raises(errors.ConfigValueError, match=r"`x` is a .*single number"):
        tf.function(lambda: storage.put_scalar("x", tf.zeros([2])), autograph=False)()


def test_changed_hint_is_refused(storage):
    telemetry.put_scalar("x", 1.0)
    with pytest.raises(errors.ConfigValueError, match=r"`x` .*smoothing_hint=True before"):
        telemetry.put_scalar("x", 1.0, smoothing_hint=False)


def test_nothing_happens_outside_of_a_storage():
    step = tf.function(lambda: telemetry.put_scalar("x", 1.0))
    step()
    telemetry.put_scalar("x", object())
    telemetry.put_image("x", np.zeros([1]))
    telemetry.put_histogram("x", [1.0])
    assert telemetry.get_event_storage().take() == telemetry.Events()


def test_storage_can_be_required():
    with pytest.raises(errors.ConfigError, match=r"with telemetry\.EventStorage"):
        telemetry.get_event_storage(required=True)
    with telemetry.EventStorage() as storage:
        assert telemetry.get_event_storage(required=True) is storage


def test_innermost_storage_takes_also_when_entered_twice():
    outer, inner = telemetry.EventStorage(), telemetry.EventStorage()
    with outer:
        with inner, outer:
            telemetry.put_scalar("x", 1.0)
            assert telemetry.get_event_storage() is outer
        assert telemetry.get_event_storage() is outer
    assert outer.take().scalars == {"x": 1.0}
    assert inner.take().scalars == {}


def test_storage_is_current_in_every_thread(storage):
    thread = threading.Thread(target=lambda: telemetry.put_scalar("x", 1.0))
    thread.start()
    thread.join()
    assert storage.take().scalars == {"x": 1.0}


def test_muted_storage_takes_nothing_even_later_from_what_was_traced_then(storage):
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


def test_history_has_single_values_of_python_and_means_of_graphs(storage):
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


def test_history_of_an_unknown_name_suggests_the_nearest(storage):
    telemetry.put_scalar("training_loss", 1.0)
    with pytest.raises(errors.UnknownNameError, match="Did you mean `training_loss`"):
        storage.history("train_loss")


def test_functional_model_can_be_built_within_a_storage(storage):
    inputs = keras.Input([3])
    model = keras.Model(inputs, Probe()(inputs, training=True))
    tf.function(model)(tf.fill([2, 3], 7.0), training=True)
    assert storage.take().scalars == {"probe/mean": 7.0}
