import pytest
import tensorflow as tf

from official_lite import orbit
from official_lite.data import tf_data_options


@pytest.fixture
def dataset():
    return tf.data.Dataset.range(4).map(lambda x: x + 1, num_parallel_calls=tf.data.AUTOTUNE)


def test_autotuner_is_off_unless_somebody_wants_it(dataset):
    settled = tf_data_options.without_idle_autotuner(dataset)
    assert settled.options().autotune.enabled is False
    assert list(settled.as_numpy_iterator()) == [1, 2, 3, 4]


@pytest.mark.parametrize("wanted", [{"enabled": True}, {"ram_budget": 2**30}, {"cpu_budget": 1}])
def test_dataset_that_says_something_of_it_is_left_alone(dataset, wanted):
    options = tf.data.Options()
    for name, value in wanted.items():
        setattr(options.autotune, name, value)
    chosen = dataset.with_options(options)
    assert tf_data_options.without_idle_autotuner(chosen) is chosen


def test_other_things_are_returned_as_they_are():
    assert tf_data_options.without_idle_autotuner(None) is None


def test_strategy_is_given_a_dataset_without_it(dataset, monkeypatch):
    strategy, given = tf.distribute.get_strategy(), []
    monkeypatch.setattr(
        type(strategy),
        "distribute_datasets_from_function",
        lambda self, dataset_fn, options: given.append(dataset_fn(tf.distribute.InputContext())),
    )
    orbit.utils.make_distributed_dataset(strategy, lambda: dataset)
    assert given[0].options().autotune.enabled is False
