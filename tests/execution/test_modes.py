import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import orbit, telemetry
from official_lite.common import errors
from official_lite.core import base_trainer
from official_lite.core import config_definitions as cfg
from official_lite.execution import modes
from tests import rounding
from tests.line_experiment import BATCH_SIZE, LineTask

# The roundings in the twelve steps of `_train`.
ROUNDINGS = 12 * BATCH_SIZE

ADAMW = {
    "optimizer": {"type": "adamw", "adamw": {"weight_decay_rate": 0.01}},
    "learning_rate": {
        "type": "cosine",
        "cosine": {"initial_learning_rate": 0.1, "decay_steps": 20},
    },
    "warmup": {"type": "linear", "linear": {"warmup_steps": 3}},
    "ema": {"average_decay": 0.9},
}


class BusyModel(keras.Model):
    """A model with normalization, dropout, and a scalar that its `call` reports."""

    def __init__(self, dropout_rate: float) -> None:
        super().__init__()
        self.norm = keras.layers.BatchNormalization(momentum=0.5)
        self.dropout = keras.layers.Dropout(dropout_rate, seed=7)
        self.dense = keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, x, training=False):
        x = self.norm(x, training=training)
        if training:
            telemetry.put_scalar("norm", tf.norm(x))
        return self.dense(self.dropout(x, training=training))


class BusyTask(LineTask):
    def build_model(self) -> keras.Model:
        model = BusyModel(self.task_config.dropout_rate)
        model(keras.Input((2,)))
        return model

    def build_inputs(self, params, input_context=None) -> tf.data.Dataset:
        dataset = super().build_inputs(params, input_context)
        if not params.is_training:
            return dataset
        return dataset.unbatch().repeat().batch(params.global_batch_size, drop_remainder=True)


def _params(experiment, mode: str, **overrides) -> cfg.ExperimentConfig:
    params = experiment(trainer={"optimizer_config": ADAMW}, runtime={"execution": mode})
    params.override(overrides)
    return params


def _train(trainer: base_trainer.Trainer, lengths=(2, 3, 1, 6)):
    """Train and evaluate; return the reports, the final variables and the evaluation metrics."""
    controller = orbit.Controller(
        trainer=trainer, evaluator=trainer, global_step=trainer.global_step, steps_per_loop=5
    )
    reports, step = [], 0
    for length in lengths:
        step += length
        controller.train(step)
        reports.append({k: float(v) for k, v in controller.train_logs.items()})
    for report in reports:
        report.pop("steps_per_second")
    variables = [*trainer.model.variables, *trainer.optimizer.variables]
    logs = controller.evaluate()
    return reports, [variable.numpy() for variable in variables], logs


@pytest.mark.parametrize(
    ("mode", "accumulation"),
    [pytest.param("eager", 1, marks=pytest.mark.slow), ("xla", 2), ("xla_loop", 1)],
)
def test_every_execution_mode_trains_the_same_weights_and_metrics_as_graph_mode(
    experiment, make_trainer, mode, accumulation
) -> None:
    outcomes = []
    for one in ("graph", mode):
        params = _params(experiment, one, trainer={"grad_accum_steps": accumulation})
        outcomes.append(_train(make_trainer(params, task_cls=BusyTask)))
    (graph_reports, graph_state, graph_logs), (reports, state, logs) = outcomes
    for expected, found in zip(graph_reports, reports, strict=True):
        assert set(found) == {"training_loss", "mae", "learning_rate", "norm"}
        assert found == pytest.approx(expected, rel=rounding.tolerance(roundings=ROUNDINGS))
    for expected, found in zip(graph_state, state, strict=True):
        # Moments are sums of gradients of magnitude 1, some of which cancel.
        scale = max(1.0, np.max(np.abs(expected)))
        rounding.assert_close(found, expected, roundings=ROUNDINGS, scale=scale)
    assert logs == pytest.approx(graph_logs, rel=rounding.tolerance(roundings=ROUNDINGS))


