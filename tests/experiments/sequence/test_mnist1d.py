import pathlib
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from experiments.sequence.mnist1d import configs, data, task, write_data
from official_lite import pipeline
from official_lite.common import errors
from official_lite.core import config_definitions as cfg
from tests.experiments import evaluations

NUM_TRAIN, NUM_TEST = 24, 13


def _write(directory: pathlib.Path, **replaced: np.ndarray) -> pathlib.Path:
    """Write a small file in the format of the generator: float64 curves and int64 labels."""
    rng = np.random.default_rng(0)
    arrays = {
        "x": rng.normal(size=(NUM_TRAIN, 40)),
        "y": np.arange(NUM_TRAIN) % 10,
        "x_test": rng.normal(size=(NUM_TEST, 40)),
        "y_test": np.arange(NUM_TEST) % 10,
    }
    np.savez(directory / data.FILE, **(arrays | replaced))
    return directory


@pytest.fixture
def directory(tmp_path: pathlib.Path) -> pathlib.Path:
    return _write(tmp_path)


def _experiment(directory: pathlib.Path, train_steps: int) -> cfg.ExperimentConfig:
    params = configs.mnist1d()
    params.override(
        {
            "task": {
                "input_path": str(directory),
                "model": {"filters": [4, 8]},
                "train_data": {"global_batch_size": 8},
                "validation_data": {"global_batch_size": 5},
            },
            "trainer": {
                "train_steps": train_steps,
                "validation_interval": 3,
                "checkpoint_interval": 3,
                "writers": ["jsonl"],
                "optimizer_config": {"learning_rate": {"type": "constant"}},
            },
            "runtime": {"execution": "graph"},
        }
    )
    return params


def _train(
    directory: pathlib.Path, model_dir: pathlib.Path, train_steps: int
) -> tuple[keras.Model, Mapping[str, Any]]:
    params = _experiment(directory, train_steps)
    return pipeline.RunPipeline(params, "train_and_eval", str(model_dir)).run()


def test_mnist1d_curves_are_loaded_as_float32_and_labels_as_int32(directory: pathlib.Path) -> None:
    curves, labels = data.load_split(str(directory), "test")
    with np.load(directory / data.FILE) as file:
        np.testing.assert_array_equal(curves[..., 0], file["x_test"].astype(np.float32))
    np.testing.assert_array_equal(labels, np.arange(NUM_TEST) % 10)
    assert (curves.dtype, labels.dtype) == (np.float32, np.int32)


def test_missing_file_error_says_how_to_create_the_file(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.DataError, match=r"mnist1d\.write_data .*`task\.input_path`"):
        data.load_split(str(tmp_path / "nowhere"), "train")


def test_mnist1d_file_with_unexpected_arrays_is_refused(tmp_path: pathlib.Path) -> None:
    np.savez(tmp_path / data.FILE, images=np.zeros([2, 40]))
    with pytest.raises(errors.DataError, match=r"'images'.*arrays x_test, y_test of MNIST-1D"):
        data.load_split(str(tmp_path), "test")
    _write(tmp_path, x=np.zeros([NUM_TRAIN, 39]))
    with pytest.raises(errors.DataError, match=r"\(39,\); expected 40 points"):
        data.load_split(str(tmp_path), "train")


def test_error_for_an_unknown_dataset_split_names_a_valid_split() -> None:
    params = configs.mnist1d()
    params.task.validation_data.split = "validation"
    with pytest.raises(errors.ConfigValueError, match="`test`"):
        params.validate()


def _changed(curves: np.ndarray, **changes: float) -> np.ndarray:
    params = configs.Mnist1dDataConfig(**changes)
    batch = (tf.constant(curves), tf.zeros([len(curves)], tf.int32))
    return data.change_at_random(params, tf.constant([0, 3], tf.int64), batch)[0].numpy()


