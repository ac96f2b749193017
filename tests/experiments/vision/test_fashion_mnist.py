import gzip
import json
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from experiments.vision.classification import random_images
from experiments.vision.fashion_mnist import configs, data, model, task
from official_lite import pipeline
from official_lite.common import errors
from official_lite.core import config_definitions as cfg
from tests import rounding
from tests.experiments import evaluations, fashion_mnist_files


@pytest.fixture
def directory(tmp_path: pathlib.Path) -> pathlib.Path:
    """Write files in the format of Fashion-MNIST, with fewer images."""
    fashion_mnist_files.write(tmp_path / "data")
    return tmp_path / "data"


def _experiment(directory: pathlib.Path, train_steps: int) -> cfg.ExperimentConfig:
    params = configs.fashion_mnist()
    params.override(
        {
            "task": {
                "input_path": str(directory),
                "model": {"filters": [8, 16], "num_blocks": 1, "dropout_rate": 0.1},
                "train_data": {"global_batch_size": 10, "max_shift": 1, "erase_size": 4},
                "validation_data": {"global_batch_size": 10},
            },
            "trainer": {
                "train_steps": train_steps,
                "steps_per_loop": 5,
                "validation_interval": 0,
                "checkpoint_interval": 5,
                "writers": ["jsonl"],
                "optimizer_config": {
                    "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.05}},
                    "warmup": {"type": None},
                },
            },
        }
    )
    return params


def test_fashion_mnist_images_and_labels_are_read_from_idx_files(directory: pathlib.Path) -> None:
    images, labels = data.load_split(str(directory), "test")
    assert (images.shape, images.dtype) == ((37, 28, 28, 1), np.uint8)
    is_bright = images[..., 0] == 240
    np.testing.assert_array_equal(is_bright[:, 0, 1] + 2 * is_bright[:, 1, 0], labels)
    assert len(data.load_split(str(directory), "train")[1]) == 90


