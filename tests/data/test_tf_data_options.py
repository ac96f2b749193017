import pytest
import tensorflow as tf

from official_lite import orbit
from official_lite.data import tf_data_options


@pytest.fixture
def dataset():
    return tf.data.Dataset.range(4).map(lambda x: x + 1, num_parallel_calls=tf.data.AUTOTUNE)


def test_tf_data_autotuner_is_disabled_unless_dataset_options_configure_it(dataset):
    settled = tf_data_options.without_idle_autotuner(dataset)
    assert settled.options().autotune.enabled is False
    assert list(settled.as_numpy_iterator()) == [1, 2, 3, 4]
    for name, value in {"enabled": True, "ram_budget": 2**30, "cpu_budget": 1}.items():
        options = tf.data.Options()
        setattr(options.autotune, name, value)
        chosen = dataset.with_options(options)
        assert tf_data_options.without_idle_autotuner(chosen) is chosen
    assert tf_data_options.without_idle_autotuner(None) is None


def test_make_distributed_dataset_disables_the_tf_data_autotuner(dataset, monkeypatch):
    strategy, given = tf.distribute.get_strategy(), []
    monkeypatch.setattr(
        type(strategy),
        "distribute_datasets_from_function",
        lambda self, dataset_fn, options: given.append(dataset_fn(tf.distribute.InputContext())),
    )
    orbit.utils.make_distributed_dataset(strategy, lambda: dataset)
    assert given[0].options().autotune.enabled is False


def test_private_thread_pool_is_set_for_datasets_and_dataset_functions() -> None:
    dataset = tf.data.Dataset.range(3)

    def build_inputs(params, input_context=None):
        return dataset

    function = tf_data_options.with_private_threads(build_inputs, 2)
    for found in (tf_data_options.with_private_threads(dataset, 2), function(None)):
        assert found.options().threading.private_threadpool_size == 2
        assert list(found.as_numpy_iterator()) == [0, 1, 2]
    # The code that distributes the dataset looks for an argument named `input_context`.
    assert function.__wrapped__ is build_inputs
    assert tf_data_options.with_private_threads(dataset, None) is dataset
