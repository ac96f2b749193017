"""Tests that training reports its own metrics if both splits share metrics and a hook evaluates."""

import contextlib
import json

import keras
import pytest
import tensorflow as tf

from official_lite import orbit
from official_lite.core import base_task, train_lib
from tests.line_experiment import line_experiment

# The model always outputs 0, so these labels are also the absolute errors on the two splits.
OF_TRAINING, OF_VALIDATION = 1.0, 3.0


class Still(base_task.Task):
    def build_model(self):
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])

    def build_inputs(self, params, input_context=None):
        label = OF_TRAINING if params.is_training else OF_VALIDATION
        data = tf.data.Dataset.from_tensors((tf.zeros([4, 2]), tf.fill([4, 1], label)))
        return data.repeat(2)

    def create_optimizer(self, *args, **kwargs):
        return keras.optimizers.SGD(0.0)


class Compiled(Still):
    def build_model(self):
        model = super().build_model()
        model.compile(loss="mse", metrics=["mae"])
        return model


class SameMetrics(Still):
    """A task that returns the same metric objects for training and evaluation."""

    metrics = None

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return tf.reduce_mean(tf.square(model_outputs - labels))

    def build_metrics(self, training=True):
        if self.metrics is None:
            self.metrics = [keras.metrics.MeanAbsoluteError(name="mae")]
        return list(self.metrics)


@pytest.mark.parametrize(
    ("task_cls", "execution", "replicas"),
    [
        (Compiled, "graph", 1),
        (Compiled, "xla", 2),
        (SameMetrics, "xla_loop", 1),
        (SameMetrics, "graph", 2),
    ],
)
def test_evaluation_by_a_hook_between_two_reports_does_not_change_the_training_metrics(
    tmp_path, two_replicas, task_cls, execution, replicas
) -> None:
    params = line_experiment(
        runtime={"execution": execution}, trainer={"writers": ["jsonl"], "steps_per_loop": 4}
    )
    strategy = two_replicas if replicas == 2 else None
    seen = []
    hook = orbit.hooks.LambdaHook(
        after_step=lambda hook: seen.append(hook.controller.evaluate()["mae"]), every_n_steps=3
    )
    with strategy.scope() if strategy else contextlib.nullcontext():
        task = task_cls(params.task)
        train_lib.run_experiment(
            strategy, task, "train_and_eval", params, str(tmp_path), hooks=[hook]
        )
    assert seen == [OF_VALIDATION] * 2
    records = map(json.loads, (tmp_path / "metrics.json").read_text().splitlines())
    reported = [record["mae"] for record in records if record["split"] == "train"]
    assert reported == [OF_TRAINING] * 2
