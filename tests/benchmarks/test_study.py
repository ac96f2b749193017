"""Tests of the benchmark of studies, and of the program that it compares ours with."""

import json
import pathlib

import numpy as np
import optuna
import pytest
import yaml

import registry_imports  # noqa: F401  (imported for its registrations)
from benchmarks import report
from benchmarks.records import study as benchmark
from benchmarks.records.references import fashion_mnist_optuna as reference
from experiments.vision.fashion_mnist import task
from official_lite.config import epochs
from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory
from official_lite.modeling.optimization import OptimizerFactory
from official_lite.search import samplers, search_config
from tests import rounding
from tests.experiments import fashion_mnist_files

NUM_IMAGES, NUM_HELD_OUT = 300, 40


def _experiment() -> cfg.ExperimentConfig:
    params = exp_factory.get_exp_config(benchmark.EXPERIMENT)
    params.override(yaml.safe_load(benchmark.CONFIG_FILE.read_text()))
    return params


@pytest.fixture
def directory(tmp_path: pathlib.Path) -> pathlib.Path:
    """Write a few training images in the format of Fashion-MNIST, and no test images."""
    rng = np.random.default_rng(0)
    labels = rng.integers(10, size=NUM_IMAGES, dtype=np.uint8)
    images = np.zeros((NUM_IMAGES, 28, 28), np.uint8)
    images[np.arange(NUM_IMAGES), :, 2 * labels] = 255
    for name, array in {"images-idx3": images, "labels-idx1": labels}.items():
        fashion_mnist_files.write_idx(tmp_path / f"train-{name}-ubyte.gz", array)
    return tmp_path


def test_plain_optuna_and_our_search_sample_equal_values_from_equal_spaces() -> None:
    config = search_config.search_config_of(_experiment())
    config.seed = 3
    space = search_config.Space(config.space)
    ours = optuna.create_study(direction="maximize", sampler=samplers.create_sampler(config, space))
    theirs = optuna.create_study(direction="maximize")
    for number in range(3):
        theirs.sampler = reference.create_sampler(3, number)
        trial, other = ours.ask(), theirs.ask()
        assert [*space.suggest(trial).values()] == [*reference.suggest(other).values()]
        assert [*space.distributions.values()] == [*other.distributions.values()]
        ours.tell(trial, 0.5)
        theirs.tell(other, 0.5)


def test_plain_optuna_benchmark_has_the_network_and_learning_rates_of_our_experiment() -> None:
    params = _experiment()
    params.task.losses.l2_weight_decay = 0.01
    network = task.FashionMnistTask(params.task).build_model()
    other = reference.build_model(weight_decay=0.01, dropout=0.0)
    other.set_weights(network.get_weights())
    images = np.random.default_rng(0).integers(256, size=(4, 28, 28, 1)).astype(np.float32)
    rounding.assert_close(other(images), network(images), roundings=9 * 64 * 10)
    rounding.assert_close(sum(other.losses), sum(network.losses), roundings=9 * 64 * 64)
    steps = params.trainer.train_steps
    rates = OptimizerFactory(epochs.resolve(params).trainer.optimizer_config).build_learning_rate()
    schedule = reference.WarmupAndCosine(0.1, steps)
    for step in range(0, steps, steps // 20):
        rounding.assert_close(schedule(step), rates(step), scale=0.1, roundings=10)


def test_study_table_compares_each_study_with_our_study_without_pruning() -> None:
    found = {
        benchmark.PRUNED: [benchmark.Study(50.0, [(0.88, 20.0), (0.899, 45.0)], num_pruned=6)],
        benchmark.UNPRUNED: [benchmark.Study(100.0, [(0.9, 80.0), (0.899, 30.0)])],
        benchmark.REFERENCE: [benchmark.Study(200.0, [(0.89, 10.0)])],
    }
    rows = [list(row) for row in benchmark.tabulate(found).rows]
    assert rows == [
        ["ours with pruning", 50.0, 0.5, 0.6, "0.8990", "0.8990 to 0.8990", 6, "1 of 1", 45.0],
        ["ours without pruning", 100.0, 1.0, None, "0.9000", "0.9000 to 0.9000", 0, "1 of 1", 30.0],
        ["Optuna, Keras `fit`", 200.0, 2.0, None, "0.8900", "0.8900 to 0.8900", 0, "0 of 1", None],
    ]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [([], "Pass --data fashion-mnist=DIR"), (["--data=fashion=/"], "Did you mean `fashion-mnist`")],
)
def test_missing_or_unknown_data_set_ends_the_benchmark_before_any_study_runs(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        benchmark.main(arguments)
    assert told in capsys.readouterr().err


@pytest.mark.slow
def test_study_benchmark_completes_all_three_studies_without_using_test_images(
    directory: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    config = yaml.safe_load(benchmark.CONFIG_FILE.read_text())
    config["search"] |= {"num_trials": 2, "num_workers": 1}
    config["search"]["pruner"] |= {"min_resource": 1, "reduction_factor": 4}
    config["task"]["num_held_out"] = NUM_HELD_OUT
    config["trainer"] |= {"train_steps": 2, "validation_interval": 1}
    config_file, results = tmp_path / "small.yaml", tmp_path / "results"
    config_file.write_text(yaml.safe_dump(config))
    benchmark.main(
        [
            f"--data=fashion-mnist={directory}",
            f"--config_file={config_file}",
            f"--results_dir={results}",
        ]
    )
    found = json.loads((results / "study.json").read_text())["measurements"]
    pruned, unpruned, others = (studies[0] for studies in found.values())
    assert len(pruned["values"]) + pruned["num_pruned"] == 2
    assert len(unpruned["values"]) == len(others["values"]) == 2
    for study in (pruned, unpruned, others):
        for accuracy, seconds in study["values"]:
            # An accuracy on the held-out images is a multiple of one over their number.
            assert accuracy * NUM_HELD_OUT == pytest.approx(round(accuracy * NUM_HELD_OUT))
            assert 0 < seconds < study["seconds"]
    assert "Studies of Fashion-MNIST" in report.render(results)
