import itertools
import json
import pathlib

import keras
import numpy as np
import pytest

from benchmarks import nas_random
from experiments.nas.fashion_mnist import configs, model
from experiments.vision.fashion_mnist import data
from official_lite import nas, pipeline
from official_lite.core import config_definitions as cfg
from tests.experiments import evaluations, fashion_mnist_files

FILTERS = 4
NUM_HELD_OUT = 20
SEARCH = "nas/fashion_mnist_spos"


@pytest.fixture
def directory(tmp_path: pathlib.Path) -> pathlib.Path:
    fashion_mnist_files.write(tmp_path / "data")
    return tmp_path / "data"


def _training(directory: pathlib.Path) -> dict[str, str]:
    """Return overrides for a small network that trains for some steps."""
    return {
        "task.input_path": str(directory),
        "task.model.filters": f"[{FILTERS}]",
        "task.model.num_blocks": "2",
        "task.train_data.global_batch_size": "10",
        "task.validation_data.global_batch_size": "10",
        "trainer.train_steps": "40",
        "trainer.steps_per_loop": "5",
        "trainer.checkpoint_interval": "5",
        "trainer.writers": "[jsonl]",
    }


def _search(directory: pathlib.Path) -> dict[str, str]:
    """Return overrides for a search among the 7 × 7 architectures of that network."""
    return _training(directory) | {
        "task.num_held_out": str(NUM_HELD_OUT),
        "trainer.one_shot.arch_data.global_batch_size": "10",
        "trainer.one_shot.spos.rank_batches": "2",
    }


def _run(params: cfg.ExperimentConfig, mode: str, model_dir: pathlib.Path) -> keras.Model:
    return pipeline.RunPipeline(params, mode, str(model_dir)).run()[0]


def test_candidate_operations_keep_the_input_shape_and_have_the_expected_parameter_count() -> None:
    num_weights = {"conv3": 9 * 8 * 8, "conv5": 25 * 8 * 8, "conv1": 8 * 8}
    num_weights["separable3"] = 9 * 8 + 8 * 8
    for name in model.OPERATIONS:
        operation = model.create_operation(name, 8)
        inputs = keras.Input((7, 7, 8))
        assert operation(inputs).shape == inputs.shape
        assert operation.count_params() == num_weights.get(name, 0)


def test_model_built_from_an_architecture_contains_only_the_chosen_operations() -> None:
    arch = {"size1_layer1": "conv5", "size1_layer2": "maxpool"}
    with nas.fixed_arch(arch):
        config = configs.LayersConfig(filters=(FILTERS,), num_blocks=2)
        built = model.build_model(config, data.IMAGE_SHAPE, data.NUM_CLASSES)
    convolutions = [la for la in built.layers if isinstance(la, keras.layers.Conv2D)]
    assert [la.kernel_size for la in convolutions] == [(3, 3), (5, 5)]
    assert sum(isinstance(la, keras.layers.MaxPooling2D) for la in built.layers) == 1
    # The first convolution, the choice, three normalization layers and the last layer.
    weights = 9 * FILTERS + 25 * FILTERS**2 + 3 * 4 * FILTERS + 10 * FILTERS + 10
    assert built.count_params() == weights


def test_search_rates_architectures_on_held_out_training_images_and_never_reads_test_images(
    directory: pathlib.Path,
) -> None:
    for path in directory.glob("t10k-*"):
        path.unlink()
    # The test can then repeat a rating with the weights of the trainer.
    overrides = {"trainer.one_shot.spos.calibration_batches": "0"}
    searched = nas_random.search(SEARCH, 1, _search(directory) | overrides)
    ranking = searched.trainer.rank()
    assert len(ranking) == len(model.OPERATIONS) ** 2
    assert searched.arch == ranking[0][1]
    images, labels = data.load_split(str(directory), "train")
    images, labels = images[-NUM_HELD_OUT:].astype(np.float32), labels[-NUM_HELD_OUT:]
    weights = {"conv3": 9 * FILTERS**2, "conv5": 25 * FILTERS**2, "conv1": FILTERS**2}
    weights["separable3"] = 9 * FILTERS + FILTERS**2
    for rating, arch in ranking[:: len(model.OPERATIONS)]:
        network = nas.fixed_model(searched.trainer.model, arch)
        is_correct = np.argmax(network(images, training=False), axis=-1) == labels
        price = 0.001 * sum(weights.get(name, 0) for name in arch.values()) / 1000
        # A rounding may change which of two nearly equal logits is the largest.
        assert rating == pytest.approx(np.mean(is_correct) - price, abs=1.01 / NUM_HELD_OUT)


