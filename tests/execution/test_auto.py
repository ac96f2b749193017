import contextlib
import dataclasses
import json
import logging
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import orbit
from official_lite.common import errors, terminal
from official_lite.core import base_trainer, train_lib, trainer_factory
from official_lite.execution import auto, execution_record, executors
from tests.line_experiment import LineTask

LONG = 10**9


class EndlessTask(LineTask):
    def build_inputs(self, params, input_context=None) -> tf.data.Dataset:
        dataset = super().build_inputs(params, input_context)
        if not params.is_training:
            return dataset
        examples = dataset.unbatch().repeat().shuffle(16, seed=3)
        return examples.batch(params.global_batch_size, drop_remainder=True)


class NumberedTask(LineTask):
    """A task whose loss in batch n of the data is n * n, as long as the weights are zero."""

    def build_inputs(self, params, input_context=None) -> tf.data.Dataset:
        numbers = tf.data.Dataset.range(10**9)
        return numbers.map(lambda n: (tf.zeros([8, 2]), tf.fill([8, 1], float(n) + 1.0)))


WITHOUT_UPDATES = {"learning_rate": {"constant": {"learning_rate": 0.0}}}


class NotForXlaTask(EndlessTask):
    def process_metrics(self, metrics, labels, model_outputs, **kwargs):
        tf.strings.length(tf.strings.as_string(labels))
        tf.print("", end="", output_stream="file:///dev/null")
        super().process_metrics(metrics, labels, model_outputs, **kwargs)


def _state(trainer) -> list[np.ndarray]:
    variables = [*trainer.model.variables, *trainer.optimizer.variables]
    return [variable.numpy() for variable in variables]


@pytest.mark.slow
def test_training_is_bit_identical_with_and_without_a_benchmark_of_execution_modes(
    experiment, make_trainer
) -> None:
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
def test_auto_execution_chooses_xla_loop_if_training_steps_are_very_short(
    experiment, make_trainer, monkeypatch
) -> None:
    # On a busy machine even a tiny step may take longer than the usual limit.
    monkeypatch.setattr(auto, "_SHORT_STEP_SECONDS", float("inf"))

    class OneBatchTask(LineTask):
        def build_inputs(self, params, input_context=None) -> tf.data.Dataset:
            return tf.data.Dataset.from_tensors((tf.ones([8, 2]), tf.ones([8, 1]))).repeat()

    trainer = make_trainer(experiment(trainer={"steps_per_loop": 200}), task_cls=OneBatchTask)
    record = auto.choose_execution(trainer, LONG)
    assert record.execution == "xla_loop"
    assert record.seconds_per_step["xla_loop"] < record.seconds_per_step["graph"]


