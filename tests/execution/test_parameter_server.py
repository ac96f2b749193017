import keras
import pytest
import tensorflow as tf

from official_lite.core import base_trainer
from tests import parameter_servers

# Trains with two workers, and looks at everything that counts.
COUNTS = """
import tensorflow as tf

from experiments.vision.digits import configs, task
from official_lite.core import trainer_factory

params = configs.digits_mlp()
params.trainer.optimizer_config.override({"ema": {"average_decay": 0.9}}, is_strict=False)
with strategy.scope():
    digits = task.DigitsTask(params.task)
    trainer = trainer_factory.create_trainer(params, digits, train=True, evaluate=True)
    trainer.train_loop_begin()
    for length in (1, 149, 50):
        trainer.run_steps(tf.constant(length))
    results["batches"] = float(trainer.train_loss.count)
    results["examples"] = float(trainer.train_metrics[0].count)
    logs = trainer.train_loop_end()
    results["steps"] = int(trainer.global_step.numpy())
    results["iterations"] = int(trainer.optimizer.iterations.numpy())
    results["learning_rate"] = float(logs["learning_rate"])
    schedule = trainer.optimizer.inner_optimizer._learning_rate
    results["schedule"] = float(schedule(200))
    results["accuracy"] = float(trainer.evaluate(tf.constant(-1))["accuracy"])
    results["evaluated"] = float(trainer.validation_metrics[0].count)
    # A worker was lost before it could say what it had done.
    lost = trainer.train_loop

    def run_twice(num_steps):
        lost(num_steps)
        lost(tf.constant(3))

    trainer.use_train_loop(run_twice)
    trainer.run_steps(tf.constant(10))
    results["steps_after_loss"] = int(trainer.global_step.numpy())
    results["iterations_after_loss"] = int(trainer.optimizer.iterations.numpy())
    try:
        trainer.execution = "xla"
    except ValueError as error:
        results["xla"] = str(error)
"""


class Minimal(base_trainer._AsyncTrainer):
    def __init__(self):
        self._strategy = tf.distribute.get_strategy()
        self.init_async()
        # As trainers of the Model Garden do.
        self.global_step = tf.Variable(0, dtype=tf.int64)
        self.model, self.optimizer, self.config = keras.Sequential(), keras.optimizers.SGD(), None

    def train_step(self, iterator):
        raise NotImplementedError

    def eval_step(self, iterator):
        raise NotImplementedError


def test_only_a_parameter_server_strategy_has_a_coordinator() -> None:
    trainer = Minimal()
    trainer.join()
    with pytest.raises(ValueError, match="parameter_server"):
        trainer.coordinator_for_async()


def test_data_are_distributed_by_the_strategy() -> None:
    dataset = Minimal().distribute_dataset(lambda: tf.data.Dataset.range(3))
    assert list(dataset.as_numpy_iterator()) == [0, 1, 2]


@pytest.mark.slow
def test_two_workers_lose_no_count_and_the_chief_evaluates_each_example_once(tmp_path):
    found = parameter_servers.run_script(tmp_path, COUNTS)
    assert (found["steps"], found["iterations"]) == (200, 200)
    assert (found["batches"], found["examples"]) == (200, 200 * 64)
    assert found["learning_rate"] == pytest.approx(found["schedule"])
    assert found["evaluated"] == 360
    # Of the averaged weights.
    assert found["accuracy"] > 0.8
    # Steps that were made twice count once.
    assert (found["steps_after_loss"], found["iterations_after_loss"]) == (210, 210)
    assert "graph" in found["xla"]
