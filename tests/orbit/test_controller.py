import keras
import pytest
import tensorflow as tf

from official_lite import orbit, telemetry
from official_lite.common import errors


def test_construction_restores_the_newest_checkpoint(make_trainer, make_controller, make_manager):
    trainer = make_trainer()
    make_controller(trainer, checkpoint_manager=make_manager(trainer, 5)).train(8)
    resumed = make_trainer()
    make_controller(resumed, checkpoint_manager=make_manager(resumed, 5))
    assert (resumed.global_step.numpy(), resumed.weight.numpy()) == (8, 8)


def test_continuous_evaluation_takes_every_checkpoint_in_order(
    make_trainer, make_controller, make_manager, recording_writer
):
    trainer = make_trainer()
    make_controller(trainer, checkpoint_manager=make_manager(trainer, 2), writers=[]).train(6)
    watcher = make_trainer()
    controller = make_controller(watcher, checkpoint_manager=make_manager(watcher))
    logs = controller.evaluate_continuously(timeout=0)
    assert recording_writer.steps("validation") == [2, 4, 6]
    assert logs["accuracy"] == 6


def test_continuous_evaluation_skips_what_was_removed_meanwhile(
    make_trainer, make_controller, make_manager, recording_writer
):
    trainer = make_trainer()
    manager = make_manager(trainer, 2)
    make_controller(trainer, checkpoint_manager=manager, writers=[]).train(6)

    def remove_second(output):
        for suffix in (".index", ".data-00000-of-00001"):
            tf.io.gfile.remove(manager.checkpoints[1] + suffix)
        controller.eval_actions = ()

    controller = make_controller(trainer, checkpoint_manager=manager, eval_actions=[remove_second])
    controller.evaluate_continuously(timeout=0)
    assert recording_writer.steps("validation") == [2, 6]


def test_continuous_evaluation_of_nothing_is_an_error(make_trainer, make_controller, make_manager):
    trainer = make_trainer()
    controller = make_controller(trainer, checkpoint_manager=make_manager(trainer))
    with pytest.raises(errors.CheckpointError, match="No checkpoint"):
        controller.evaluate_continuously(timeout=0)


def test_continuous_evaluation_can_be_stopped(
    make_trainer, make_controller, make_manager, recording_writer
):
    trainer = make_trainer()
    manager = make_manager(trainer, 2)
    make_controller(trainer, checkpoint_manager=manager, writers=[]).train(6)
    controller = make_controller(
        trainer,
        checkpoint_manager=manager,
        eval_actions=[lambda _: controller.request_stop("seen enough")],
    )
    controller.evaluate_continuously()
    assert recording_writer.steps("validation") == [2]


def test_evaluation_counts_the_steps_it_took(make_trainer, make_controller):
    trainer = make_trainer()
    make_controller(trainer).evaluate(steps=100)
    assert trainer.steps_run == 4


def test_steps_per_loop_may_depend_on_the_step(make_trainer, make_controller):
    trainer = make_trainer()
    controller = make_controller(trainer, steps_per_loop=lambda step: 2 if step < 4 else 5)
    assert controller.steps_per_loop == 2
    controller.train(9)
    assert controller.steps_per_loop == 5
    assert [event for event in trainer.events if "end" in event] == ["end 2", "end 4", "end 9"]


def test_replicas_train_under_one_controller(make_controller, two_replicas):
    strategy = two_replicas

    class Trainer(orbit.StandardTrainer):
        def __init__(self):
            self.weight = keras.Variable(1.0)
            self.optimizer = keras.optimizers.SGD(0.5)
            self.optimizer.build([self.weight])
            self.global_step = self.optimizer.iterations
            dataset = tf.data.Dataset.from_tensors(1.0).repeat().batch(2)
            super().__init__(orbit.utils.make_distributed_dataset(strategy, dataset))

        def train_step(self, iterator):
            def replica_step(x):
                self.optimizer.apply_gradients([(tf.reduce_sum(x), self.weight)])

            strategy.run(replica_step, args=(next(iterator),))

    with strategy.scope():
        trainer = Trainer()
    make_controller(trainer, evaluator=None, strategy=strategy).train(3)
    assert int(trainer.global_step.numpy()) == 3
    assert float(trainer.weight.numpy()) == pytest.approx(1.0 - 3 * 2 * 0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"trainer": None, "evaluator": None}, "`trainer`, an `evaluator`"),
        ({"global_step": 3}, "pass a `tf.Variable`"),
        ({"steps_per_loop": None}, "`steps_per_loop` is None"),
        ({"steps_per_loop": 0}, "`steps_per_loop` is 0"),
        ({"summary_interval": -1}, "interval of -1"),
    ],
)
def test_impossible_arguments_are_refused(make_trainer, make_controller, arguments, message):
    with pytest.raises(errors.ConfigValueError, match=message):
        make_controller(make_trainer(), **arguments)


def test_missing_part_is_named(make_trainer, make_controller):
    controller = make_controller(make_trainer(), evaluator=None)
    with pytest.raises(errors.ConfigValueError, match="`evaluate` needs a `evaluator`"):
        controller.evaluate()
    with pytest.raises(errors.ConfigValueError, match="`steps` is 0"):
        make_controller(make_trainer()).evaluate(steps=0)


def test_restoring_can_wait(make_trainer, make_controller, make_manager):
    trainer = make_trainer()
    make_controller(trainer, checkpoint_manager=make_manager(trainer, interval=2)).train(2)
    trainer = make_trainer()
    manager = make_manager(trainer)
    controller = make_controller(trainer, checkpoint_manager=manager, restore=False)
    assert trainer.global_step.numpy() == 0
    assert controller.model_dir == manager.directory
    controller.restore_checkpoint()
    assert trainer.global_step.numpy() == 2


def test_second_controller_reads_what_the_traced_step_puts_in(make_trainer, make_controller):
    trainer = make_trainer()
    first, second = make_controller(trainer), make_controller(trainer)
    assert first.storage is second.storage


def test_trainer_that_knows_no_graph_hooks_refuses_them(make_trainer, make_controller):
    with pytest.raises(errors.ConfigTypeError, match="CountingTrainer can't run the graph hook"):
        make_controller(make_trainer(), hooks=[orbit.GraphHook()])


def test_evaluation_puts_nothing_into_the_storage(make_trainer, make_controller, recording_writer):
    class Loud(make_trainer):
        def eval_step(self, iterator):
            next(iterator)
            telemetry.put_scalar("loud", 1.0)

    make_controller(Loud()).train_and_evaluate(10, eval_interval=5)
    assert recording_writer.steps("validation") == [5, 10]
    assert not any("loud" in record.flat() for record in recording_writer.records)


def test_hooks_of_an_evaluation_alone_are_heard(make_trainer, make_controller, recording_writer):
    class Counts(orbit.Hook):
        def after_eval(self, logs):
            self.controller.storage.put_scalar("seen", 1.0)

    make_controller(make_trainer(), hooks=[Counts()]).evaluate()
    assert [record.flat().get("seen") for record in recording_writer.records] == [None, 1.0]
