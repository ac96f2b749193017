import tensorflow as tf

from official_lite.data import tf_data_options


def test_dataset_and_what_a_function_returns_have_a_pool_of_their_own() -> None:
    dataset = tf.data.Dataset.range(3)

    def build_inputs(params, input_context=None):
        return dataset

    function = tf_data_options.with_private_threads(build_inputs, 2)
    for found in (tf_data_options.with_private_threads(dataset, 2), function(None)):
        assert found.options().threading.private_threadpool_size == 2
        assert list(found.as_numpy_iterator()) == [0, 1, 2]
    # Whoever distributes it asks for this argument by its name.
    assert function.__wrapped__ is build_inputs


def test_without_a_number_nothing_is_changed() -> None:
    dataset = tf.data.Dataset.range(3)
    assert tf_data_options.with_private_threads(dataset, None) is dataset
