"""Augmentation by Keras layers: images after a resume, mixed labels, and errors."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.data import arrays, augmentation, position
from official_lite.modeling.hyperparams import base_config
from tests import rounding

IMAGES = np.random.default_rng(0).uniform(0, 255, (48, 4, 4, 3)).astype(np.float32)
LABELS = np.eye(10, dtype=np.float32)[np.arange(48) % 10]

FLIP = {"class_name": "RandomFlip", "config": {"mode": "horizontal"}}


def _batches(*layers: Any, begin: int = 0, end: int = 6, pipeline: int | None = None) -> list[Any]:
    context = None if pipeline is None else tf.distribute.InputContext(2, pipeline, 2)
    with position.begin_at(begin, seed=3):
        dataset = arrays.from_arrays((IMAGES, LABELS), 8, shuffle=True, repeat=True)
        dataset = augmentation.augment(dataset, layers, context)
    return list(dataset.take(end - begin).as_numpy_iterator())


def test_resumed_training_sees_the_augmented_images_of_an_uninterrupted_run() -> None:
    layers = [FLIP, keras.layers.MixUp(alpha=0.3)]
    for batch, resumed in zip(_batches(*layers)[4:], _batches(*layers, begin=4), strict=True):
        np.testing.assert_array_equal(resumed[0], batch[0])
        np.testing.assert_array_equal(resumed[1], batch[1])


def test_augmentation_differs_between_batches_and_between_input_pipelines() -> None:
    ones = tf.data.Dataset.from_tensors(tf.ones([8, 4, 4, 3])).repeat()
    seen = set()
    for pipeline in (0, 1):
        context = tf.distribute.InputContext(2, pipeline, 2)
        noise = {"class_name": "RandomBrightness", "config": {"factor": 0.5}}
        augmented = augmentation.augment(ones, [noise], context).take(4)
        seen |= {images.tobytes() for images in augmented.as_numpy_iterator()}
    assert len(seen) == 8


def test_labels_mixed_by_cutmix_still_sum_to_one() -> None:
    (_, labels), *_ = _batches({"class_name": "CutMix"}, end=1)
    rounding.assert_close(labels.sum(-1), np.ones(8), roundings=4)
    assert ((labels > 0) & (labels < 1)).any()


@pytest.fixture(params=["mixed_bfloat16", "mixed_float16"])
def mixed_precision(request: pytest.FixtureRequest) -> Iterator[None]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(request.param)
    yield
    keras.config.set_dtype_policy(before)


@pytest.mark.usefixtures("mixed_precision")
def test_images_and_labels_are_augmented_in_float32_when_training_in_mixed_precision() -> None:
    rand_augment = {"class_name": "RandAugment", "config": {"num_ops": 1}}
    (batch,) = _batches(FLIP, rand_augment, keras.layers.MixUp(), {"class_name": "CutMix"}, end=1)
    assert [part.dtype for part in batch] == [np.float32, np.float32]
    assert np.isfinite(batch[0]).all()
    rounding.assert_close(batch[1].sum(-1), np.ones(8), roundings=8)


def test_augmentation_layers_are_created_from_config_mappings() -> None:
    config = base_config.Config({"augmentation": [FLIP]})
    for batch, expected in zip(_batches(*config.augmentation), _batches(FLIP), strict=True):
        np.testing.assert_array_equal(batch[0], expected[0])
    dataset = tf.data.Dataset.range(3)
    assert augmentation.augment(dataset, []) is dataset


@pytest.mark.parametrize(
    ("layer", "error", "named"),
    [
        ({"class_name": "RandomFlop"}, errors.UnknownNameError, "RandomFlip"),
        ({"name": "RandomFlip"}, errors.ConfigValueError, "'name'"),
        ({**FLIP, "config": {"axis": 1}}, errors.ConfigValueError, "'RandomFlip'"),
    ],
)
def test_invalid_augmentation_layer_is_refused(layer, error, named) -> None:
    with pytest.raises(error, match=named):
        _batches(layer)


def test_mixup_of_labels_that_are_not_one_hot_is_refused() -> None:
    dataset = arrays.from_arrays((IMAGES, np.arange(48)), 8, shuffle=False, repeat=False)
    with pytest.raises(errors.ConfigValueError, match="must be one-hot"):
        augmentation.augment(dataset, [keras.layers.MixUp()])
