import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import tf_example_builder
from official_lite.data import example_stream
from official_lite.modeling.hyperparams import base_config


def _stream(dataset):
    return example_stream.ExampleStream(dataset, chunk_size=4, num_parallel_calls=2)


def _values(dataset):
    return [element.tolist() for element in dataset.as_numpy_iterator()]


def _double(x):
    return 2 * x


def _is_odd_half(x):
    return x // 2 % 2 == 1


@pytest.mark.parametrize("mark", [lambda fn: fn, example_stream.takes_batches])
def test_per_example_and_per_batch_functions_give_the_same_results(mark):
    stream = _stream(tf.data.Dataset.range(10)).map(mark(_double)).filter(mark(_is_odd_half))
    assert stream.map(None).filter(None) is stream
    assert _values(stream.singly()) == [2, 6, 10, 14, 18]
    assert _values(stream.batch(2, drop_remainder=True)) == [[2, 6], [10, 14]]
    assert _values(stream.batch(2, drop_remainder=False)) == [[2, 6], [10, 14], [18]]
    assert stream.batch(2, drop_remainder=True).element_spec.shape == (2,)


def test_function_decorated_with_takes_batches_receives_whole_chunks_of_examples():
    seen = []

    @example_stream.takes_batches
    def note(x):
        tf.py_function(lambda x: seen.append(x.numpy().tolist()), [x], [])
        return x

    stream = (
        _stream(tf.data.Dataset.range(6))
        .map(note)
        .filter(example_stream.takes_batches(lambda x: x % 2 == 0))
    )
    assert _values(stream.map(note).batch(6, drop_remainder=False)) == [[0, 2, 4]]
    assert sorted(seen) == [[0, 1, 2, 3], [0, 2], [4], [4, 5]]


def test_dataset_transformation_receives_unbatched_examples():
    stream = _stream(tf.data.Dataset.range(6)).map(example_stream.takes_batches(_double))
    assert _values(stream.apply(lambda dataset: dataset.skip(1)).singly()) == [2, 4, 6, 8, 10]


@pytest.mark.parametrize("mark", [lambda fn: fn, example_stream.takes_batches])
def test_filters_accept_nested_examples(mark):
    numbers = np.arange(6)
    pairs = tf.data.Dataset.from_tensor_slices((numbers, {"x": np.stack([numbers] * 2, 1)}))
    stream = _stream(pairs).filter(mark(lambda number, _: number > 3))
    (batch,) = stream.batch(6, drop_remainder=False).as_numpy_iterator()
    assert batch[0].tolist() == [4, 5]
    assert batch[1]["x"].tolist() == [[4, 4], [5, 5]]


def test_batched_stream_of_a_repeated_dataset_has_infinite_cardinality():
    stream = _stream(tf.data.Dataset.range(5).repeat()).map(example_stream.takes_batches(_double))
    batches = stream.batch(3, drop_remainder=True)
    assert batches.cardinality() == tf.data.INFINITE_CARDINALITY
    assert _values(batches.take(3)) == [[0, 2, 4], [6, 8, 0], [2, 4, 6]]


FEATURES = {
    "dense": tf.io.FixedLenFeature([2], tf.float32),
    "words": tf.io.VarLenFeature(tf.string),
}


@pytest.fixture
def records():
    return [
        tf_example_builder.TfExampleBuilder()
        .add_floats_feature("dense", [n, -n])
        .add_bytes_feature("words", [b"w"] * n)
        .example.SerializeToString()
        for n in range(4)
    ]


def test_function_decorated_with_takes_batches_can_still_be_called_directly():
    def scale(x, factor=2):
        """Doc."""
        return x * factor

    marked = example_stream.takes_batches(scale)
    assert example_stream.is_for_batches(marked)
    assert marked(3, factor=5) == 15
    assert marked.__doc__ == "Doc."
    assert not example_stream.is_for_batches(scale)
    assert not example_stream.is_for_batches(None)


