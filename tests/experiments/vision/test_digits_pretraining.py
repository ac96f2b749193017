import pathlib

import numpy as np
import pytest
import tensorflow as tf

from experiments.vision.digits import data as digits
from experiments.vision.digits_pretraining import configs, data
from official_lite import pipeline
from tests import rounding
from tests.experiments import evaluations


def test_labeled_images_are_the_first_two_of_each_class() -> None:
    params = configs.FewLabelsConfig().train_data
    images, labels = data.load_examples(params, "class")
    assert np.bincount(labels).tolist() == [2] * 10
    all_images, all_labels = digits.load_split("train")
    np.testing.assert_array_equal(images[labels == 3], all_images[all_labels == 3][:2])


def test_reconstruction_targets_are_not_shifted_with_their_input_images() -> None:
    params = configs.FewLabelsConfig().train_data
    images, pixels = data.load_examples(params, "image")
    np.testing.assert_array_equal(images.reshape(20, 64), pixels)
    shifted, targets = next(iter(data.build_dataset(params, "image")))
    whole = {row.tobytes() for row in pixels}
    assert {row.tobytes() for row in targets.numpy()} == whole
    assert {row.tobytes() for row in shifted.numpy().reshape(20, 64)} != whole


@pytest.mark.slow
def test_finetuning_starts_from_the_pretrained_encoder_and_exports_a_saved_model(
    tmp_path: pathlib.Path,
) -> None:
    params = configs.digits_pretraining()
    params.override({"trainer": {"writers": []}, "runtime": {"execution": "graph"}})
    params.override({"task": {"model": {"filters": [4], "units": [8]}}})
    pretrain, finetune = params.phases
    pretrain.overrides.override({"trainer.train_steps": 2}, is_strict=False)
    # The encoder is frozen, so that it keeps the pretrained weights.
    finetune.overrides.override({"trainer.train_steps": 1, "trainer.freeze": ["^encoder"]}, False)
    model, logs = pipeline.RunPipeline(params, "train_and_eval", str(tmp_path)).run()
    assert 0 <= float(logs["accuracy"]) <= 1
    saved = tf.train.load_checkpoint(str(tmp_path / "pretrain"))
    shapes = saved.get_variable_to_shape_map()
    pretrained = [saved.get_tensor(name).tolist() for name, shape in shapes.items() if shape]
    encoder = model.get_layer("encoder").weights
    assert len(encoder) == 4
    assert all(weight.numpy().tolist() in pretrained for weight in encoder)
    served = tf.saved_model.load(str(tmp_path / "finetune" / "export" / "1"))
    images = digits.load_split("validation")[0][:3]
    # The longest sum is over 8 by 8 pixels with 4 channels.
    rounding.assert_close(served.serve(images), model(images), roundings=8 * 8 * 4)


@pytest.mark.slow
def test_pretraining_improves_accuracy_with_few_labels(tmp_path: pathlib.Path) -> None:
    def last_accuracy(name: str, directory: pathlib.Path) -> float:
        evaluations.train_by_command(f"vision/{name}", tmp_path / name)
        return evaluations.validations(directory)[-1]["accuracy"]

    alone = last_accuracy("digits_few_labels", tmp_path / "digits_few_labels")
    pretrained = last_accuracy("digits_pretraining", tmp_path / "digits_pretraining" / "finetune")
    assert pretrained > alone