def test_error_for_missing_fashion_mnist_files_says_where_to_get_the_files(
    directory: pathlib.Path,
) -> None:
    (directory / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(errors.DataError) as caught:
        data.load_split(str(directory), "test")
    for part in (
        "which lacks t10k-labels-idx1-ubyte.gz",
        "task.input_path",
        "github.com/zalandoresearch/fashion-mnist",
        "dataset-fashion-mnist",
        configs.DEBIAN_DIRECTORY,
    ):
        assert part in str(caught.value)
    assert "t10k-images" not in str(caught.value)


@pytest.mark.parametrize("damage", ["not gzip", "gzip cut off", "array cut off", "other type"])
def test_damaged_image_files_are_refused(directory: pathlib.Path, damage: str) -> None:
    path = directory / "train-images-idx3-ubyte.gz"
    content = path.read_bytes()
    array = gzip.decompress(content)
    damaged, message = {
        "not gzip": (array, "damaged or not a gzip file"),
        "gzip cut off": (content[: len(content) // 2], "damaged or not a gzip file"),
        "array cut off": (gzip.compress(array[:-5]), r"announces an array of shape \(90, 28, 28\)"),
        "other type": (gzip.compress(b"\0\0\x0d" + array[3:]), "not an IDX file of bytes"),
    }[damage]
    path.write_bytes(damaged)
    with pytest.raises(errors.DataError, match=message):
        data.load_split(str(directory), "train")


def test_inconsistent_image_and_label_files_are_refused(directory: pathlib.Path) -> None:
    labels = directory / "train-labels-idx1-ubyte.gz"
    fashion_mnist_files.write_idx(labels, np.zeros(89, np.uint8))
    with pytest.raises(errors.DataError, match="one label for each of the 90 images"):
        data.load_split(str(directory), "train")
    fashion_mnist_files.write_idx(labels, np.full(90, 10, np.uint8))
    with pytest.raises(errors.DataError, match="contains the label 10; expected 0 to 9"):
        data.load_split(str(directory), "train")
    images = directory / "train-images-idx3-ubyte.gz"
    fashion_mnist_files.write_idx(images, np.zeros((90, 14, 14), np.uint8))
    with pytest.raises(errors.DataError, match="expected images of 28×28 pixels"):
        data.load_split(str(directory), "train")


def test_held_out_images_are_the_last_training_images_and_excluded_from_training(
    directory: pathlib.Path,
) -> None:
    config = configs.FashionMnistConfig(input_path=str(directory), num_held_out=20)
    config.train_data.override({"global_batch_size": 10, "random_flip": False, "max_shift": 0})
    config.validation_data.global_batch_size = 8
    built = task.FashionMnistTask(config)
    images, labels = data.load_split(str(directory), "train")
    evaluated = list(built.build_inputs(config.validation_data).as_numpy_iterator())
    np.testing.assert_array_equal(np.concatenate([y for _, y in evaluated]), labels[-20:])
    np.testing.assert_array_equal(np.concatenate([x for x, _ in evaluated]), images[-20:])
    epoch = built.build_inputs(config.train_data).take(7).as_numpy_iterator()
    trained = np.concatenate([x for x, _ in epoch])
    # An epoch contains each of the other training images once, in a different order.
    assert sorted(map(bytes, trained.astype(np.uint8))) == sorted(map(bytes, images[:-20]))
    config.num_held_out = 90
    with pytest.raises(errors.ConfigValueError, match="fewer than the 90 training images"):
        built.build_inputs(config.validation_data)


def test_random_erasing_blackens_one_square_of_an_image_and_leaves_the_rest_unchanged() -> None:
    images = np.full((200, 12, 9, 1), 7, np.uint8)
    erased = random_images.erase(tf.constant(images), 3, tf.constant([1, 2], tf.int64)).numpy()
    assert set(np.unique(erased)) == {0, 7}
    centers = set()
    for image in erased[..., 0]:
        rows, columns = np.nonzero(image == 0)
        height, width = np.ptp(rows) + 1, np.ptp(columns) + 1
        # The erased area is a rectangle that is smaller than the square only at the image border.
        assert len(rows) == height * width
        assert height == 3 or rows.min() == 0 or rows.max() == 11
        assert width == 3 or columns.min() == 0 or columns.max() == 8
        centers.add((rows.max(), columns.max()))
    assert len(centers) > 50


def test_fused_batch_normalization_matches_keras_except_for_its_sample_variance() -> None:
    images = tf.random.stateless_normal([6, 5, 4, 3], (1, 2), mean=2.0, stddev=3.0)
    layers = [
        cls(momentum=0.9, epsilon=1e-5)
        for cls in (keras.layers.BatchNormalization, model.FusedBatchNormalization)
    ]
    num_values = 6 * 5 * 4
    outputs, gradients = [], []
    for layer in layers:
        layer.build(images.shape)
        layer.gamma.assign([0.5, 1.0, 2.0])
        layer.beta.assign([1.0, 0.0, -1.0])
        with tf.GradientTape() as tape:
            tape.watch(images)
            outputs.append(layer(images, training=True))
            total = tf.reduce_sum(outputs[-1] ** 3)
        gradients += [tape.gradient(total, [images, layer.gamma.value, layer.beta.value])]
    keras_layer, fused = layers
    rounding.assert_close(outputs[1], outputs[0], roundings=num_values)
    for one, other in zip(gradients[1], gradients[0], strict=True):
        rounding.assert_close(one, other, roundings=num_values**2)
    rounding.assert_close(fused.moving_mean, keras_layer.moving_mean, roundings=num_values)
    sample = 0.9 + (keras_layer.moving_variance - 0.9) * num_values / (num_values - 1)
    rounding.assert_close(fused.moving_variance, sample, roundings=num_values)
    rounding.assert_close(
        fused(images, training=False),
        (images - fused.moving_mean) / (fused.moving_variance + 1e-5) ** 0.5 * fused.gamma
        + fused.beta,
        roundings=num_values,
    )


def test_training_reduces_the_loss_and_reports_the_accuracy_on_all_test_images(
    directory: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    run = pipeline.RunPipeline(_experiment(directory, 60), "train_and_eval", str(tmp_path / "run"))
    trained, logs = run.run()
    images, labels = data.load_split(str(directory), "test")
    predicted = np.argmax(trained(images.astype(np.float32), training=False), axis=-1)
    assert float(logs["accuracy"]) == pytest.approx(np.mean(predicted == labels))
    assert float(logs["accuracy"]) > 0.7
    lines = map(json.loads, (tmp_path / "run" / "metrics.json").read_text().splitlines())
    losses = [line["training_loss"] for line in lines if line["split"] == "train"]
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.slow
def test_resumed_training_has_the_weights_of_an_uninterrupted_run(
    directory: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    def train(name: str, train_steps: int) -> keras.Model:
        params = _experiment(directory, train_steps)
        return pipeline.RunPipeline(params, "train", str(tmp_path / name)).run()[0]

    evaluations.assert_resumes_exactly(train, 5, 10)


@pytest.mark.slow
def test_final_evaluation_after_training_gives_the_same_metrics_as_eval_mode(
    directory: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    evaluations.assert_equal_to_mode_eval(_experiment(directory, 4), tmp_path / "run")


@pytest.mark.parametrize("filters", [(), (8, 0)])
def test_model_config_with_empty_or_zero_filters_is_refused(filters: tuple[int, ...]) -> None:
    params = configs.fashion_mnist_best()
    params.task.model.filters = filters
    with pytest.raises(errors.ConfigValueError, match="at least one number, all of them positive"):
        params.validate()
