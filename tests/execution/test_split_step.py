import tensorflow as tf

from official_lite.execution import executors
from tests import rounding
from tests.line_experiment import BATCH_SIZE


def test_split_step_updates_as_the_whole_one_on_all_replicas(
    experiment, make_trainer, two_replicas
) -> None:
    weights = []
    for is_split in (False, True):
        with two_replicas.scope():
            trainer = make_trainer(experiment(), evaluate=False)
        if is_split:
            trainer.execution = "xla"
        trainer.train(tf.constant(3))
        weights.append(trainer.model.get_weights())
    for whole, split in zip(*weights, strict=True):
        rounding.assert_close(split, whole, roundings=3 * BATCH_SIZE)


def test_metrics_are_those_it_was_made_with(experiment, make_trainer) -> None:
    trainer = make_trainer(experiment(), evaluate=False)
    executor = executors.XlaExecutor(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))
    step = executor.replica_step(trainer.task.train_step, trainer.train_metrics)
    inputs = next(iter(trainer.train_dataset))
    logs = step(inputs, model=trainer.model, optimizer=trainer.optimizer, metrics=None)
    assert float(logs[trainer.task.loss]) > 0
    assert float(trainer.train_metrics[0].result()) > 0
