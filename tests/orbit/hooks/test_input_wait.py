import threading
import time

import pytest
import tensorflow as tf

from official_lite import orbit
from official_lite.common import goodput
from official_lite.core import actions as recovery
from official_lite.data import tf_data_options
from official_lite.orbit import hooks
from tests import waiting

pytestmark = pytest.mark.timing


def _sleeping(seconds, then=lambda: None):
    """Return a graph function that sleeps for `seconds` and returns its input."""

    def sleep(x):
        time.sleep(seconds)
        then()
        return x

    return lambda x: tf.ensure_shape(tf.numpy_function(sleep, [x], x.dtype), x.shape)


@pytest.fixture
def train(make_trainer, make_controller):
    """Return a function that trains 40 steps and returns the median wait share and seconds."""

    class Trainer(make_trainer):
        step_seconds = 0.001
        at_the_end = staticmethod(lambda: None)

        def train_step(self, iterator):
            pause = _sleeping(self.step_seconds, self.at_the_end)
            self.weight.assign_add(pause(next(iterator["data"])))
            self.global_step.assign_add(1)

    def run(
        data_seconds,
        step_seconds=0.001,
        options=None,
        strategy=None,
        cls=Trainer,
        at_the_end=lambda: None,
        when_made=lambda: None,
    ):
        dataset = tf.data.Dataset.from_tensors(1.0).repeat()
        if data_seconds:
            dataset = dataset.map(_sleeping(data_seconds, when_made)).prefetch(1)
        if strategy:
            dataset = strategy.experimental_distribute_dataset(
                tf_data_options.without_idle_autotuner(dataset.batch(2))
            )
        trainer = cls({"data": dataset}, options)
        trainer.step_seconds, trainer.at_the_end = step_seconds, at_the_end
        controller = make_controller(trainer, hooks=[hooks.InputWait(every_n_steps=10)])
        controller.train(40)
        if not controller.train_logs.get("input_wait_share"):
            return None
        names = ("input_wait_share", "input_wait_seconds")
        return [controller.storage.history(name).median() for name in names]

    return run


OPTIONS = [
    orbit.StandardTrainerOptions(),
    orbit.StandardTrainerOptions(use_tf_while_loop=False),
    orbit.StandardTrainerOptions(use_tf_while_loop=False, use_tf_function=False),
]


@pytest.mark.parametrize("options", OPTIONS)
def test_input_wait_share_is_large_when_steps_wait_for_data(train, options):
    share, seconds = train(data_seconds=0.02, options=options)
    assert 0.6 < share <= 1
    assert seconds > 0.01


def test_input_wait_share_is_small_without_a_warning_when_data_are_ready(train, log_lines):
    share, seconds = train(data_seconds=0, step_seconds=0.03)
    assert 0 < share < 0.3
    assert seconds < 0.03
    assert not any("waiting for data" in line for line in log_lines)


def test_data_prepared_during_a_step_does_not_count_as_input_wait(train):
    made, first = threading.Semaphore(0), iter([True])

    def wait_for_the_next() -> None:
        assert made.acquire(timeout=waiting.SECONDS)

    def when_made() -> None:
        # No step runs while the batch of the first step is made.
        if not next(first, False):
            made.release()

    # Without overlap, the share would be 0.5.
    share, _ = train(
        data_seconds=0.03, step_seconds=0.03, at_the_end=wait_for_the_next, when_made=when_made
    )
    assert share < 0.3


def test_input_wait_is_measured_for_distributed_data(train, two_replicas, make_trainer):
    class Trainer(make_trainer):
        def train_step(self, iterator):
            batch = next(iterator["data"])
            two_replicas.run(lambda x: tf.identity(x), args=(batch,))
            self.global_step.assign_add(1)

    share, _ = train(data_seconds=0.02, strategy=two_replicas, cls=Trainer)
    assert share > 0.6


def test_long_waits_for_data_log_one_warning_with_advice(train, log_lines):
    train(data_seconds=0.005)
    advice = [line for line in log_lines if "waiting for data" in line]
    assert len(advice) == 1
    assert "from step 10 to step 20" in advice[0]
    assert "prefetch_buffer_size" in advice[0]


def test_train_step_that_never_calls_next_logs_one_input_wait_warning(
    train, make_trainer, log_lines
):
    class Blind(make_trainer):
        def train_step(self, iterator):
            self.global_step.assign_add(1)

    assert train(data_seconds=0, cls=Blind) is None
    assert sum("does not call `next(iterator)`" in line for line in log_lines) == 1


def test_input_wait_logs_one_warning_for_a_trainer_that_is_not_a_standard_trainer(
    make_controller, log_lines
):
    class Other(orbit.AbstractTrainer):
        def __init__(self):
            self.global_step = orbit.utils.create_global_step()

        def train(self, num_steps):
            self.global_step.assign_add(tf.cast(num_steps, tf.int64))

    trainer = Other()
    make_controller(trainer, evaluator=None, hooks=[hooks.InputWait(every_n_steps=1)]).train(3)
    assert sum("Other is not a `StandardTrainer`" in line for line in log_lines) == 1


def test_input_wait_of_steps_that_a_recovery_discarded_is_not_counted(
    make_trainer, make_controller, make_manager, monkeypatch
):
    counted = []
    monkeypatch.setattr(
        goodput.Goodput, "add_input_wait", lambda self, seconds: counted.append(controller.step)
    )
    trainer, blown_up = make_trainer(), [15]
    manager = make_manager(trainer, 10)

    def recover(output):
        if controller.step in blown_up:
            blown_up.clear()
            recovery.RecoveryAction(manager)(output)

    controller = make_controller(
        trainer,
        hooks=[hooks.InputWait(every_n_steps=10)],
        checkpoint_manager=manager,
        train_actions=[recover],
        log_interval=5,
    )
    controller.train(40)
    assert not blown_up
    # The interval from the restored step 10 to step 20 is skipped, like the first interval.
    assert counted == [30, 40]


def test_input_wait_does_not_change_the_trained_weights(make_task_trainer, make_controller):
    weights = []
    for hook in (hooks.InputWait(every_n_steps=2), hooks.GradientNorm()):
        trainer = make_task_trainer()
        controller = make_controller(trainer, hooks=[hook])
        controller.train(6)
        weights.append(trainer.model.get_weights()[0].tolist())
    assert weights[0] == weights[1]
