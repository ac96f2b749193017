import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from experiments.vision.resnet_imagenet import configs, data
from official_lite.core import config_definitions as cfg
from official_lite.core import file_writers, tf_example_builder
from official_lite.data import position
from tests import tfds_stand_in
from tests.experiments import evaluations

SIZES = [(40, 60), (60, 40), (48, 48), (33, 80), (64, 50)]


def _jpeg(index: int) -> bytes:
    """Encode an image whose red decreases to the right and whose green decreases downward."""
    height, width = SIZES[index % len(SIZES)]
    red = tf.tile(tf.linspace(255.0, 0.0, width)[tf.newaxis], [height, 1])
    green = tf.tile(tf.linspace(255.0, 0.0, height)[:, tf.newaxis], [1, width])
    image = tf.stack([red, green, tf.fill([height, width], 10.0 * index)], axis=-1)
    return tf.io.encode_jpeg(tf.cast(image, tf.uint8), quality=95).numpy()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Write two files of training images and one of validation images in the format of ImageNet."""
    path = tmp_path_factory.mktemp("imagenet")
    for name, begin, end in [("train-0", 0, 6), ("train-1", 6, 12), ("valid-0", 12, 19)]:
        examples = [
            tf_example_builder.TfExampleBuilder()
            .add_bytes_feature("image/encoded", _jpeg(index))
            .add_ints_feature("image/class/label", 1 + index % 3)
            .example
            for index in range(begin, end)
        ]
        file_writers.write_small_dataset(examples, str(path / name))
    return path


def _experiment(directory: pathlib.Path, train_steps: int = 6) -> cfg.ExperimentConfig:
    params = configs.resnet_imagenet()
    params.override(
        {
            "task": {
                "model": {
                    "input_size": [32, 32],
                    "num_classes": 4,
                    "block": "basic_block",
                    "num_blocks": [1],
                    "rand_augment": {"num_ops": 1},
                },
                "losses": {"label_smoothing": 0.1},
                "train_data": {
                    "input_path": f"{directory}/train*",
                    "global_batch_size": 4,
                    "num_examples": 12,
                    "shuffle_buffer_size": 12,
                },
                "validation_data": {
                    "input_path": f"{directory}/valid*",
                    "global_batch_size": 4,
                },
            },
            "trainer": {
                "train_steps": train_steps,
                "writers": ["jsonl"],
                "optimizer_config": {
                    "learning_rate": {"type": "constant"},
                    "warmup": {"linear": {"warmup_steps": 2}},
                },
            },
            "runtime": {"distribution_strategy": "one_device", "execution": "graph"},
        }
    )
    return params


def _first_batches(params: cfg.DataConfig, batch: int, count: int) -> list[np.ndarray]:
    with position.begin_at(batch, seed=5):
        dataset = data.build_dataset(params, (32, 32))
    return [images.numpy() for images, _ in dataset.take(count)]


def test_evaluation_reads_the_center_crop_of_each_image_once(directory: pathlib.Path) -> None:
    params = _experiment(directory).task.validation_data
    batches = list(data.build_dataset(params, (32, 32)).as_numpy_iterator())
    assert [len(labels) for _, labels in batches] == [4, 3]
    images = np.concatenate([images for images, _ in batches])
    assert (images.shape, images.dtype) == ((7, 32, 32, 3), np.float32)
    # The crop is centered, so the means of both gradients are in the middle of their range.
    np.testing.assert_allclose(images[..., :2].mean(axis=(1, 2)), 127.5, atol=4)
    assert (images[:, :, 0, 0] - images[:, :, -1, 0] > 50).all()


def test_training_reads_random_crops_and_mirror_images(directory: pathlib.Path) -> None:
    params = _experiment(directory).task.train_data
    images = np.concatenate(_first_batches(params, 0, 12))
    left_to_right = images[:, :, 0, 0].mean(axis=1) - images[:, :, -1, 0].mean(axis=1)
    assert 0.2 < (left_to_right < 0).mean() < 0.8
    extents = np.abs(left_to_right)
    assert extents.min() < 120 < extents.max()
    largest = params.replace(crop_area_range=(1.0, 1.0), aug_rand_hflip=False)
    images = np.concatenate(_first_batches(largest, 0, 3))
    # No crop of the whole area has the drawn aspect ratio, so the center crop is used.
    assert (images[:, :, 0, 0] - images[:, :, -1, 0] > 50).all()


def test_training_images_depend_only_on_the_batch_number(directory: pathlib.Path) -> None:
    params = _experiment(directory).task.train_data
    unbroken = _first_batches(params, 0, 7)
    for batch, other in zip(unbroken[4:], _first_batches(params, 4, 3), strict=True):
        np.testing.assert_array_equal(batch, other)
    # Batch 3 belongs to the next epoch, where images are cropped differently.
    assert not np.isin(unbroken[0].sum(axis=(1, 2, 3)), unbroken[3].sum(axis=(1, 2, 3))).all()


def test_resumed_training_does_not_decode_the_images_of_earlier_batches(
    directory: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_decoded = tf.Variable(0)
    decode = data._decode

    def count(*args: Any) -> tf.Tensor:
        num_decoded.assign_add(1)
        return decode(*args)

    monkeypatch.setattr(data, "_decode", count)
    params = _experiment(directory).task.train_data
    with position.begin_at(500, seed=5):
        dataset = position.keep(data.build_dataset)(params, (32, 32))
    next(iter(dataset))
    assert 0 < num_decoded.numpy() < 500 * params.global_batch_size


def test_images_from_a_tf_data_service_have_the_configured_crop_size(
    directory: pathlib.Path,
) -> None:
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    worker = service.WorkerServer(
        service.WorkerConfig(dispatcher_address=dispatcher.target.split("://")[1])
    )
    params = _experiment(directory).task.train_data.replace(
        enable_tf_data_service=True, tf_data_service_address=dispatcher.target
    )
    (images, _), *_ = data.build_dataset(params, (32, 32)).take(1)
    assert images.shape == (4, 32, 32, 3)
    del worker


def test_default_imagenet_config_trains_for_90_epochs() -> None:
    from official_lite.config import epochs

    params = epochs.resolve(configs.resnet_imagenet())
    assert params.trainer.train_steps == 28_151
    assert params.trainer.validation_interval == 312
    schedule = params.trainer.optimizer_config.learning_rate.stepwise
    assert schedule.boundaries == [9384, 18767, 25023]
    assert schedule.values == pytest.approx([1.6, 0.16, 0.016, 0.0016])


def test_imagenet_images_are_read_from_tensorflow_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    examples = {
        "file_name": [f"{index}.JPEG" for index in range(5)],
        "image": [_jpeg(index) for index in range(5)],
        "label": np.arange(5),
    }
    tfds = tfds_stand_in.install(monkeypatch, tf.data.Dataset.from_tensor_slices(examples))
    params = configs.ImageNetConfig().validation_data.replace(
        input_path="", tfds_name="imagenet2012", tfds_split="validation", global_batch_size=4
    )
    batches = list(data.build_dataset(params, (32, 32)).as_numpy_iterator())
    assert [labels.tolist() for _, labels in batches] == [[0, 1, 2, 3], [4]]
    assert tfds.loaded["decoders"] == {"image": "skipped"}


@pytest.mark.slow
def test_final_evaluation_after_training_gives_the_same_metrics_as_eval_mode(
    directory: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    evaluations.assert_equal_to_mode_eval(_experiment(directory), tmp_path / "run")