def test_auto_execution_skips_xla_modes_that_cannot_compile_and_logs_a_warning(
    experiment, make_trainer, caplog
) -> None:
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
    """Replace the measured seconds per step of each mode with the given ones."""
    monkeypatch.setattr(
        auto, "_seconds_of", lambda loop, num_steps: num_steps * seconds[trainer.execution]
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize(("gain", "chosen"), [(0.96, "graph"), (0.94, "xla_loop")])
def test_auto_execution_chooses_graph_unless_another_mode_saves_over_5_percent_of_time(
    experiment, make_trainer, monkeypatch, gain, chosen
) -> None:
    trainer = make_trainer(experiment(), task_cls=EndlessTask)
    _pretend(monkeypatch, trainer, graph=1e-3, xla_loop=gain * 1e-3, xla=1e-3)
    assert auto.choose_execution(trainer, LONG).execution == chosen


@pytest.mark.sample(1)
@pytest.mark.parametrize(("num_eval_steps", "mode"), [(1, "graph"), (LONG, "xla_loop")])
def test_auto_execution_compiles_evaluation_only_if_it_has_enough_steps(
    experiment, make_trainer, monkeypatch, num_eval_steps, mode
) -> None:
    trainer = make_trainer(experiment(), task_cls=EndlessTask)
    _pretend(monkeypatch, trainer, graph=1e-3, xla_loop=1e-4)
    record = auto.choose_execution(trainer, LONG, num_eval_steps)
    assert (record.execution, record.eval_execution) == ("xla_loop", mode)


def test_benchmark_of_execution_modes_does_not_consume_training_batches(
    experiment, make_trainer, monkeypatch
) -> None:
    params = experiment(trainer={"optimizer_config": WITHOUT_UPDATES})
    trainer = make_trainer(params, task_cls=NumberedTask, evaluate=False)
    _pretend(monkeypatch, trainer, graph=1e-3, xla_loop=1e-4)
    assert auto.choose_execution(trainer, LONG).execution == "xla_loop"
    losses = [float(trainer.train(tf.constant(1))["training_loss"]) for _ in range(6)]
    assert losses == [1.0, 4.0, 9.0, 16.0, 25.0, 36.0]


@pytest.mark.parametrize(("steps", "measured"), [(20, []), (500, ["graph"])])
def test_auto_execution_benchmarks_no_mode_other_than_graph_for_a_short_run(
    experiment, make_trainer, steps, measured
) -> None:
    trainer = make_trainer(experiment(), task_cls=EndlessTask)
    record = auto.choose_execution(trainer, steps)
    assert record.execution == "graph"
    assert list(record.seconds_per_step) == measured


def test_auto_execution_chooses_graph_for_two_replicas_without_a_benchmark(
    experiment, make_trainer, two_replicas
) -> None:
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
def test_auto_execution_chooses_graph_if_embedding_tables_are_updated_row_by_row(
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


def test_auto_execution_does_not_consume_batches_of_short_training_data(
    experiment, make_trainer
) -> None:
    dataset = EndlessTask(experiment().task).build_inputs(experiment().task.train_data).take(2)
    trainer = make_trainer(experiment(), task_cls=EndlessTask, train_dataset=dataset)
    record = auto.choose_execution(trainer, LONG)
    assert record.execution == "graph"
    trainer.train(tf.constant(2))
    assert trainer.global_step.numpy() == 2


def test_auto_execution_does_not_benchmark_steps_that_change_a_lookup_table(
    experiment, make_trainer
) -> None:
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


class PlainTrainer(base_trainer.Trainer):
    """A trainer whose loop is a plain Python function, which can't be traced."""

    def create_train_loop_fn(self):
        loop_fn = super().create_train_loop_fn()
        return lambda iterator, num_steps: loop_fn(iterator, num_steps)


def test_auto_execution_runs_no_step_of_a_loop_that_cannot_be_traced(
    experiment, make_trainer
) -> None:
    trainer = make_trainer(experiment(), cls=PlainTrainer, task_cls=EndlessTask)
    before = _state(trainer)
    record = auto.choose_execution(trainer, LONG)
    assert (record.execution, record.seconds_per_step) == ("graph", {})
    assert "can't be traced" in record.reason
    assert trainer.global_step.numpy() == 0
    for one, other in zip(before, _state(trainer), strict=True):
        np.testing.assert_array_equal(one, other)


def test_auto_execution_benchmarks_modes_even_if_allow_tpu_summary_is_set(
    experiment, make_trainer, monkeypatch
) -> None:
    params = experiment(trainer={"allow_tpu_summary": True})
    trainer = make_trainer(params, task_cls=EndlessTask)
    _pretend(monkeypatch, trainer, graph=1e-3, xla_loop=1e-4)
    assert auto.choose_execution(trainer, LONG).execution == "xla_loop"


def _run(params, task, model_dir, mode="train") -> train_lib.OrbitExperimentRunner:
    runner = train_lib.OrbitExperimentRunner(
        tf.distribute.get_strategy(), task, mode, params, str(model_dir)
    )
    runner.run()
    return runner


def test_resumed_run_uses_the_recorded_execution_mode(experiment, make_task, tmp_path) -> None:
    params = experiment(trainer={"train_steps": 4})
    record = {
        "execution": "xla",
        "reason": "the fastest of those tried",
        "train_steps": 4,
        "seconds_per_step": {"graph": 2e-3, "xla": 1e-3},
    }
    (tmp_path / "execution.json").write_text(json.dumps(record))
    runner = _run(params, make_task(params, EndlessTask), tmp_path)
    assert runner.trainer.execution == "xla"
    # The mode is written to `params.yaml`, so that this file reproduces the run.
    assert runner.params.runtime.execution == "xla"
    assert params.runtime.execution == "auto"


def test_execution_mode_in_the_config_takes_precedence_over_the_recorded_mode(
    experiment, make_task, tmp_path
) -> None:
    (tmp_path / "execution.json").write_text("damaged")
    params = experiment(runtime={"execution": "xla"})
    runner = _run(params, make_task(params, EndlessTask), tmp_path)
    assert runner.trainer.execution == "xla"
    assert runner.execution_record is None


def test_chosen_execution_mode_is_written_to_the_model_directory(
    experiment, make_task, tmp_path
) -> None:
    params = experiment(trainer={"train_steps": 200, "steps_per_loop": 100})
    runner = _run(params, make_task(params, EndlessTask), tmp_path)
    record = json.loads((tmp_path / "execution.json").read_text())
    assert record["execution"] == runner.trainer.execution == "graph"
    assert record["train_steps"] == 200
    assert runner.trainer.global_step.numpy() == 200


def test_short_training_run_writes_no_execution_record(experiment, make_task, tmp_path) -> None:
    params = experiment()
    _run(params, make_task(params, EndlessTask), tmp_path)
    assert not (tmp_path / "execution.json").exists()


def test_several_train_calls_in_a_recorded_execution_mode_read_each_batch_once(
    experiment, make_task, tmp_path
) -> None:
    record = {"execution": "graph", "reason": "XLA failed", "train_steps": 8}
    (tmp_path / "execution.json").write_text(json.dumps(record))
    params = experiment(trainer={"optimizer_config": WITHOUT_UPDATES})
    runner = train_lib.OrbitExperimentRunner(
        None, make_task(params, NumberedTask), "train", params, str(tmp_path)
    )
    losses = []
    with contextlib.closing(runner):
        for last_step in (1, 2, 3):
            runner.controller.train(last_step)
            losses.append(float(runner.controller.train_logs["training_loss"]))
    assert losses == [1.0, 4.0, 9.0]


def test_recorded_execution_mode_that_two_replicas_do_not_support_is_replaced_by_graph(
    experiment, make_trainer, two_replicas, tmp_path
) -> None:
    record = execution_record.ExecutionRecord(
        execution="xla_loop",
        reason="the fastest of those tried",
        train_steps=4,
        seconds_per_step={"graph": 2e-3, "xla_loop": 1e-3},
    )
    execution_record.save(record, str(tmp_path))
    with two_replicas.scope():
        trainer = make_trainer(experiment(), task_cls=EndlessTask)
    found = auto.choose(trainer, 4, str(tmp_path), evaluates=True)
    assert found.execution == trainer.execution == "graph"


@pytest.mark.parametrize(
    "trainer_config",
    [
        {"virtual_replicas": 2},
        {"optimizer_config": {"optimizer": {"type": "adam", "adam": {"lazy_rows": True}}}},
    ],
)
def test_recorded_execution_mode_that_the_changed_config_excludes_is_replaced_by_graph(
    experiment, make_trainer, tmp_path, trainer_config
) -> None:
    execution_record.save(dataclasses.replace(MEASURED, train_steps=4), str(tmp_path))
    trainer = make_trainer(experiment(trainer=trainer_config), task_cls=EndlessTask)
    found = auto.choose(trainer, 4, str(tmp_path), evaluates=True)
    assert found.execution == trainer.execution == "graph"


def test_longer_run_ignores_an_execution_mode_that_a_short_run_recorded_without_a_benchmark(
    experiment, make_trainer, tmp_path
) -> None:
    record = execution_record.ExecutionRecord(
        execution="xla", reason="told so", train_steps=4, seconds_per_step={"graph": 1e-3}
    )
    execution_record.save(record, str(tmp_path))
    trainer = make_trainer(experiment(), task_cls=EndlessTask)
    assert auto.choose(trainer, 4, str(tmp_path), evaluates=True).execution == "xla"
    assert auto.choose(trainer, 5, str(tmp_path), evaluates=True).execution == "graph"


@pytest.mark.sample(1)
@pytest.mark.parametrize(("evaluates", "mode"), [(True, "xla_loop"), (False, "graph")])
def test_auto_execution_compiles_evaluations_over_all_data_only_if_the_run_evaluates(
    experiment, make_trainer, tmp_path, monkeypatch, evaluates, mode
) -> None:
    params = experiment(trainer={"validation_steps": -1, "validation_interval": 1})
    trainer = make_trainer(params, task_cls=EndlessTask)
    seconds = {"graph": 1e-3, "xla_loop": 1e-4}
    monkeypatch.setattr(auto, "_seconds_of", lambda loop, n: n * seconds[trainer.execution])
    record = auto.choose(trainer, 10**9, str(tmp_path), evaluates=evaluates)
    assert (record.execution, record.eval_execution) == ("xla_loop", mode)


def test_only_the_chief_writes_the_execution_record(
    experiment, make_trainer, tmp_path, monkeypatch
) -> None:
    trainer = make_trainer(experiment(), task_cls=EndlessTask)
    extended = type(trainer.strategy.extended)
    monkeypatch.setattr(extended, "should_checkpoint", property(lambda self: False))
    record = auto.choose(trainer, 500, str(tmp_path), evaluates=False)
    assert record.seconds_per_step
    assert not (tmp_path / "execution.json").exists()


class Buffered(base_trainer.Trainer):
    """A trainer that fills a buffer when an interval begins; its step fails on an empty buffer."""

    def __init__(self, *args, **kwargs) -> None:
        self.buffer = tf.Variable(0.0, trainable=False)
        super().__init__(*args, **kwargs)

    def train_loop_begin(self) -> None:
        super().train_loop_begin()
        self.buffer.assign_add(1.0)

    def replica_train_step(self, inputs) -> None:
        with tf.control_dependencies([tf.debugging.assert_positive(self.buffer)]):
            super().replica_train_step(inputs)


def test_benchmark_of_execution_modes_keeps_changes_made_by_before_train_hooks(
    experiment, tmp_path
) -> None:
    seen = []
    params = experiment(trainer={"train_steps": 200, "steps_per_loop": 100})
    hook = orbit.hooks.LambdaHook(
        before_train=lambda hook: hook.controller.trainer.buffer.assign_sub(0.5),
        after_step=lambda hook: seen.append(float(hook.controller.trainer.buffer)),
        every_n_steps=100,
    )
    task = EndlessTask(params.task)
    optimizer = task.create_optimizer(params.trainer.optimizer_config)
    trainer = Buffered(params, task, task.build_model(), optimizer)
    runner = train_lib.OrbitExperimentRunner(
        tf.distribute.get_strategy(),
        task,
        "train",
        params,
        str(tmp_path),
        trainer=trainer,
        hooks=[hook],
    )
    runner.run()
    assert "graph" in runner.execution_record.seconds_per_step
    # As without a benchmark, the value is 1 per interval of 4 steps, minus the 0.5 of the hook.
    assert seen == [25 - 0.5, 50 - 0.5]


class RandomTask(EndlessTask):
    """A task with random numbers that XLA draws differently."""

    def build_losses(self, labels, model_outputs, aux_losses=None):
        noise = tf.random.stateless_truncated_normal(tf.shape(labels), (1, 2))
        return super().build_losses(labels + noise, model_outputs, aux_losses)


def test_auto_execution_skips_modes_whose_random_numbers_differ_from_graph_mode(
    experiment, make_trainer
) -> None:
    record = auto.choose_execution(make_trainer(experiment(), task_cls=RandomTask), 10**9)
    assert record.execution == "graph"
    assert "different random numbers" in record.reason


class UnevenTask(LineTask):
    """A task with training batches of many sizes."""

    def build_inputs(self, params, input_context=None):
        data = super().build_inputs(params, input_context).unbatch().repeat()
        if not params.is_training:
            return data.take(8).batch(8)
        sizes = tf.data.Dataset.range(1, 128).repeat()
        return tf.data.Dataset.zip((sizes, data.batch(128))).map(
            lambda size, batch: (batch[0][:size], batch[1][:size])
        )


def test_data_with_many_batch_sizes_run_in_graph_mode_under_auto_and_log_one_warning_under_xla(
    experiment, make_trainer, monkeypatch, caplog
) -> None:
    # A benchmark on a busy machine reaches only a few sizes.
    monkeypatch.setattr(executors, "_MANY_SIZES", 3)
    terminal._warn.cache_clear()
    trainer = make_trainer(experiment(), task_cls=UnevenTask)
    record = auto.choose_execution(trainer, 10**9)
    assert (record.execution, set(record.seconds_per_step)) == ("graph", {"graph"})
    assert "different sizes" not in caplog.text
    trainer.execution = "xla"
    for num_steps in (3, 2):
        trainer.train(tf.constant(num_steps))
    told = [r.message for r in caplog.records if "different sizes" in r.message]
    assert len(told) == 1
    assert "3 different sizes" in told[0]


class AlmostEvenTask(LineTask):
    """A task whose batches have 8 examples, except for the last one of an epoch."""

    def build_inputs(self, params, input_context=None):
        examples = super().build_inputs(params, input_context).unbatch().take(30)
        return examples.batch(8).repeat()


def test_auto_execution_measures_xla_if_almost_all_batches_have_one_size(
    experiment, make_trainer, monkeypatch
) -> None:
    trainer = make_trainer(experiment(), task_cls=AlmostEvenTask, evaluate=False)
    _pretend(monkeypatch, trainer, graph=1e-2, xla=5e-3)
    assert auto.choose_execution(trainer, LONG).execution == "xla"


def test_variable_snapshot_restores_only_the_variables_that_the_given_functions_change(
    two_replicas,
) -> None:
    with two_replicas.scope():
        dense, table = tf.Variable(tf.zeros([3])), tf.Variable(tf.ones([10, 2]))
    fused, unused = tf.Variable(0.0), tf.Variable(5.0)
    iterator = iter(tf.data.Dataset.range(9))

    @tf.function(jit_compile=True)
    def inner():
        fused.assign_add(1.0)

    @tf.function
    def change():
        inner()
        next(iterator)
        dense.assign_add([1.0, 2.0, 3.0])
        table.scatter_sub(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([4])))

    concrete = change.get_concrete_function()
    snapshot = auto.VariableSnapshot([concrete])
    for _ in range(2):
        concrete()
        assert (dense.numpy()[0], table.numpy()[4, 0], fused.numpy()) == (1.0, 0.0, 1.0)
        unused.assign_add(1.0)
        snapshot.restore()
        assert (dense.numpy()[0], table.numpy()[4, 0], fused.numpy()) == (0.0, 1.0, 0.0)
    assert unused.numpy() == 7.0


MEASURED = execution_record.ExecutionRecord(
    execution="xla",
    reason="the fastest",
    train_steps=500,
    seconds_per_step={"graph": 4e-3, "xla": 2e-3},
)
SHORT = execution_record.ExecutionRecord(
    execution="graph", reason="would not pay", train_steps=500, seconds_per_step={"graph": 4e-3}
)


def test_saved_execution_record_is_loaded_unchanged(tmp_path) -> None:
    assert execution_record.load(str(tmp_path)) is None
    execution_record.save(MEASURED, str(tmp_path))
    assert execution_record.load(str(tmp_path)) == MEASURED


def test_recorded_execution_mode_is_valid_for_longer_runs_only_if_modes_were_compared() -> None:
    assert MEASURED.holds_for(10**9)
    assert SHORT.holds_for(500)
    assert not SHORT.holds_for(501)


@pytest.mark.parametrize("text", ["{", '{"execution": "xla"}'])
def test_error_for_a_damaged_execution_record_names_its_file(tmp_path, text) -> None:
    (tmp_path / "execution.json").write_text(text)
    with pytest.raises(errors.ConfigValueError, match=r"execution\.json"):
        execution_record.load(str(tmp_path))


def test_description_of_an_execution_record_explains_the_chosen_mode(tmp_path) -> None:
    assert execution_record.describe_execution(str(tmp_path)) == ""
    execution_record.save(MEASURED, str(tmp_path))
    line = execution_record.describe_execution(str(tmp_path))
    figures = "xla: the fastest (graph 4,000, xla 2,000 µs per step)"
    assert line == f"# runtime.execution of {tmp_path}: {figures}\n"


class OwnPartsTrainer(base_trainer.Trainer):
    """A trainer that overrides the methods Orbit calls around a loop and for each batch."""

    begun = 0

    def train_loop_begin(self) -> None:
        super().train_loop_begin()
        self.begun += 1

    def next_train_inputs(self, iterator):
        x, y = super().next_train_inputs(iterator)
        return 0.5 * x, y

    def train_loop_end(self) -> dict[str, Any]:
        return {"begun": self.begun, **super().train_loop_end()}


def _what_xla_compiles(trainer) -> str:
    """Return `loop`, `step` or `nothing`, according to the functions that run the steps."""
    graphs = [function.graph.as_graph_def() for function in trainer.train_loop.trace()]
    if not any(f.attr["_XlaMustCompile"].b for graph in graphs for f in graph.library.function):
        return "nothing"
    return "loop" if isinstance(trainer.train_loop, orbit.StackedLoop) else "step"


@pytest.mark.parametrize(
    ("given", "mode", "compiled"),
    [
        ("graph", "graph", "nothing"),
        ("xla", "xla", "step"),
        ("xla_loop", "xla_loop", "loop"),
        ("auto", "xla_loop", "loop"),
    ],
)
def test_trainer_used_without_a_runner_trains_the_same_weights_as_a_run_in_the_same_mode(
    experiment, tmp_path, monkeypatch, given, mode, compiled
) -> None:
    overrides = {"task": {"dropout_rate": 0.5}, "trainer": {"train_steps": 12}}
    outcomes = []
    for execution in (given, mode):
        params = experiment(**overrides, runtime={"execution": execution})
        task = EndlessTask(params.task)
        trainer = trainer_factory.create_trainer(
            params, task, train=True, evaluate=False, trainer_cls=OwnPartsTrainer
        )
        if not outcomes:
            assert trainer.execution == ("graph" if given == "auto" else given)
            _pretend(monkeypatch, trainer, graph=1e-3, xla_loop=1e-4)
            assert trainer.choose_execution(LONG) == mode
            logs = [trainer.train(tf.constant(4)) for _ in range(3)]
            assert [one["begun"] for one in logs] == [1, 2, 3]
            assert _what_xla_compiles(trainer) == compiled
        else:
            strategy = tf.distribute.get_strategy()
            train_lib.run_experiment(
                strategy, task, "train", params, str(tmp_path), trainer=trainer
            )
        assert trainer.global_step.numpy() == 12
        outcomes.append((trainer.begun, _state(trainer)))
    (begun, direct), (begun_in_run, in_run) = outcomes
    assert begun == begun_in_run == 3
    for one, other in zip(direct, in_run, strict=True):
        np.testing.assert_array_equal(one, other)


def test_choosing_an_execution_mode_after_training_or_without_training_raises(
    experiment, make_trainer
) -> None:
    trainer = make_trainer(experiment(), task_cls=EndlessTask)
    trainer.train(tf.constant(2))
    with pytest.raises(errors.ConfigValueError, match="before training"):
        trainer.choose_execution(LONG)
    evaluator = make_trainer(experiment(), task_cls=EndlessTask, train=False)
    with pytest.raises(errors.ConfigValueError, match="train=False"):
        evaluator.choose_execution(LONG)
