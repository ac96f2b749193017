"""Tests of the Keras reference, which must follow the recipe of `vision/fashion_mnist`."""

import gzip
import json
import pathlib
import struct

import keras
import numpy as np
import pytest

from benchmarks.records.references import fashion_mnist_keras as reference
from experiments.vision.fashion_mnist import configs, task
from official_lite.config import epochs
from official_lite.core import trainer_factory

NUM_STEPS = 1000


@pytest.mark.parametrize("step", [50, 900], ids=["warmup", "decay"])
def test_experiment_step_updates_all_weights_like_the_keras_reference(step: int) -> None:
    keras.utils.set_random_seed(1)
    params = configs.fashion_mnist()
    length = {"train_epochs": None, "train_steps": NUM_STEPS, "validate_every_epochs": None}
    params.override({"trainer": {**length, "checkpoint_every_epochs": None}})
    params = epochs.resolve(params)
    our_task = task.FashionMnistTask(params.task)
    ours = our_task.build_model()
    optimizer = trainer_factory.create_optimizer(our_task, params)
    theirs = reference.build_model()
    reference.compile_model(theirs, NUM_STEPS, run_eagerly=True)
    theirs.set_weights(ours.get_weights())
    before = [one.numpy() for one in ours.trainable_variables]
    optimizer.iterations.assign(step)
    theirs.optimizer.iterations.assign(step)
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(16, 28, 28, 1)).astype(np.float32)
    labels = rng.integers(10, size=16)
    our_task.train_step((images, labels), ours, optimizer, metrics=[])
    theirs.train_on_batch(images, keras.utils.to_categorical(labels, 10))
    weights = zip(before, ours.trainable_variables, theirs.trainable_variables, strict=True)
    for begin, ours_end, theirs_end in weights:
        change = np.linalg.norm(ours_end.numpy() - begin)
        assert np.linalg.norm(theirs_end.numpy() - ours_end.numpy()) < 1e-3 * change, ours_end.path


@pytest.mark.slow
def test_keras_reference_prints_an_accuracy_after_each_epoch(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    for split, count in (("train", 300), ("t10k", 40)):
        labels = rng.integers(10, size=count, dtype=np.uint8)
        images = np.zeros((count, 28, 28), np.uint8)
        images[np.arange(count), labels] = 255
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            path = tmp_path / f"{split}-{kind}-ubyte.gz"
            path.write_bytes(gzip.compress(header + array.tobytes()))
    arguments = ["reference", f"--data_dir={tmp_path}", "--max_epochs=2", "--seed=3"]
    monkeypatch.setattr("sys.argv", arguments)
    reference.main()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]
    assert 0 < lines[0]["seconds"] < lines[1]["seconds"]
    assert all(0 <= line["accuracy"] <= 1 for line in lines)
