import statistics

import keras
import numpy as np
import pytest

from benchmarks import nas_digits, nas_random
from experiments.nas.digits import configs, model, table, task
from experiments.vision.digits import data
from official_lite import nas
from official_lite.core import exp_factory
from tests import rounding
from tests.experiments import evaluations

BEST = {"layer0": "conv3", "layer1": "conv3", "layer2": "conv3"}
SEARCHES = [name for name in exp_factory.list_experiments() if name.startswith("nas/digits_")]


def test_accuracy_table_covers_all_64_architectures_and_every_seed() -> None:
    known = table.accuracies()
    assert set(known) == {table.name_of(arch) for arch in table.architectures()}
    assert len(known) == 64
    assert all(len(values) == len(table.SEEDS) for values in known.values())
    means = [statistics.mean(values) for values in known.values()]
    assert max(means) - min(means) > 0.5
    assert table.rank_of(BEST) <= 5


def test_kendall_tau_is_one_for_equal_and_minus_one_for_reversed_rankings() -> None:
    values = [0.1, 0.5, 0.3, 0.9]
    assert table.kendall_tau(values, values) == pytest.approx(1.0)
    assert table.kendall_tau(values, [-v for v in values]) == pytest.approx(-1.0)


def test_model_built_from_a_found_architecture_equals_the_handwritten_model() -> None:
    """With equal weights, both models have the same outputs and number of parameters."""
    config = configs.nas_digits()
    arch = {"layer0": "conv3", "layer1": "zero", "layer2": "conv1"}
    config.override({"task": {"arch": arch}})
    found = task.NasDigitsTask(config.task).build_model()
    by_hand = _by_hand()
    assert found.count_params() == by_hand.count_params()
    by_hand.set_weights(found.get_weights())
    images = data.load_split("validation")[0][:8]
    # Four layers, with sums over at most 3 by 3 pixels of 8 channels.
    rounding.assert_close(found(images), by_hand(images), roundings=4 * 3 * 3 * 8)


def _by_hand() -> keras.Model:
    layers = keras.layers
    inputs = keras.Input((8, 8, 1))
    x = layers.Conv2D(8, 1)(inputs)
    x = layers.ReLU()(x + layers.Conv2D(8, 3, padding="same")(x))
    x = layers.ReLU()(x)
    x = layers.ReLU()(x + layers.Conv2D(8, 1)(x))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def test_every_candidate_operation_keeps_the_shape_of_its_input() -> None:
    for name in model.OPERATIONS:
        operation = model.create_operation(name, 8)
        assert operation.compute_output_spec(keras.KerasTensor((None, 8, 8, 8))).shape[1:] == (
            8,
            8,
            8,
        )


def test_every_nas_digits_search_is_registered() -> None:
    assert {name.removeprefix("nas/digits_") for name in SEARCHES} == set(nas_digits.TRAINERS)


@pytest.mark.slow
def test_architecture_found_by_a_search_command_is_trained_by_a_second_command(tmp_path) -> None:
    evaluations.train_by_command("nas/digits_darts", tmp_path / "search")
    arch = nas.read_arch(tmp_path / "search")
    assert table.rank_of(arch) <= 5
    flag = f"--set=task.arch={tmp_path}/search"
    evaluations.train_by_command("nas/digits", tmp_path / "found", flag)
    accuracy = evaluations.validations(tmp_path / "found")[-1]["accuracy"]
    # The accuracies of two seeds differ by 0.05 on average, and by 0.14 at most.
    assert accuracy == pytest.approx(np.mean(table.accuracies()[table.name_of(arch)]), abs=0.15)


@pytest.mark.slow
def test_weight_sharing_ranks_architectures_similarly_to_separate_training() -> None:
    searched = nas_random.search("nas/digits_spos", seed=0)
    assert nas_digits.tau_of(searched.trainer) >= 0.5
