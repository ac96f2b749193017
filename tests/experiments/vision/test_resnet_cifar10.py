import pathlib
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

from experiments.vision.resnet_cifar10 import configs, data, task
from official_lite import pipeline
from official_lite.common import errors
from official_lite.core import config_definitions as cfg
from official_lite.data import position
from tests import rounding, tfds_stand_in
from tests.experiments import evaluations

NUM_IMAGES = {"data_batch_1": 20, "data_batch_2": 20, "test_batch": 13}


@pytest.fixture
def directory(tmp_path: pathlib.Path) -> pathlib.Path:
    """Write files in the format of CIFAR-10's Python version, with fewer images."""
    rng = np.random.default_rng(0)
    for name, count in NUM_IMAGES.items():
        pixels = rng.integers(256, size=(count, 3072), dtype=np.uint8)
        content = {b"data": pixels, b"labels": [i % 10 for i in range(count)]}
        # The original files use this pickle protocol.
        (tmp_path / name).write_bytes(pickle.dumps(content, protocol=4))
    return tmp_path


def _experiment(directory: pathlib.Path, train_steps: int) -> cfg.ExperimentConfig:
    params = configs.resnet_cifar10()
    files = {"input_path": str(directory)}
    params.override(
        {
            "task": {
                "model": {"num_blocks": 1, "filters": 4},
                "train_data": {**files, "global_batch_size": 8},
                "validation_data": {**files, "global_batch_size": 5},
            },
            "trainer": {
                "train_steps": train_steps,
                "validation_interval": 6,
                "checkpoint_interval": 3,
                "writers": ["jsonl"],
                "optimizer_config": {"learning_rate": {"type": "constant"}},
            },
            "runtime": {"distribution_strategy": "one_device", "execution": "graph"},
        }
    )
    return params


def test_cifar10_channel_planes_are_read_as_rgb_images(directory: pathlib.Path) -> None:
    images, labels = data.load_split(str(directory), "train")
    assert (images.shape, images.dtype) == ((40, 32, 32, 3), np.uint8)
    with (directory / "data_batch_2").open("rb") as file:
        pixels = pickle.load(file)[b"data"]
    np.testing.assert_array_equal(images[20, 1, 5], pixels[0, 32 + 5 :: 1024])
    np.testing.assert_array_equal(labels[:20], np.arange(20) % 10)
    assert len(data.load_split(str(directory), "test")[1]) == 13


def test_unsafe_pickles_and_missing_cifar10_files_are_refused(
    directory: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (directory / "test_batch").write_bytes(pickle.dumps({b"data": pathlib.Path("x")}))
    with pytest.raises(errors.DataError, match="not allowed in a CIFAR-10 file"):
        data.load_split(str(directory), "test")
    with pytest.raises(errors.DataError, match=r"keras\.datasets\.cifar10\.load_data"):
        data.load_split(str(tmp_path / "nowhere"), "train")


def test_augmentation_crops_the_padded_image_or_its_mirror_image() -> None:
    params = configs.Cifar10Config().train_data
    image = np.random.default_rng(0).integers(256, size=(1, 32, 32, 3), dtype=np.uint8)
    change = data._change_at_random(params)
    images, _ = change(
        tf.constant([0, 3], tf.int64), (tf.repeat(image, 64, axis=0), tf.zeros([64]))
    )
    windows = set()
    for mirrored in (False, True):
        padded = np.pad(image[0, :, ::-1] if mirrored else image[0], [(4, 4), (4, 4), (0, 0)])
        for i in range(9):
            for j in range(9):
                window = padded[i : i + 32, j : j + 32]
                is_it = (images.numpy() == window).all(axis=(1, 2, 3))
                windows |= {(mirrored, i, j)} if is_it.any() else set()
    assert len(windows) > 30
    assert {mirrored for mirrored, _, _ in windows} == {False, True}


def test_network_has_the_parameter_count_of_the_paper_and_decays_only_kernels() -> None:
    config = configs.Cifar10Config()
    built = task.Cifar10Task(config).build_model()
    kernels = [w for w in built.trainable_weights if w.path.endswith("kernel")]
    expected = sum(float(tf.nn.l2_loss(kernel)) for kernel in kernels) * 1e-4
    assert len(kernels) == 20
    assert built.count_params() == pytest.approx(0.27e6, rel=0.02)
    largest = max(int(tf.size(kernel)) for kernel in kernels)
    rounding.assert_close(tf.add_n(built.losses), expected, roundings=largest)


def test_loss_with_label_smoothing_matches_keras() -> None:
    config = configs.Cifar10Config()
    config.losses.label_smoothing = 0.1
    logits = tf.random.stateless_normal([4, 10], (1, 2))
    labels = tf.constant([0, 3, 3, 9])
    expected = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)(
        tf.one_hot(labels, 10), logits
    )
    loss = task.Cifar10Task(config).build_losses(labels, logits)
    rounding.assert_close(loss, expected, roundings=4 * 10)


@pytest.mark.slow
def test_resumed_training_has_the_weights_of_an_uninterrupted_run(
    directory: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    def train(name: str, train_steps: int) -> keras.Model:
        params = _experiment(directory, train_steps)
        return pipeline.RunPipeline(params, "train_and_eval", str(tmp_path / name)).run()[0]

    evaluations.assert_resumes_exactly(train, 3, 6)
    # The accuracy is a multiple of 1/13: all 13 test images are evaluated.
    accuracy = evaluations.validations(tmp_path / "uninterrupted")[-1]["accuracy"]
    assert accuracy * 13 == pytest.approx(round(accuracy * 13))


def test_cifar10_images_are_read_from_tensorflow_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(0).integers(256, size=(11, 32, 32, 3), dtype=np.uint8)
    examples = {"id": np.arange(11), "image": images, "label": np.arange(11) % 10}
    tfds_stand_in.install(monkeypatch, tf.data.Dataset.from_tensor_slices(examples))
    params = configs.Cifar10Config().validation_data.replace(
        input_path="", tfds_name="cifar10", tfds_split="test", global_batch_size=4
    )
    batches = list(data.build_dataset(params).as_numpy_iterator())
    assert [len(labels) for _, labels in batches] == [4, 4, 3]
    np.testing.assert_array_equal(np.concatenate([x for x, _ in batches]), images)
    with position.begin_at(0, seed=1):
        endless = data.build_dataset(params.replace(is_training=True, drop_remainder=True))
    assert next(iter(endless))[0].shape == (4, 32, 32, 3)


@pytest.mark.slow
def test_final_evaluation_after_training_gives_the_same_metrics_as_eval_mode(
    directory: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    evaluations.assert_equal_to_mode_eval(_experiment(directory, 4), tmp_path / "run")