@pytest.mark.parametrize("mode", ["xla", "xla_loop"])
@pytest.mark.slow
def test_dropout_in_xla_modes_draws_the_same_numbers_in_every_run(
    experiment, make_trainer, mode
) -> None:
    params = _params(experiment, mode, task={"dropout_rate": 0.5})
    runs = [_train(make_trainer(params, task_cls=BusyTask)) for _ in range(2)]
    assert runs[0][0] == runs[1][0]
    for one, other in zip(runs[0][1], runs[1][1], strict=True):
        np.testing.assert_array_equal(one, other)
    without = _train(make_trainer(_params(experiment, mode), task_cls=BusyTask))
    assert without[0] != runs[0][0]


@pytest.mark.slow
def test_xla_loop_length_does_not_change_the_trained_weights(experiment, make_trainer) -> None:
    params = _params(experiment, "xla_loop", task={"dropout_rate": 0.5})
    states = [
        _train(make_trainer(params, task_cls=BusyTask), lengths)[1]
        for lengths in ((12,), (1,) * 12, (5, 7))
    ]
    for state in states[1:]:
        for one, other in zip(states[0], state, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("mode", ["eager", "xla_loop"])
def test_overridden_train_step_of_a_trainer_runs_in_eager_and_xla_loop_mode(
    experiment, make_trainer, mode
) -> None:
    class Own(base_trainer.Trainer):
        def train_step(self, iterator):
            inputs = self.next_train_inputs(iterator)
            self.strategy.run(self._double_step, args=(inputs,))

        def _double_step(self, inputs):
            self.task.train_step(inputs, self.model, self.optimizer, self.train_metrics)
            self.train_loss.update_state(7.0)
            self.global_step.assign_add(1)

    trainer = make_trainer(_params(experiment, mode), cls=Own, task_cls=BusyTask)
    reports, _, _ = _train(trainer)
    assert [report["training_loss"] for report in reports] == [7.0] * 4


def test_graph_hooks_run_at_every_step_of_an_xla_loop(experiment, make_trainer) -> None:
    class Count(orbit.GraphHook):
        def __init__(self):
            self.calls = tf.Variable(0)

        def call(self, logs):
            self.calls.assign_add(1)

    trainer = make_trainer(_params(experiment, "xla_loop"), task_cls=BusyTask)
    hook = Count()
    trainer.set_graph_hooks([hook])
    trainer.train(tf.constant(7))
    assert hook.calls.numpy() == 7


@pytest.mark.parametrize(
    ("runtime", "mode"),
    [
        ({}, "auto"),
        ({"enable_xla": True}, "xla"),
        ({"run_eagerly": True}, "eager"),
        ({"execution": "graph", "enable_xla": True}, "graph"),
        ({"execution": "xla_loop"}, "xla_loop"),
    ],
)
def test_run_eagerly_enable_xla_and_execution_fields_select_the_execution_mode(
    runtime, mode
) -> None:
    assert modes.execution_of(cfg.RuntimeConfig(**runtime)) == mode


@pytest.mark.parametrize(
    ("replicas", "task_cls", "reason"),
    [(2, BusyTask, "between replicas"), (1, LineTask, "drop_remainder")],
)
def test_error_for_an_unsupported_xla_loop_states_the_reason(
    experiment, make_trainer, two_replicas, replicas, task_cls, reason
) -> None:
    scope = two_replicas.scope() if replicas == 2 else contextlib.nullcontext()
    params = _params(experiment, "xla_loop")
    with scope, pytest.raises(errors.ConfigValueError, match=reason):
        make_trainer(params, task_cls=task_cls)


@pytest.mark.parametrize("mode", ["graph", "xla_loop"])
def test_aggregate_logs_receives_batches_in_order_in_graph_and_xla_loop_mode(
    experiment, make_trainer, mode
) -> None:
    class Folding(BusyTask):
        def validation_step(self, inputs, model, metrics=None):
            logs = super().validation_step(inputs, model, metrics)
            return {**logs, "labels": inputs[1]}

        def aggregate_logs(self, state, step_logs):
            return [*(state or []), *np.concatenate(step_logs["labels"])]

        def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
            return {"labels": np.concatenate(aggregated_logs)}

    params = _params(experiment, mode, task={"validation_data": {"global_batch_size": 5}})
    trainer = make_trainer(params, task_cls=Folding)
    x = tf.random.stateless_normal((32, 2), (1, 2))
    logs = trainer.evaluate(tf.constant(-1))
    rounding.assert_close(logs["labels"], 3.0 * x[:, 0] + 1.0)
