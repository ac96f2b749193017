import dataclasses
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from experiments.vision.digits import configs as digits
from experiments.vision.digits import task as digits_task
from official_lite.common import errors
from official_lite.compression import configs, distillation
from official_lite.core import task_factory, train_lib
from tests.line_experiment import line_experiment


@dataclasses.dataclass
class OwnStepConfig(digits.DigitsConfig):
    pass


@task_factory.register_task_cls(OwnStepConfig)
class OwnStepTask(digits_task.DigitsTask):
    learns_from_teacher = False

    def train_step(self, inputs, model, optimizer, metrics=None):
        images, labels = inputs
        with tf.GradientTape() as tape:
            outputs = model(images, training=True)
            loss = self.build_losses(labels, outputs)
            if self.learns_from_teacher:
                loss = self.distillation(loss, images, outputs)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return {self.loss: loss}


@pytest.fixture(scope="module")
def teacher(train_digits, tmp_path_factory) -> pathlib.Path:
    """A run with averaged weights."""
    model_dir = tmp_path_factory.mktemp("teacher") / "run"
    train_digits(
        model_dir,
        task={"model": {"units": [32, 16]}},
        optimizer_config={"ema": {"average_decay": 0.9}},
    )
    return model_dir


def _from(teacher, **fields):
    own = {"teacher": str(teacher), "experiment": "vision/digits_mlp", **fields}
    return {"distillation": own}


@pytest.mark.parametrize("execution", ["graph", "xla_loop"])
def test_student_comes_closer_to_its_teacher(
    train_digits, read_metrics, teacher, tmp_path, execution
) -> None:
    train_digits(tmp_path, _from(teacher, alpha=1.0), execution=execution, train_steps=60)
    losses = [each["distillation/output_loss"] for each in read_metrics(tmp_path)]
    assert losses[-1] < 0.5 * losses[0]


def test_teacher_with_frozen_weights_is_the_model_that_it_evaluates(
    train_digits, tmp_path, monkeypatch
) -> None:
    teacher = tmp_path / "teacher"
    trained = train_digits(
        teacher,
        freeze=["logits/kernel"],
        optimizer_config={"ema": {"average_decay": 0.0, "dynamic_decay": False}},
    )
    bound = []
    monkeypatch.setattr(
        distillation.Distillation, "bind", _spied(distillation.Distillation.bind, bound)
    )
    train_digits(tmp_path / "student", _from(teacher), train_steps=1)
    # An average without decay equals the weights.
    for one, other in zip(bound[0].teacher.weights, trained, strict=True):
        np.testing.assert_array_equal(one.numpy(), other)


def _spied(method, calls):
    def spy(self, *args):
        calls.append(self)
        return method(self, *args)

    return spy


def test_resumed_run_equals_the_unbroken_one(train_digits, teacher, tmp_path) -> None:
    changing = tmp_path / "teacher"
    shutil.copytree(teacher, changing)
    learned = _from(changing)
    unbroken = train_digits(tmp_path / "unbroken", learned)
    train_digits(tmp_path / "broken", learned, train_steps=10)
    # The teacher goes on, but the student learns from the same weights as before.
    train_digits(
        changing,
        task={"model": {"units": [32, 16]}},
        optimizer_config={"ema": {"average_decay": 0.9}},
        train_steps=30,
    )
    for one, other in zip(unbroken, train_digits(tmp_path / "broken", learned), strict=True):
        np.testing.assert_array_equal(other, one)


def test_two_replicas_learn_what_one_does(train_digits, teacher, tmp_path, two_replicas) -> None:
    learned = _from(teacher, features=[{"student_layer": "logits", "teacher_layer": "logits"}])
    one = train_digits(tmp_path / "one", learned)
    two = train_digits(tmp_path / "two", learned, strategy=two_replicas)
    for mine, theirs in zip(one, two, strict=True):
        np.testing.assert_allclose(theirs, mine, atol=1e-5)


def test_checkpoints_do_not_contain_the_teacher(train_digits, teacher, tmp_path) -> None:
    train_digits(tmp_path, _from(teacher))
    shapes = [shape for _, shape in tf.train.list_variables(str(tmp_path / "ckpt-20"))]
    assert [64, 32] not in shapes


def test_vanished_teacher_is_reported(train_digits, teacher, tmp_path) -> None:
    changing = tmp_path / "teacher"
    shutil.copytree(teacher, changing)
    train_digits(tmp_path / "run", _from(changing), train_steps=10)
    for file in changing.glob("ckpt-20*"):
        file.unlink()
    with pytest.raises(errors.CheckpointError, match="ckpt-20, which can't be loaded"):
        train_digits(tmp_path / "run", _from(changing))


def test_unknown_layer_is_refused(train_digits, teacher, tmp_path) -> None:
    features = [{"student_layer": "logit", "teacher_layer": "logits"}]
    with pytest.raises(errors.UnknownNameError, match="the layer 'logit', which the student"):
        train_digits(tmp_path, _from(teacher, features=features))


def _own_step(teacher) -> tuple[Any, OwnStepTask]:
    params = line_experiment()
    config = OwnStepConfig()
    config.override({"compression": _from(teacher)})
    params.task = config
    return params, task_factory.get_task(config)


def test_own_step_may_add_the_loss_of_the_teacher(teacher, tmp_path) -> None:
    params, task = _own_step(teacher)
    task.learns_from_teacher = True
    train_lib.run_experiment(None, task, "train", params, str(tmp_path))
    assert task.distillation.num_calls > 0


def test_step_that_does_not_learn_from_the_teacher_is_refused(teacher, tmp_path) -> None:
    params, task = _own_step(teacher)
    with pytest.raises(errors.ConfigValueError, match="`train_step` of OwnStepTask does not call"):
        train_lib.run_experiment(None, task, "train", params, str(tmp_path))


def test_distillation_of_nothing_is_refused() -> None:
    config = configs.CompressionConfig()
    config.override({"distillation": {"teacher": "run", "alpha": 0.0}})
    with pytest.raises(errors.ConfigValueError, match="nothing would be learned"):
        config.validate()
