import pytest
import tensorflow as tf

from official_lite.core import async_trainer


class Minimal(async_trainer.AsyncTrainer):
    def __init__(self):
        self._strategy = tf.distribute.get_strategy()
        self.init_async()

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
