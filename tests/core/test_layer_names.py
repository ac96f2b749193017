"""Tests that unnamed layers get the same names in every run, whatever was built earlier."""

import json
import pathlib

import keras
import numpy as np
import pytest

from official_lite.core import train_lib, trainer_factory
from tests.line_experiment import LineTask, line_experiment


class Unnamed(LineTask):
    def build_model(self) -> keras.Model:
        layers = [keras.Input((2,)), keras.layers.Dense(2), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile(metrics=["mse"])
        return model


def _paths(task: LineTask, params) -> list[str]:
    trainer = trainer_factory.create_trainer(params, task, train=True, evaluate=False)
    return [v.path for v in (*trainer.model.variables, *trainer.optimizer.variables)]


def test_models_and_optimizers_built_twice_in_a_process_have_equal_variable_names() -> None:
    params = line_experiment()
    first = _paths(Unnamed(params.task), params)
    keras.layers.Dense(1)
    assert _paths(Unnamed(params.task), params) == first
    assert "sequential/dense_1/kernel" in first


def test_second_run_in_a_process_freezes_and_reports_the_same_layers_as_the_first_run(
    tmp_path: pathlib.Path,
) -> None:
    hooks = [{"name": "weight_norms", "every_n_steps": 4}]
    params = line_experiment(trainer={"freeze": ["/dense/"], "hooks": hooks})
    found = []
    for name in ("first", "second"):
        model, _ = train_lib.run_experiment(
            None, Unnamed(params.task), "train_and_eval", params, str(tmp_path / name)
        )
        records = (tmp_path / name / "metrics.json").read_text().splitlines()
        names = {key for record in map(json.loads, records) for key in record}
        found.append((names, model.get_config(), [w.trainable for w in model.weights]))
    assert found[0] == found[1]
    assert found[0][2] == [False, False, True, True]


def test_build_model_may_extend_a_model_that_was_built_earlier() -> None:
    inputs = keras.Input((2,))
    hidden = keras.layers.Dense(2)(inputs)

    class Extending(LineTask):
        def build_model(self) -> keras.Model:
            return keras.Model(inputs, keras.layers.Dense(1)(hidden))

    params = line_experiment()
    for _ in range(2):
        names = [layer.name for layer in trainer_factory.build_model(Extending(params.task)).layers]
        assert len(set(names)) == 3


def test_model_returned_by_build_model_can_be_extended_later() -> None:
    params = line_experiment()
    for _ in range(2):
        model = trainer_factory.build_model(Unnamed(params.task))
        extended = keras.Model(model.inputs[0], keras.layers.Dense(1)(model.layers[0].output))
        assert extended(np.ones([1, 2])).shape == (1, 1)


def test_build_model_error_is_raised_unchanged() -> None:
    class Fails(LineTask):
        def build_model(self) -> keras.Model:
            raise ValueError("no units")

    keras.layers.Dense(1)
    with pytest.raises(ValueError, match=r"^no units$") as raised:
        trainer_factory.build_model(Fails(line_experiment().task))
    assert raised.value.__context__ is None
