import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.execution import auto
from tests.line_experiment import LineTask

LONG = 10**9


class EndlessTask(LineTask):
    def build_inputs(self, params, input_context=None) -> tf.data.Dataset:
        dataset = super().build_inputs(params, input_context)
        if not params.is_training:
            return dataset
        examples = dataset.unbatch().repeat().shuffle(16, seed=3)
        return examples.batch(params.global_batch_size, drop_remainder=True)


class NotForXlaTask(EndlessTask):
    def process_metrics(self, metrics, labels, model_outputs, **kwargs):
        tf.strings.length(tf.strings.as_string(labels))
        tf.print("", end="", output_stream="file:///dev/null")
        super().process_metrics(metrics, labels, model_outputs, **kwargs)


def _state(trainer) -> list[np.ndarray]:
    variables = [*trainer.model.variables, *trainer.optimizer.variables]
    return [variable.numpy() for variable in variables]


@pytest.mark.slow
def test_tuned_training_is_bit_for_bit_that_of_the_mode_chosen(experiment, make_trainer) -> None:
    overrides = {"task": {"dropout_rate": 0.5}}
    tuned = make_trainer(experiment(**overrides), task_cls=EndlessTask)
    before = _state(tuned)
    record = auto.choose_execution(tuned, LONG)
    assert record.execution == tuned.execution
    assert record.was_compared
    for one, other in zip(before, _state(tuned), strict=True):
        np.testing.assert_array_equal(one, other)
    pinned = make_trainer(
        experiment(**overrides, runtime={"execution": record.execution}), task_cls=EndlessTask
    )
    logs = [trainer.train(tf.constant(30)) for trainer in (tuned, pinned)]
    assert {k: float(v) for k, v in logs[0].items()} == {k: float(v) for k, v in logs[1].items()}
    for one, other in zip(_state(tuned), _state(pinned), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.timing
def test_tiny_steps_are_put_into_one_program(experiment, make_trainer, monkeypatch) -> None:
    # On a busy machine even a tiny step may take longer than the usual limit.
    monkeypatch.setattr(auto, "_SHORT_STEP_SECONDS", float("inf"))

    class OneBatchTask(LineTask):
        def build_inputs(self, params, input_context=None) -> tf.data.Dataset:
            return tf.data.Dataset.from_tensors((tf.ones([8, 2]), tf.ones([8, 1]))).repeat()

    trainer = make_trainer(experiment(trainer={"steps_per_loop": 200}), task_cls=OneBatchTask)
    record = auto.choose_execution(trainer, LONG)
    assert record.execution == "xla_loop"
    assert record.seconds_per_step["xla_loop"] < record.seconds_per_step["graph"]


def test_mode_that_cannot_compile_is_left_out_and_said_so(experiment, make_trainer, caplog) -> None:
    trainer = make_trainer(experiment(), task_cls=NotForXlaTask)
    before = _state(trainer)
    with caplog.at_level(logging.WARNING):
        record = auto.choose_execution(trainer, LONG)
    assert record.execution == trainer.execution == "graph"
    assert list(record.seconds_per_step) == ["graph"]
    left_out = [line for line in caplog.messages if "Skipping the execution mode" in line]
    assert ["xla_loop" in left_out[0], "xla" in left_out[1]] == [True, True]
    for one, other in zip(before, _state(trainer), strict=True):
        np.testing.assert_array_equal(one, other)
    trainer.train(tf.constant(2))
    assert trainer.global_step.numpy() == 2


def _pretend(monkeypatch, trainer, **seconds) -> None:
    """Make steps take this long, by mode."""
    monkeypatch.setattr(
        auto, "_seconds_of", lambda loop, num_steps: num_steps * seconds[trainer.execution]
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize(("gain", "chosen"), [(0.96, "graph"), (0.94, "xla_loop")])
def test_other_mode_has_to_be_clearly_faster(
    experiment, make_trainer, monkeypatch, gain, chosen
) -> None:
    trainer = make_trainer(experiment(), task_cls=EndlessTask)
    _pretend(monkeypatch, trainer, graph=1e-3, xla_loop=gain * 1e-3, xla=1e-3)
    assert auto.choose_execution(trainer, LONG).execution == chosen


@pytest.mark.sample(1)
@pytest.mark.parametrize(("num_eval_steps", "mode"), [(1, "graph"), (LONG, "xla_loop")])
def test_evaluation_is_compiled_only_if_that_pays(
    experiment, make_trainer, monkeypatch, num_eval_steps, mode
) -> None:
    trainer = make_trainer(experiment(), task_cls=EndlessTask)
    _pretend(monkeypatch, trainer, graph=1e-3, xla_loop=1e-4)
    record = auto.choose_execution(trainer, LONG, num_eval_steps)
    assert (record.execution, record.eval_execution) == ("xla_loop", mode)


def test_training_reads_every_batch_whatever_was_tried(
    experiment, make_trainer, monkeypatch
) -> None:
    class Counting(LineTask):
        def build_inputs(self, params, input_context=None) -> tf.data.Dataset:
            numbers = tf.data.Dataset.range(10**9)
            return numbers.map(lambda n: (tf.zeros([8, 2]), tf.fill([8, 1], float(n) + 1.0)))

    constant = {"learning_rate": {"constant": {"learning_rate": 0.0}}}
    params = experiment(trainer={"optimizer_config": constant})
    trainer = make_trainer(params, task_cls=Counting, evaluate=False)
    _pretend(monkeypatch, trainer, graph=1e-3, xla_loop=1e-4)
    assert auto.choose_execution(trainer, LONG).execution == "xla_loop"
    losses = [float(trainer.train(tf.constant(1))["training_loss"]) for _ in range(6)]
    assert losses == [1.0, 4.0, 9.0, 16.0, 25.0, 36.0]


@pytest.mark.parametrize(("steps", "measured"), [(20, []), (500, ["graph"])])
def test_short_training_is_not_held_up(experiment, make_trainer, steps, measured) -> None:
    trainer = make_trainer(experiment(), task_cls=EndlessTask)
    record = auto.choose_execution(trainer, steps)
    assert record.execution == "graph"
    assert list(record.seconds_per_step) == measured


def test_two_replicas_train_in_a_graph(experiment, make_trainer, two_replicas) -> None:
    with two_replicas.scope():
        trainer = make_trainer(experiment(), task_cls=EndlessTask)
    record = auto.choose_execution(trainer, LONG)
    assert (record.execution, record.seconds_per_step) == ("graph", {})
    assert "distributed" in record.reason


@pytest.mark.parametrize(
    ("rows", "optimizer", "reason"),
    [
        (2**18, {"type": "adagrad"}, "XLA would update all rows of"),
        (8, {"type": "adam", "adam": {"lazy_rows": True}}, "optimizer's `lazy_rows`"),
    ],
)
def test_tables_that_are_updated_by_rows_are_trained_in_a_graph(
    experiment, make_trainer, rows, optimizer, reason
) -> None:
    class TableTask(EndlessTask):
        def build_model(self) -> keras.Model:
            table = keras.layers.Embedding(rows, 16, name="embedding")
            layers = [keras.Input((2,)), table, keras.layers.Flatten(), keras.layers.Dense(1)]
            return keras.Sequential(layers)

    params = experiment(trainer={"optimizer_config": {"optimizer": optimizer}})
    record = auto.choose_execution(make_trainer(params, task_cls=TableTask), LONG)
    assert (record.execution, record.seconds_per_step) == ("graph", {})
    assert reason in record.reason


def test_training_data_that_end_early_still_raise_where_they_end(experiment, make_trainer) -> None:
    dataset = EndlessTask(experiment().task).build_inputs(experiment().task.train_data).take(2)
    trainer = make_trainer(experiment(), task_cls=EndlessTask, train_dataset=dataset)
    record = auto.choose_execution(trainer, LONG)
    assert record.execution == "graph"
    trainer.train(tf.constant(2))
    assert trainer.global_step.numpy() == 2


def test_steps_that_change_a_lookup_table_are_not_tried(experiment, make_trainer) -> None:
    class CountingTask(EndlessTask):
        def build_model(self):
            self.counts = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)
            return super().build_model()

        def train_step(self, inputs, model, optimizer, metrics=None):
            key = tf.constant([1], tf.int64)
            self.counts.insert(key, self.counts.lookup(key) + 1)
            return super().train_step(inputs, model, optimizer, metrics)

    trainer = make_trainer(experiment(), task_cls=CountingTask)
    record = auto.choose_execution(trainer, LONG)
    assert record.execution == "graph"
    assert "LookupTableInsert" in record.reason
    assert int(trainer.task.counts.size()) == 0