def test_random_architectures_have_about_the_parameter_count_of_the_found_architecture(
    directory: pathlib.Path,
) -> None:
    overrides = {
        "task.model.num_blocks": "4",
        "trainer.train_steps": "1",
        "trainer.one_shot.spos.population": "2",
        "trainer.one_shot.spos.generations": "1",
    }
    trainer = nas_random.search(SEARCH, 1, _search(directory) | overrides).trainer
    found = dict.fromkeys(trainer.space, "separable3")

    def count(arch: dict[str, str]) -> int:
        with nas.fixed_arch(arch):
            config = configs.LayersConfig(filters=(FILTERS,), num_blocks=4)
            return model.build_model(config, data.IMAGE_SHAPE, data.NUM_CLASSES).count_params()

    size = count(found)
    archs = nas_random.random_architectures(trainer, found, size, seed=0)
    drawn = list(itertools.islice(archs, 20))
    assert found not in drawn
    assert len({tuple(arch.values()) for arch in drawn}) == 20
    for arch in drawn:
        assert abs(count(arch) - size) <= 0.1 * size


@pytest.mark.slow
def test_random_search_baseline_takes_at_least_as_long_as_search_plus_training(
    directory: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    arguments = ["nas/fashion_mnist", "--seeds=1", f"--data_dir={directory}"]
    arguments += [f"--set={path}={value}" for path, value in _training(directory).items()]
    arguments += [f"--set_search={path}={value}" for path, value in _search(directory).items()]
    # Among 7⁴ architectures there are enough of one size. A short evolution finds one of them.
    arguments += ["--set=task.model.num_blocks=4", "--set_search=task.model.num_blocks=4"]
    arguments += ["--set_search=trainer.one_shot.spos.population=4"]
    arguments += ["--set_search=trainer.one_shot.spos.generations=1"]
    nas_random.main([*arguments, f"--results_dir={tmp_path}"])
    content = json.loads((tmp_path / "nas_random.json").read_text())
    (measured,) = content["measurements"]
    found, randoms = measured["found"], measured["randoms"]
    seconds = sum(random["seconds"] for random in randoms)
    assert (
        seconds >= measured["search_seconds"] + found["seconds"] > seconds - randoms[-1]["seconds"]
    )
    ((_, accuracy, median, *_, points, _, _),) = content["tables"][0]["rows"]
    assert float(accuracy) == pytest.approx(found["accuracy"], abs=1e-4)
    assert float(median) == pytest.approx(
        np.median([random["accuracy"] for random in randoms]), abs=1e-4
    )
    assert float(points) == pytest.approx(100 * (float(accuracy) - float(median)), abs=0.03)


@pytest.mark.slow
def test_architecture_found_by_a_search_run_is_trained_by_the_next_run(
    directory: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    _run(nas_random.configure(SEARCH, 0, _search(directory)), "train", tmp_path / "search")
    overrides = _training(directory) | {"task.arch": str(tmp_path / "search")}
    params = nas_random.configure("nas/fashion_mnist", 0, overrides)
    evaluations.assert_equal_to_mode_eval(params, tmp_path / "found")


@pytest.mark.slow
def test_resumed_architecture_search_has_the_weights_of_an_uninterrupted_one(
    directory: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    def search(name: str, train_steps: int) -> keras.Model:
        params = nas_random.configure(SEARCH, 0, _search(directory))
        params.trainer.train_steps = train_steps
        # The schedule of the experiment depends on the number of steps.
        rate = {"type": "constant", "constant": {"learning_rate": 0.05}}
        params.trainer.optimizer_config.override({"learning_rate": rate, "warmup": {"type": None}})
        return _run(params, "train", tmp_path / name)

    evaluations.assert_resumes_exactly(search, 5, 10)
    archs = [nas.read_arch(tmp_path / name) for name in ("uninterrupted", "resumed")]
    assert archs[0] == archs[1]
