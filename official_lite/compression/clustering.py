"""Weight clustering: the weights of a kernel share a few values, which are trained.

The method is that of Han, Mao and Dally (2016), "Deep Compression": k-means finds the clusters
once, and training then moves all weights of a cluster together.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from official_lite.common.keras_variables import local_values
from official_lite.compression import configs
from official_lite.compression.kernels import Kernel
from official_lite.compression.weight_projection import WeightProjection

__all__ = ["WeightClustering", "kmeans"]

_Array = npt.NDArray[Any]

_MOST_ITERATIONS = 100


class WeightClustering(WeightProjection):
    """Replaces the weights of each cluster of a kernel by their mean.

    The variables of a kernel are the cluster of each weight (`assignments`), the index of one
    weight of each cluster (`members`), which clusters stay 0 (`is_zero`), and whether there are any
    clusters yet (`is_clustered`). The centroids are the weights themselves.

    Create it in the strategy's scope.

    Args:
        config: The config.
        kernels: The kernels.
    """

    def __init__(self, config: configs.ClusteringConfig, kernels: Sequence[Kernel]) -> None:
        self._config = config
        count = config.number_of_clusters
        states = [
            {
                "assignments": tf.Variable(tf.zeros(kernel.variable.shape, tf.uint8)),
                "members": tf.Variable(tf.zeros([count], tf.int32)),
                "is_zero": tf.Variable(tf.zeros([count], tf.bool)),
                "is_clustered": tf.Variable(False),
            }
            for kernel in kernels
        ]
        super().__init__(kernels, states, [config.begin_step])

    def _choose(self, kernel: Kernel, value: _Array, step: int) -> Mapping[str, _Array]:
        del step
        flat = value.ravel().astype(np.float64)
        is_zero = flat == 0
        num_zero = int(self._config.preserve_sparsity and is_zero.any() and not is_zero.all())
        free = flat[~is_zero] if num_zero else flat
        centroids = kmeans(
            free,
            self._config.number_of_clusters - num_zero,
            self._config.cluster_centroids_init,
            seed=kernel.position,
        )
        assignments = np.zeros(flat.size, np.int64)
        assignments[~is_zero if num_zero else slice(None)] = _nearest(free, centroids) + num_zero
        members = np.zeros(self._config.number_of_clusters, np.int64)
        found, first = np.unique(assignments, return_index=True)
        members[found] = first
        return {
            "assignments": assignments.reshape(value.shape),
            "members": members,
            "is_zero": np.arange(self._config.number_of_clusters) < num_zero,
            "is_clustered": np.array(True),
        }

    def _projected(self, value: tf.Tensor, *state: tf.Variable) -> tf.Tensor:
        assignments, members, is_zero, is_clustered = state

        def clustered() -> tf.Tensor:
            clusters = tf.reshape(tf.cast(assignments, tf.int32), [-1])
            flat = tf.reshape(value, [-1])
            # The mean of differences is exact for equal weights, so the centroids do not drift.
            origins = tf.gather(flat, members)
            count = self._config.number_of_clusters
            sums = tf.math.unsorted_segment_sum(
                flat - tf.gather(origins, clusters), clusters, count
            )
            sizes = tf.math.unsorted_segment_sum(tf.ones_like(flat), clusters, count)
            centroids = origins + sums / tf.maximum(sizes, 1)
            centroids = tf.where(is_zero, tf.zeros_like(centroids), centroids)
            return tf.reshape(tf.gather(centroids, clusters), value.shape)

        return tf.cond(is_clustered, clustered, lambda: tf.identity(value))

    def _numbers(self, kernels: Sequence[Kernel]) -> dict[str, float]:
        values = [local_values(kernel.variable)[0].numpy() for kernel in kernels]
        return {"most_distinct_weights": float(max(np.unique(value).size for value in values))}


def kmeans(values: _Array, count: int, init: str, *, seed: int) -> _Array:
    """Return the ascending centroids of the clusters of numbers, by Lloyd's algorithm.

    Args:
        values: Numbers, float64 of shape (n,).
        count: The number of clusters; some may be empty.
        init: The first centroids, one of `configs.CENTROIDS`.
        seed: The seed of `kmeans_plus_plus`.
    """
    ordered = np.sort(values)
    totals = np.concatenate([[0.0], np.cumsum(ordered)])
    centroids = np.sort(_INITS[init](ordered, count, np.random.default_rng(seed)))
    for _ in range(_MOST_ITERATIONS):
        bounds = np.searchsorted(ordered, (centroids[:-1] + centroids[1:]) / 2)
        edges = np.concatenate([[0], bounds, [ordered.size]])
        sizes = np.diff(edges)
        moved = np.where(sizes, np.diff(totals[edges]) / np.maximum(sizes, 1), centroids)
        if np.array_equal(moved, centroids):
            break
        centroids = np.sort(moved)
    return centroids


def _nearest(values: _Array, centroids: _Array) -> _Array:
    """Return the index of the centroid nearest to each number."""
    return np.searchsorted((centroids[:-1] + centroids[1:]) / 2, values)


def _linear(ordered: _Array, count: int, generator: np.random.Generator) -> _Array:
    del generator
    return np.linspace(ordered[0], ordered[-1], count)


def _density_based(ordered: _Array, count: int, generator: np.random.Generator) -> _Array:
    del generator
    return np.quantile(ordered, (np.arange(count) + 0.5) / count)


def _kmeans_plus_plus(ordered: _Array, count: int, generator: np.random.Generator) -> _Array:
    centroids = [ordered[generator.integers(ordered.size)]]
    distances = np.full(ordered.shape, np.inf)
    for _ in range(count - 1):
        distances = np.minimum(distances, (ordered - centroids[-1]) ** 2)
        total = distances.sum()
        shares = distances / total if total else None
        centroids.append(ordered[generator.choice(ordered.size, p=shares)])
    return np.array(centroids)


_INITS = {
    "linear": _linear,
    "density_based": _density_based,
    "kmeans_plus_plus": _kmeans_plus_plus,
}
