import pathlib

import numpy as np
import pytest
import tensorflow as tf

from experiments.vision.digits import configs, data, task
from official_lite.common import errors
from tests.experiments import evaluations

ROOT = pathlib.Path(__file__).parents[2]


def _data(**fields) -> configs.DigitsDataConfig:
    return configs.DigitsConfig().train_data.replace(**fields)


def test_train_and_validation_splits_have_1437_and_360_digits_of_all_classes() -> None:
    train, validation = data.load_split("train"), data.load_split("validation")
    assert (len(train[1]), len(validation[1])) == (1437, 360)
    assert train[0].shape[1:] == data.IMAGE_SHAPE
    assert (train[0].min(), train[0].max()) == (0.0, 1.0)
    assert set(np.unique(validation[1])) == set(range(10))
    with pytest.raises(errors.ConfigValueError, match="`validation`"):
        data.load_split("validaton")


def test_only_equal_seeds_give_the_same_first_batch() -> None:
    def first_batch(seed: int) -> np.ndarray:
        return next(iter(data.build_dataset(_data(seed=seed))))[0].numpy()

    np.testing.assert_array_equal(first_batch(1), first_batch(1))
    assert not np.array_equal(first_batch(1), first_batch(2))


def test_random_shift_moves_images_by_at_most_max_shift_pixels() -> None:
    plain = _data(max_shift=0, is_training=False, global_batch_size=1437)
    shifted = _data(max_shift=1, is_training=False, global_batch_size=1437)
    before, _ = next(iter(data.build_dataset(plain)))
    after, _ = next(iter(data.build_dataset(shifted)))
    padded = tf.pad(before, [[0, 0], [1, 1], [1, 1], [0, 0]])
    crops = [padded[:, i : i + 8, j : j + 8] for i in range(3) for j in range(3)]
    is_crop = [tf.reduce_all(crop == after, axis=(1, 2, 3)) for crop in crops]
    assert tf.reduce_all(tf.reduce_any(tf.stack(is_crop), axis=0))


def test_pipelines_of_two_workers_divide_the_examples() -> None:
    def labels(pipeline: int) -> int:
        context = tf.distribute.InputContext(2, pipeline, 2)
        params = _data(is_training=False, global_batch_size=200, drop_remainder=False)
        return sum(len(y) for _, y in data.build_dataset(params, context))

    assert labels(0) + labels(1) == 1437


@pytest.mark.parametrize("factory", [configs.digits_cnn, configs.digits_mlp])
def test_model_maps_images_to_float32_logits(factory) -> None:
    model = task.DigitsTask(factory().task).build_model()
    assert model.output_shape == (None, data.NUM_CLASSES)
    assert model.output.dtype == "float32"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "accuracy"), [("digits_cnn", 0.98), ("digits_mlp", 0.95)])
def test_digits_experiment_reaches_the_accuracy_in_its_readme(
    tmp_path: pathlib.Path, name: str, accuracy: float
) -> None:
    evaluations.train_by_command(f"vision/{name}", tmp_path)
    assert evaluations.validations(tmp_path)[-1]["accuracy"] >= accuracy
