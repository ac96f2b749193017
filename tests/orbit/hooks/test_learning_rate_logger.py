import keras
import pytest

from official_lite.modeling.optimization import adamw
from official_lite.orbit import hooks


def _schedule():
    return keras.optimizers.schedules.ExponentialDecay(0.1, decay_steps=3, decay_rate=0.5)


def _logged(recording_writer, name="learning_rate"):
    return [(r.step, r.values[name]) for r in recording_writer.records if name in r.values]


def test_logged_learning_rate_follows_the_schedule(
    make_keras_trainer, make_controller, recording_writer
):
    trainer = make_keras_trainer(lambda: keras.optimizers.SGD(_schedule()))
    hook = hooks.LearningRateLogger(every_n_steps=2)
    make_controller(trainer, hooks=[hook], steps_per_loop=2).train(6)
    logged = _logged(recording_writer)
    assert [step for step, _ in logged] == [2, 4, 6]
    for step, rate in logged:
        assert rate == pytest.approx(float(_schedule()(step)), abs=1e-7)


def test_logged_learning_rate_includes_the_warmup_of_a_schedule_free_optimizer(
    make_keras_trainer, make_controller, recording_writer
):
    trainer = make_keras_trainer(lambda: adamw.ScheduleFreeAdamW(0.5, warmup_steps=4))
    make_controller(trainer, hooks=[hooks.LearningRateLogger(1)], steps_per_loop=1).train(4)
    # After one update, the next one uses 2/4 of the rate.
    assert _logged(recording_writer) == [(1, 0.25), (2, 0.375), (3, 0.5), (4, 0.5)]


@pytest.mark.parametrize("as_list", [True, False])
def test_learning_rate_of_each_optimizer_is_logged_by_name(
    make_trainer, make_controller, recording_writer, as_list
):
    trainer = make_trainer()
    optimizers = [keras.optimizers.SGD(0.5, name="a"), keras.optimizers.Adam(0.25, name="b")]
    repeated = keras.optimizers.SGD(0.125, name="a")
    named = {"a": optimizers[0], "b": optimizers[1], "a_1": repeated}
    trainer.optimizers = [*optimizers, repeated] if as_list else named
    make_controller(trainer, hooks=[hooks.LearningRateLogger(1)], steps_per_loop=1).train(1)
    assert _logged(recording_writer, "learning_rate/a") == [(1, 0.5)]
    assert _logged(recording_writer, "learning_rate/b") == [(1, 0.25)]
    assert _logged(recording_writer, "learning_rate/a_1") == [(1, 0.125)]