def test_random_shift_rolls_the_points_of_a_curve_by_at_most_max_shift() -> None:
    curve = np.random.default_rng(0).normal(size=(1, 40, 1)).astype(np.float32)
    changed = _changed(np.repeat(curve, 64, axis=0), max_shift=2)
    rolled = {shift: np.roll(curve[0], shift, axis=0) for shift in range(-2, 3)}
    found = [
        {shift for shift, one in rolled.items() if np.array_equal(one, each)} for each in changed
    ]
    assert all(len(shifts) == 1 for shifts in found)
    assert set.union(*found) == set(rolled)


def test_random_scale_multiplies_a_curve_and_random_shear_adds_a_line_to_it() -> None:
    curve = np.linspace(1, 2, 40, dtype=np.float32)[np.newaxis, :, np.newaxis]
    curves = np.repeat(curve, 64, axis=0)
    factors = _changed(curves, max_scale=0.25) / curves
    np.testing.assert_allclose(factors, np.broadcast_to(factors[:, :1], factors.shape), rtol=1e-5)
    assert 0.75 <= factors.min() < 0.85
    assert 1.15 < factors.max() <= 1.25
    lines = _changed(curves, max_shear=0.5) - curves
    slopes = lines[:, -1:] - lines[:, :1]
    expected = slopes * np.linspace(-0.5, 0.5, 40, dtype=np.float32)[:, np.newaxis]
    np.testing.assert_allclose(lines, expected, atol=1e-5)
    assert 0.3 < np.abs(slopes).max() <= 0.5 + 1e-5


def test_evaluation_ignores_augmentation_options_and_reads_curves_in_order(
    directory: pathlib.Path,
) -> None:
    params = configs.Mnist1dConfig().validation_data.replace(
        global_batch_size=5, max_shift=3, max_scale=0.5, max_shear=0.5, noise=1.0
    )
    batches = list(data.build_dataset(str(directory), params).as_numpy_iterator())
    assert [len(labels) for _, labels in batches] == [5, 5, 3]
    expected = data.load_split(str(directory), "test")
    np.testing.assert_array_equal(np.concatenate([curves for curves, _ in batches]), expected[0])
    np.testing.assert_array_equal(np.concatenate([labels for _, labels in batches]), expected[1])


def test_mnist1d_model_has_float32_logits_and_halves_the_number_of_points_between_blocks() -> None:
    built = task.Mnist1dTask(configs.Mnist1dConfig()).build_model()
    assert built.output_shape == (None, 10)
    assert built.output.dtype == "float32"
    shapes = [built.get_layer(f"block{n}_2_norm").output.shape[1:] for n in (1, 2, 3)]
    assert shapes == [(40, 32), (20, 64), (10, 128)]


def test_reported_accuracy_is_the_share_of_correct_predictions(
    directory: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    trained, logs = _train(directory, tmp_path / "run", train_steps=3)
    curves, labels = data.load_split(str(directory), "test")
    predicted = np.argmax(trained(curves, training=False), axis=-1)
    assert float(logs["accuracy"]) == pytest.approx(np.mean(predicted == labels), abs=1e-6)


@pytest.mark.slow
def test_interrupted_training_ends_with_the_exact_weights_of_an_uninterrupted_run(
    directory: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    def train(name: str, train_steps: int) -> keras.Model:
        return _train(directory, tmp_path / name, train_steps)[0]

    evaluations.assert_resumes_exactly(train, 3, 6)


@pytest.mark.slow
def test_final_evaluation_after_training_gives_the_same_metrics_as_eval_mode(
    directory: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    evaluations.assert_equal_to_mode_eval(_experiment(directory, 4), tmp_path / "run")


@pytest.mark.slow
def test_first_200_steps_on_mnist1d_beat_the_mlp_accuracy_of_the_paper(
    tmp_path: pathlib.Path,
) -> None:
    pytest.importorskip("mnist1d", reason="the generator of the data is not installed")
    write_data.write(tmp_path)
    params = configs.mnist1d()
    params.override(
        {
            "task": {"input_path": str(tmp_path)},
            "trainer": {"train_steps": 200, "writers": ["jsonl"]},
        }
    )
    pipeline.RunPipeline(params, "train_and_eval", str(tmp_path / "run")).run()
    assert evaluations.validations(tmp_path / "run")[-1]["accuracy"] > 0.68
