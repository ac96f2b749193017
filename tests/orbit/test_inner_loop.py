import pytest
import tensorflow as tf

from official_lite import orbit
from official_lite.common import errors
from official_lite.orbit.controller import InnerLoop


def test_reporting_interval_of_a_resumed_run_ends_at_a_multiple_of_steps_per_loop(make_trainer):
    trainer = make_trainer()
    trainer.global_step.assign(15)
    loop = InnerLoop(trainer, trainer.global_step, 10)
    assert loop.next_step(15) == 20
    loop.run(15, 20)
    assert loop.is_report_due(20)


def test_inner_loop_call_runs_at_most_steps_per_loop_steps(make_trainer):
    trainer = make_trainer()
    loop = InnerLoop(trainer, trainer.global_step, 10, log_interval=25)
    assert [loop.next_step(step) for step in (0, 10, 20)] == [10, 20, 25]


@pytest.mark.parametrize("count", [0, 2])
def test_train_step_that_does_not_add_one_to_global_step_raises_an_error(
    make_trainer, make_controller, count
):
    class Miscounting(make_trainer):
        def train_step(self, iterator):
            next(iterator)
            self.global_step.assign_add(count)

    message = f"from step 0 to step 5, but `global_step` is {5 * count}"
    with pytest.raises(RuntimeError, match=message):
        make_controller(Miscounting()).train(5)


def test_changed_steps_per_loop_takes_effect_when_the_next_reporting_interval_begins(make_trainer):
    trainer = make_trainer()
    loop = InnerLoop(trainer, trainer.global_step, lambda step: 2 if step < 4 else 5)
    assert loop.next_step(0) == 2
    loop.run(0, 1)
    assert loop.next_step(1) == 2, "the current interval must keep its end"
    loop.run(1, 2)
    loop.report()
    assert loop.next_step(4) == 9


def test_steps_per_second_are_reset_when_read(make_trainer):
    trainer = make_trainer()
    loop = InnerLoop(trainer, trainer.global_step, 10)
    loop.run(0, 10)
    assert loop.take_steps_per_second() > 0
    assert loop.take_steps_per_second() == 0


def test_end_of_data_raises_an_error_that_names_the_step(
    make_trainer, make_controller, make_manager
):
    trainer = make_trainer(tf.data.Dataset.range(4).map(lambda _: 1.0))
    manager = make_manager(trainer, 100)
    controller = make_controller(trainer, checkpoint_manager=manager)
    with pytest.raises(errors.DataError, match="ended at step 4,"):
        controller.train(15)
    assert trainer.weight.numpy() == 4
    assert manager.latest_checkpoint is None


def test_custom_loop_that_hides_the_end_of_the_data_raises_an_error(make_trainer, make_controller):
    class Swallowing(make_trainer):
        def create_train_loop_fn(self):
            return orbit.utils.create_loop_fn(self.train_step)

    trainer = Swallowing(tf.data.Dataset.range(4).map(lambda _: 1.0))
    with pytest.raises(RuntimeError, match="from step 0 to step 10"):
        make_controller(trainer).train(10)
