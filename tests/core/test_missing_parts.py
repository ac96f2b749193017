"""Tests that a part of a batch may be None, as tf.data allows, wherever a batch is used."""

import contextlib
import json
import math
import pathlib

import pytest
import tensorflow as tf

from official_lite import orbit
from official_lite.core import train_lib
from official_lite.data import arrays
from tests import rounding
from tests.line_experiment import LineTask, line_experiment

# Two training batches, and validation data whose last batch leaves one replica without examples.
NUM_TRAINED, NUM_VALIDATED = 16, 9


class Complete(LineTask):
    """A task that uses only the feature `x`, with zeros as the feature `w` and as labels."""

    missing = 0.0

    def build_inputs(self, params, input_context=None):
        count = NUM_TRAINED if params.is_training else NUM_VALIDATED
        batch_size = params.global_batch_size
        if input_context:
            batch_size = input_context.get_per_replica_batch_size(batch_size)
        x = tf.random.stateless_normal((count, 2), (1, 2))
        if input_context:
            x = x[input_context.input_pipeline_id :: input_context.num_input_pipelines]
        data = tf.data.Dataset.from_tensor_slices(x).batch(
            batch_size, drop_remainder=params.is_training
        )
        data = data.map(lambda x: ({"x": x, "w": self.missing}, self.missing))
        # The filter makes the length of the validation data unknown.
        return data if params.is_training else data.filter(lambda *_: True)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return tf.reduce_mean(tf.square(model_outputs - 1.0))

    def build_metrics(self, training=True):
        return []

    def train_step(self, inputs, model, optimizer, metrics=None):
        return super().train_step((inputs[0]["x"], inputs[1]), model, optimizer, metrics)

    def inference_step(self, inputs, model):
        return super().inference_step(inputs["x"], model)


class Incomplete(Complete):
    missing = None


def run(task_cls, directory, strategy=None, mode="train_and_eval", **overrides):
    params = line_experiment(**overrides)
    with strategy.scope() if strategy else contextlib.nullcontext():
        task = task_cls(params.task)
        hooks = [orbit.hooks.InputWait(every_n_steps=2)] if "train" in mode else []
        _, logs = train_lib.run_experiment(
            strategy, task, mode, params, str(directory), hooks=hooks, run_post_eval=True
        )
    return logs


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> float:
    directory = tmp_path_factory.mktemp("complete")
    loss = run(Complete, directory, runtime={"execution": "graph"})["validation_loss"]
    assert math.isfinite(loss)
    return float(loss)


@pytest.mark.parametrize(
    ("execution", "replicas", "trainer"),
    [
        ("eager", 1, {}),
        ("graph", 1, {"grad_accum_steps": 2}),
        ("xla", 1, {"eval_tf_while_loop": False}),
        ("xla_loop", 1, {"steps_per_loop": 3}),
        ("graph", 2, {}),
        pytest.param("graph", 1, {"virtual_replicas": 2}, marks=pytest.mark.slow),
    ],
)
def test_features_and_labels_that_no_step_uses_may_be_none(
    expected, two_replicas, tmp_path: pathlib.Path, execution, replicas, trainer
) -> None:
    strategy = two_replicas if replicas == 2 else None
    overrides = {"runtime": {"execution": execution}, "trainer": {"writers": ["jsonl"], **trainer}}
    logs = run(Incomplete, tmp_path, strategy, **overrides)
    rounding.assert_close(logs["validation_loss"], expected, roundings=8 * NUM_TRAINED)
    records = map(json.loads, (tmp_path / "metrics.json").read_text().splitlines())
    assert any("input_wait_seconds" in record for record in records)
    logs = run(Incomplete, tmp_path, strategy, mode="predict", **overrides)
    assert logs["rows"] == NUM_VALIDATED


def test_from_arrays_keeps_none_for_missing_features_and_labels() -> None:
    data = arrays.from_arrays(({"x": tf.range(6), "w": None}, None), 2, shuffle=False)
    features, labels = next(iter(data))
    assert (features["x"].shape, features["w"], labels) == ((2,), None, None)
