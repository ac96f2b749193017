import pathlib
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from official_lite.modeling.multitask import base_model


class _Model(base_model.MultiTaskBaseModel):
    def __init__(self) -> None:
        self.shared = keras.layers.Dense(1)
        self.scale = tf.Variable(1.0)
        self.offset = tf.Variable(1.0, trainable=False)
        super().__init__()

    def _instantiate_sub_tasks(self) -> dict[str, keras.Model]:
        inputs = keras.Input((2,))
        return {
            name: keras.Model(inputs, keras.layers.Dense(1, name=name)(self.shared(inputs)))
            for name in ("foo", "bar")
        }


def test_multitask_model_lists_each_shared_variable_once() -> None:
    model = _Model()
    assert len(model.variables) == 8
    assert len({id(v) for v in model.variables}) == 8
    assert [v is model.offset for v in model.non_trainable_variables] == [True]


def test_variables_of_a_frozen_layer_are_not_trainable() -> None:
    model = _Model()
    model.shared.trainable = False
    trainable = {id(v) for v in model.trainable_variables}
    assert not trainable & {id(v) for v in model.shared.variables}
    assert len(trainable) == 5


def test_checkpoint_restores_all_variables_of_a_multitask_model(tmp_path: pathlib.Path) -> None:
    saved, restored = _Model(), _Model()
    path = tf.train.Checkpoint(model=saved).save(str(tmp_path / "ckpt"))
    status = tf.train.Checkpoint(model=restored).restore(path)
    status.assert_existing_objects_matched()
    for one, other in zip(saved.variables, restored.variables, strict=True):
        assert (one.numpy() == other.numpy()).all()


def test_multitask_build_creates_variables_only_for_sub_models_with_known_inputs(
    make_model: Callable[..., Any],
) -> None:
    model = make_model()
    model.build()
    assert not model.variables
    for sub_model in model.sub_tasks.values():
        sub_model.inputs = keras.Input((1,))
    model.build()
    assert len(model.variables) == 1


def test_multitask_model_without_instantiate_sub_tasks_raises_not_implemented_error() -> None:
    with pytest.raises(NotImplementedError, match="_instantiate_sub_tasks"):
        base_model.MultiTaskBaseModel()
