import numpy as np
import pytest

from official_lite.common import errors
from official_lite.compression import clustering, configs

CLUSTERING = {"number_of_clusters": 8, "begin_step": 8}


def _distinct(weights):
    return [np.unique(weight).size for weight in weights if weight.ndim > 1]


@pytest.mark.parametrize("execution", ["graph", "xla"])
def test_kernels_have_few_values_which_are_trained(train_digits, tmp_path, execution) -> None:
    clustered = {"clustering": CLUSTERING}
    early = train_digits(tmp_path, clustered, execution=execution, train_steps=10)
    late = train_digits(tmp_path, clustered, execution=execution)
    assert max(_distinct(late)) <= 8
    assert not set(np.unique(early[0])) & set(np.unique(late[0]))


def test_zeros_of_pruning_stay_a_cluster(train_digits, tmp_path) -> None:
    pruned = {"final_sparsity": 0.5, "end_step": 8}
    weights = train_digits(tmp_path, {"pruning": pruned, "clustering": CLUSTERING})
    assert max(_distinct(weights)) <= 8
    assert np.mean(weights[0] == 0) == 0.5


def test_resumed_run_equals_the_unbroken_one(train_digits, tmp_path) -> None:
    clustered = {"clustering": {**CLUSTERING, "cluster_centroids_init": "kmeans_plus_plus"}}
    unbroken = train_digits(tmp_path / "unbroken", clustered)
    train_digits(tmp_path / "broken", clustered, train_steps=10)
    for one, other in zip(unbroken, train_digits(tmp_path / "broken", clustered), strict=True):
        np.testing.assert_array_equal(other, one)


@pytest.mark.parametrize("init", configs.CENTROIDS)
def test_kmeans_finds_clusters_that_are_far_apart(init) -> None:
    values = np.concatenate([center + np.linspace(-0.1, 0.1, 5) for center in (-3.0, 0.5, 4.0)])
    np.testing.assert_allclose(clustering.kmeans(values, 3, init, seed=1), [-3.0, 0.5, 4.0])


def test_clustering_before_the_end_of_pruning_is_refused() -> None:
    config = configs.CompressionConfig()
    config.override({"pruning": {"end_step": 100}, "clustering": {"begin_step": 99}})
    with pytest.raises(errors.ConfigValueError, match="weights are pruned until step 100"):
        config.validate()
