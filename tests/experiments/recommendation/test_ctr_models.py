"""The computations and the training of DLRM and DeepFM."""

import itertools
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from experiments.recommendation.criteo import configs as criteo_configs
from experiments.recommendation.criteo import task as criteo_task
from experiments.recommendation.deepfm import configs as deepfm_configs
from experiments.recommendation.deepfm import model as deepfm_model
from experiments.recommendation.dlrm import configs as dlrm_configs
from experiments.recommendation.dlrm import model as dlrm_model
from official_lite.common import errors
from official_lite.core import task_factory
from tests import rounding
from tests.experiments import evaluations

FACTORIES = [dlrm_configs.dlrm, deepfm_configs.deepfm]


def test_pairwise_products_are_the_dot_products_of_all_pairs_of_vectors() -> None:
    vectors = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
    products = dlrm_model.PairwiseProducts()(vectors).numpy()
    for example in range(2):
        expected = [a @ b for a, b in itertools.combinations(vectors[example], 2)]
        rounding.assert_close(np.sort(products[example]), np.sort(expected), roundings=3)


def test_factorization_machine_sums_weights_and_pairwise_products() -> None:
    fields = np.random.default_rng(0).normal(size=(2, 4, 1 + 3)).astype(np.float32)
    logits = deepfm_model.FactorizationMachine()(fields).numpy()
    for example in range(2):
        weights, vectors = fields[example, :, 0], fields[example, :, 1:]
        pairs = sum(a @ b for a, b in itertools.combinations(vectors, 2))
        # The layer halves the difference between the square of the sum and the sum of squares.
        scale = float(np.square(fields[example]).sum())
        rounding.assert_close(
            logits[example], [weights.sum() + pairs], roundings=4 * 3, scale=scale
        )


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("factory", FACTORIES)
def test_loaded_ctr_model_has_the_same_outputs_as_the_saved_one(
    factory, tmp_path: pathlib.Path
) -> None:
    config = factory().task.replace(table_rows=5)
    model = task_factory.get_task(config).build_model()
    rng = np.random.default_rng(0)
    inputs = {
        "integers": tf.constant(rng.random((3, 13)), tf.float32),
        "rows": tf.constant(rng.integers(26 * 5, size=(3, 26)), tf.int32),
    }
    logits = model(inputs)
    assert (logits.shape, logits.dtype) == ((3, 1), tf.float32)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(inputs), logits)


def test_embedding_table_with_only_the_row_for_missing_values_is_refused() -> None:
    with pytest.raises(errors.ConfigValueError, match="`table_rows` is 1; expected 2 to"):
        criteo_configs.CriteoConfig(table_rows=1).validate()


def test_best_possible_auc_is_reported_only_for_generated_data() -> None:
    task = criteo_task.CriteoTask(criteo_configs.CriteoConfig())
    names = [metric.name for metric in task.build_metrics(training=False)]
    assert names == ["auc", "best_possible_auc"]
    task.task_config.validation_data.input_path = "/clicks/*.tsv"
    assert [metric.name for metric in task.build_metrics(training=False)] == ["auc"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dlrm", "deepfm"])
def test_ctr_experiment_reaches_an_auc_within_0_01_of_the_best_possible_auc(
    tmp_path: pathlib.Path, name: str
) -> None:
    evaluations.train_by_command(f"recommendation/{name}", tmp_path)
    last = evaluations.validations(tmp_path)[-1]
    assert last["auc"] >= last["best_possible_auc"] - 0.01