def test_feature_decoder_accepts_a_batch_or_a_single_example(records):
    decoder = example_stream.FeatureDecoder(FEATURES)
    assert example_stream.is_for_batches(decoder.decode)
    batch = decoder.decode(tf.constant(records))
    assert batch["dense"].numpy().tolist() == [[n, -n] for n in range(4)]
    assert batch["words"].indices[:, 0].numpy().tolist() == [1, 2, 2, 3, 3, 3]
    example = decoder.decode(tf.constant(records[3]))
    assert example["dense"].numpy().tolist() == [3, -3]
    assert example["words"].values.shape == (3,)


def test_vectorize_turns_a_per_example_function_into_a_batch_function():
    examples = tf.data.Dataset.from_tensor_slices((tf.range(4), tf.range(4.0)))
    fn = example_stream.vectorize(lambda i, x: {"sum": tf.cast(i, tf.float32) + x})
    (batch,) = examples.batch(4).map(fn)
    assert batch["sum"].numpy().tolist() == [0, 2, 4, 6]


def test_vectorize_error_names_the_op_that_cannot_be_vectorized():
    images = tf.data.Dataset.from_tensors(["", ""])
    with pytest.raises(ValueError, match="DecodeJpeg"):
        images.map(example_stream.vectorize(tf.io.decode_jpeg))


@dataclasses.dataclass
class MixConfig(base_config.Config):
    input_path: base_config.Config | str | None = None
    weights: base_config.Config | None = None
    stop_on_empty_dataset: bool | None = None
    seed: int | None = None


def datasets(count=4000):
    return {
        name: tf.data.Dataset.from_tensors(value).repeat(count)
        for name, value in (("zeros", 0), ("ones", 1))
    }


def draw(combine_fn, **kwargs):
    return np.array(list(combine_fn(datasets(**kwargs)).as_numpy_iterator()))


def test_mixture_draws_examples_in_proportion_to_the_weights():
    combine_fn = example_stream.build_weighted_sampling_combine_fn({"ones": 3, "zeros": 1}, seed=0)
    assert draw(combine_fn).mean() == pytest.approx(0.75, abs=0.02)


def test_mixtures_with_equal_seeds_draw_from_their_datasets_in_the_same_order():
    build = example_stream.build_weighted_sampling_combine_fn
    draws = [draw(build({"ones": 1, "zeros": 1}, seed=seed), count=50) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert draws[0].tolist() != draws[2].tolist()


def test_mixture_continues_after_one_dataset_ends_if_stop_on_empty_dataset_is_false():
    combine_fn = example_stream.build_weighted_sampling_combine_fn(
        {"ones": 1, "zeros": 1}, stop_on_empty_dataset=False
    )
    assert len(draw(combine_fn, count=20)) == 40


@pytest.mark.parametrize("weights", [{"ones": -1, "zeros": 2}, {"ones": 0, "zeros": 0}])
def test_negative_or_all_zero_mixture_weights_are_refused(weights):
    with pytest.raises(errors.ConfigValueError, match="`weights`"):
        example_stream.build_weighted_sampling_combine_fn(weights)


def test_input_config_builds_a_weighted_mixture_only_if_weights_are_set():
    params = MixConfig(
        input_path=base_config.Config({"ones": "a", "zeros": "b"}),
        weights=base_config.Config({"ones": 1, "zeros": 0}),
        seed=5,
    )
    assert draw(example_stream.create_combine_fn(params), count=10).tolist() == [1] * 10
    assert example_stream.create_combine_fn(MixConfig(input_path="a")) is None


@pytest.mark.parametrize(
    ("input_path", "named"),
    [
        ("a", "`input_path` and `weights`"),
        (base_config.Config({"onse": "a", "zeros": "b"}), "'onse' .*`ones`"),
        (base_config.Config({"ones": "a"}), "'zeros'"),
    ],
)
def test_mixture_weights_that_do_not_match_the_input_names_are_refused(input_path, named):
    weights = base_config.Config({"ones": 1, "zeros": 1})
    with pytest.raises(errors.ConfigValueError, match=named):
        example_stream.create_combine_fn(MixConfig(input_path=input_path, weights=weights))
