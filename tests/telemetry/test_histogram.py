import numpy as np
import pytest
import tensorflow as tf

from official_lite.telemetry import writer

BIG = 10.0**30


@pytest.mark.parametrize("scale", [1e-13, 1e-6, 1.0, 1e6])
def test_counts_equal_numpy(scale):
    values = (np.random.default_rng(0).normal(size=[100, 10]) * scale).astype(np.float32)
    found = writer.histogram_of(writer.bucket_counts(values))
    np.testing.assert_array_equal(found.counts, np.histogram(values, found.edges)[0])
    assert found.counts.sum() == values.size


def test_buckets_are_fine_enough():
    edges = writer.histogram_of(np.ones(writer.NUM_BUCKETS)).edges
    positive = edges[edges > 0]
    assert np.max(positive[1:] / positive[:-1]) <= 1.25
    assert (np.diff(edges) > 0).all()
    # The most that Weights & Biases takes.
    assert writer.NUM_BUCKETS <= 512


def test_edge_belongs_to_the_bucket_away_from_zero():
    [above] = writer.histogram_of(writer.bucket_counts([1.0])).edges.reshape([1, 2])
    [below] = writer.histogram_of(writer.bucket_counts([-1.0])).edges.reshape([1, 2])
    assert above.tolist() == [1.0, 1.25]
    assert below.tolist() == [-1.25, -1.0]


def test_what_is_not_finite_breaks_nothing():
    values = [np.nan, np.inf, -np.inf, BIG, -BIG, 0.0, -0.0]
    counts = writer.bucket_counts(np.array(values)).numpy()
    assert counts.sum() == 6
    assert counts[0] == counts[-1] == 2
    assert counts[writer.NUM_BUCKETS // 2] == 2


@pytest.mark.parametrize("shape", [[], [0], [3, 0], [2, 3, 4]])
def test_any_shape_and_type_will_do(shape):
    for dtype in (tf.bfloat16, tf.float64, tf.int32, tf.bool):
        counts = writer.bucket_counts(tf.cast(tf.ones(shape), dtype))
        assert counts.numpy().sum() == np.prod(shape)


def test_nothing_is_a_histogram_without_buckets():
    found = writer.histogram_of(np.zeros(writer.NUM_BUCKETS))
    assert found.counts.size == 0
