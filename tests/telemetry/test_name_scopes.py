import contextlib

import tensorflow as tf

from official_lite import telemetry


def test_scopes_nest_and_end():
    with telemetry.EventStorage() as storage:
        with telemetry.name_scope("a"):
            with contextlib.suppress(ZeroDivisionError), telemetry.name_scope("b"):
                telemetry.put_scalar("x", 1.0)
                raise ZeroDivisionError
            telemetry.put_histogram("x", [1.0])
        telemetry.put_image("x", tf.zeros([1, 1, 1]))
        events = storage.take()
    assert [*events.scalars, *events.histograms, *events.images] == ["a/b/x", "a/x", "x"]


def test_replicas_that_take_turns_inside_a_scope_keep_their_names(two_replicas):
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

    with telemetry.EventStorage() as storage:
        loop()
        assert storage.take().scalars == {"outer/inner/x": 1.0}
