"""Tests that an interrupted and resumed run ends with the state of an uninterrupted run."""

import logging
import os
import pathlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import orbit
from official_lite.checkpoint import model_state
from official_lite.common import errors, keras_variables, preemption, terminal
from official_lite.core import base_trainer, input_reader, train_lib, trainer_factory
from official_lite.data import arrays
from official_lite.modeling import hyperparams
from tests import line_experiment, waiting

ROWS = np.random.default_rng(0).normal(size=(50, 2)).astype("float32")
LABELS = (3 * ROWS[:, :1] + 1).astype("float32")


class ArrayTask(line_experiment.LineTask):
    """A task that reads arrays and can therefore resume without rereading earlier batches."""

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        return arrays.from_arrays(
            (ROWS, LABELS),
            params.global_batch_size,
            shuffle=bool(params.is_training),
            repeat=bool(params.is_training),
            input_context=input_context,
        )


class Critics(base_trainer.Trainer):
    """A trainer with two models and two optimizers that draws one batch per model and step."""

    batches_per_step = 2

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.critic = keras.Sequential(
            [keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dense(1)]
        )
        self.critic_optimizer = keras.optimizers.Adam(0.01)
        self.critic_optimizer.build(self.critic.trainable_variables)

    def train_step(self, iterator: Iterator[Any]) -> None:
        self.run_step(self._learn_critic, self.next_train_inputs(iterator))
        self.run_step(self.replica_train_step, self.next_train_inputs(iterator))

    def _learn_critic(self, inputs: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.critic(inputs[0]) - self.model(inputs[0])))
        weights = self.critic.trainable_variables
        gradients = tape.gradient(loss, weights)
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce("sum", gradients)
        self.critic_optimizer.apply(gradients, weights)


class Varying(base_trainer.Trainer):
    """A trainer that draws two batches in every third step and one batch in all other steps."""

    def train_step(self, iterator: Iterator[Any]) -> None:
        if self.global_step % 3 == 0:
            self.run_step(self._look, self.next_train_inputs(iterator))
        super().train_step(iterator)

    def _look(self, inputs: Any) -> None:
        self.model.dense.bias.assign_add(0.1 * tf.reduce_mean(inputs[0], axis=0)[:1])


class Remembering(ArrayTask):
    """A task with every kind of state that TensorFlow tracks."""

    def build_model(self) -> keras.Model:
        self.counts = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)
        self.tables = [
            {"dense": tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, 0, -1, -2)}
        ]
        self.box = tf.train.Checkpoint(total=tf.Variable(0.0))
        self.module = tf.Module()
        self.module.seen = tf.Variable(0.0)
        self.generator = tf.random.Generator.from_seed(1)
        return super().build_model()

    def train_step(self, inputs: Any, model: Any, optimizer: Any, metrics: Any = None) -> Any:
        key = tf.constant([1], tf.int64)
        for table in (self.counts, self.tables[0]["dense"]):
            table.insert(key, table.lookup(key) + 1)
        self.box.total.assign_add(tf.reduce_sum(inputs[0]))
        self.module.seen.assign(self.module.seen + self.generator.normal([]))
        return super().train_step(inputs, model, optimizer, metrics)

    def state(self) -> list[Any]:
        key = tf.constant([1], tf.int64)
        tables = (self.counts, self.tables[0]["dense"])
        return [*(table.lookup(key) for table in tables), self.box.total, self.module.seen]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("records")
    for name, first in (("a", 0), ("b", 1000), ("c", 2000)):
        with tf.io.TFRecordWriter(str(folder / name)) as writer:
            for number in range(first, first + 30):
                writer.write(str(number).encode())
    return folder


def _reading(records: pathlib.Path, **options: Any) -> type[line_experiment.LineTask]:
    """Return a task class that mixes two sources and sets no seed for any data operation."""

    class Reading(line_experiment.LineTask):
        def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
            paths = {name: str(records / name) for name in ("a", "b")}
            data = params.replace(
                input_path=hyperparams.Config(paths), shuffle_buffer_size=7, **options
            )
            mix = input_reader.build_weighted_sampling_combine_fn({"a": 0.7, "b": 0.3})
            reader = input_reader.InputReader(
                data,
                combine_fn=mix,
                sample_fn=lambda dataset: dataset.shuffle(5),
                parser_fn=_parse,
                filter_fn=lambda features, _: features[0] > 0.01,
            )
            return reader.read(input_context)

    return Reading


def _parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    number = tf.strings.to_number(record) / 1000
    return tf.stack([number, 1 - number]), tf.reshape(2 * number, [1])


def _run(
    directory: pathlib.Path,
    steps: int,
    task_cls: type[line_experiment.LineTask] = ArrayTask,
    trainer_cls: type[base_trainer.Trainer] = base_trainer.Trainer,
    strategy: tf.distribute.Strategy | None = None,
    dataset: tf.data.Dataset | None = None,
    **runtime: Any,
) -> list[Any]:
    """Train up to step `steps` and return the final state."""
    keras.utils.set_random_seed(0)
    params = line_experiment.line_experiment(
        trainer={"train_steps": steps, "steps_per_loop": 3},
        runtime={"execution": "graph", **runtime},
    )
    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        task = task_cls(params.task)
        model = task.build_model()
        optimizer = task.create_optimizer(params.trainer.optimizer_config, params.runtime)
        trainer = trainer_cls(params, task, model, optimizer, evaluate=False, train_dataset=dataset)
    train_lib.run_experiment(
        strategy, task, "train", params, str(directory), trainer=trainer, allow_config_change=True
    )
    critic = getattr(trainer, "critic", None)
    more = [*critic.variables, *trainer.critic_optimizer.variables] if critic else []
    own = getattr(task, "state", list)()
    return [np.asarray(value) for value in (*model.variables, *optimizer.variables, *more, *own)]


def _assert_resumes_exactly(tmp_path: pathlib.Path, *args: Any, **kwargs: Any) -> None:
    unbroken = _run(tmp_path / "unbroken", 8, *args, **kwargs)
    _run(tmp_path / "broken", 4, *args, **kwargs)
    resumed = _run(tmp_path / "broken", 8, *args, **kwargs)
    for expected, got in zip(unbroken, resumed, strict=True):
        np.testing.assert_array_equal(got, expected)


class RecurrentTask(ArrayTask):
    """A task whose model carries states from batch to batch."""

    num_shards = 1

    def build_model(self) -> keras.Model:
        num_parts = tf.distribute.get_strategy().num_replicas_in_sync * self.num_shards
        inputs = keras.Input((2,), batch_size=line_experiment.BATCH_SIZE // num_parts)
        steps = keras.layers.Reshape((2, 1))(inputs)
        states = keras.layers.SimpleRNN(3, stateful=True)(steps)
        return keras.Model(inputs, keras.layers.Dense(1)(states))


def test_states_of_stateful_recurrent_layers_resume_exactly(tmp_path) -> None:
    _assert_resumes_exactly(tmp_path, RecurrentTask)


def test_checkpoint_without_recurrent_layer_states_can_be_resumed(tmp_path, monkeypatch) -> None:
    with monkeypatch.context() as older_version:
        older_version.setattr(model_state, "recurrent_items", lambda model: {})
        _run(tmp_path / "run", 4, RecurrentTask)
    assert np.isfinite(_run(tmp_path / "run", 8, RecurrentTask)[0]).all()


class RecurrentNet(keras.Model):
    """A model with a recurrent layer in a list, whose states TensorFlow does not find."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [keras.layers.SimpleRNN(3, stateful=True)]
        self(tf.zeros((line_experiment.BATCH_SIZE, 2)))

    def call(self, x: Any) -> Any:
        return self.blocks[0](keras.ops.expand_dims(x, -1))


class TwoRecurrentModelsTask(RecurrentTask):
    """A task that keeps a second model with states that it carries from batch to batch."""

    def build_model(self) -> keras.Model:
        self.second = RecurrentNet()
        return super().build_model()

    def train_step(self, inputs: Any, model: Any, optimizer: Any, metrics: Any = None) -> Any:
        self.second(inputs[0])
        return super().train_step(inputs, model, optimizer, metrics)

    def state(self) -> list[Any]:
        return keras_variables.recurrent_states(self.second)


def test_states_of_a_stateful_recurrent_layer_of_a_second_model_resume_exactly(
    tmp_path, monkeypatch
) -> None:
    _assert_resumes_exactly(tmp_path, TwoRecurrentModelsTask)
    with monkeypatch.context() as older_version:
        older_version.setattr(model_state, "recurrent_items", lambda *models: {})
        _run(tmp_path / "older", 4, TwoRecurrentModelsTask)
    _run(tmp_path / "older", 8, TwoRecurrentModelsTask)


class ModuleNet(keras.Model):
    """A model with layers in a list, whose state TensorFlow does not find."""

    def __init__(self) -> None:
        super().__init__()
        dense = keras.layers.Dense(1, use_bias=False)
        self.blocks = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5, seed=3), dense]
        self(keras.Input((2,)))

    def call(self, x: Any, training: bool = False) -> Any:
        norm, dropout, dense = self.blocks
        return dense(dropout(norm(x, training=training), training=training))


class NetModule(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = ModuleNet()

    @property
    def trainable_variables(self) -> tuple[Any, ...]:
        return tuple(self.net.trainable_variables)


class ModuleTask(ArrayTask):
    """A task whose model, and one of whose attributes, is a `tf.Module` with a Keras model."""

    module_cls = NetModule

    def build_model(self) -> Any:
        self.other = self.module_cls()
        self.main = self.module_cls()
        return self.main

    def train_step(self, inputs: Any, model: Any, optimizer: Any, metrics: Any = None) -> Any:
        features, labels = inputs
        self.other.net(features, training=True)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model.net(features, training=True) - labels))
        weights = model.net.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)
        return {self.loss: loss}

    def state(self) -> list[Any]:
        return [v.numpy() for one in (self.main, self.other) for v in one.net.variables]


def _run_module(
    directory: pathlib.Path, steps: int, task_cls: type[ModuleTask] = ModuleTask
) -> list[Any]:
    keras.utils.set_random_seed(0)
    params = line_experiment.line_experiment(trainer={"train_steps": steps, "steps_per_loop": 4})
    task = task_cls(params.task)
    train_lib.run_experiment(None, task, "train", params, str(directory), allow_config_change=True)
    return task.state()


def test_layers_in_lists_of_a_keras_model_in_a_module_resume_exactly(tmp_path) -> None:
    unbroken = _run_module(tmp_path / "unbroken", 8)
    _run_module(tmp_path / "broken", 4)
    for expected, got in zip(unbroken, _run_module(tmp_path / "broken", 8), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_checkpoint_of_a_module_without_the_state_of_layers_in_lists_resumes_with_a_warning(
    tmp_path, monkeypatch, caplog
) -> None:
    with monkeypatch.context() as older_version:
        older_version.setattr(model_state, "_parts", lambda module: {})
        _run_module(tmp_path, 4)
    _run_module(tmp_path, 8)
    assert "which older versions did not save. It keeps its present values" in caplog.text
    # These are the random states and weights of both modules, except for the weights that the
    # optimizer holds, too.
    assert "9 values" in caplog.text


class WordsModule(NetModule):
    def __init__(self) -> None:
        super().__init__()
        self.vectorize = keras.layers.TextVectorization()


class WordsTask(ModuleTask):
    module_cls = WordsModule

    def initialize(self, model: Any) -> None:
        model.vectorize.adapt(np.array(["red", "green"]))

    def state(self) -> list[Any]:
        return self.main.vectorize.get_vocabulary()


def test_vocabulary_of_a_layer_that_a_module_holds_is_restored_when_a_run_resumes(tmp_path) -> None:
    vocabulary = _run_module(tmp_path, 4, WordsTask)
    assert {"red", "green"} <= set(vocabulary)
    assert _run_module(tmp_path, 8, WordsTask) == vocabulary


class StateModule(NetModule):
    """A module with a Keras model whose weights TensorFlow finds, but not the rest of its state."""

    def __init__(self) -> None:
        super().__init__()
        layers = keras.layers
        steps = [keras.Input((2,), batch_size=line_experiment.BATCH_SIZE), layers.Reshape((2, 1))]
        recurrent = layers.SimpleRNN(3, stateful=True)
        self.net = keras.Sequential([*steps, recurrent, layers.Dropout(0.5), layers.Dense(1)])


class StateTask(ModuleTask):
    module_cls = StateModule


def test_user_written_training_loop_resumes_from_an_older_checkpoint_without_random_state(
    tmp_path, monkeypatch, caplog
) -> None:
    def train(steps: int) -> tuple[list[Any], list[Any]]:
        """Return the weights at the beginning and at the end."""
        params = line_experiment.line_experiment()
        task = StateTask(params.task)
        trainer = trainer_factory.create_trainer(params, task, train=True, evaluate=False)
        step = trainer.global_step
        manager = tf.train.CheckpointManager(
            trainer.checkpoint, str(tmp_path), 1, step_counter=step, checkpoint_interval=4
        )
        controller = orbit.Controller(
            trainer=trainer, global_step=step, steps_per_loop=4, checkpoint_manager=manager
        )
        assert int(step) == steps - 4
        first = [weight.numpy() for weight in task.main.trainable_variables]
        controller.train(steps)
        return first, [weight.numpy() for weight in task.main.trainable_variables]

    with monkeypatch.context() as older_version:
        older_version.setattr(model_state, "_parts", lambda module: {})
        _, saved = train(4)
    restored, _ = train(8)
    for expected, got in zip(saved, restored, strict=True):
        np.testing.assert_array_equal(got, expected)
    assert "hidden_items/net/random_state/0" in caplog.text


def test_stateful_recurrent_layer_with_virtual_replicas_raises_config_value_error(tmp_path) -> None:
    params = line_experiment.line_experiment(trainer={"train_steps": 1, "virtual_replicas": 2})
    task = RecurrentTask(params.task)
    task.num_shards = 2
    with pytest.raises(errors.ConfigValueError, match=r"rnn_state.*Set `stateful=False`"):
        train_lib.run_experiment(None, task, "train", params, str(tmp_path / "run"))


def test_stateful_recurrent_layer_on_several_replicas_logs_a_warning(
    tmp_path, two_replicas, caplog
) -> None:
    _run(tmp_path / "run", 4, RecurrentTask, strategy=two_replicas)
    assert "In a resumed run, these states start at zero" in caplog.text


class DrawingTask(RecurrentTask):
    """A task that draws random numbers in every step; a signal may stop its first evaluation."""

    is_stopped = False

    def build_model(self) -> keras.Model:
        self.generator = tf.random.Generator.from_seed(1)
        self.second = super().build_model()
        return super().build_model()

    def validation_step(self, inputs: Any, model: Any, metrics: Any = None) -> Any:
        self.generator.normal([])
        self.second(inputs[0])
        return super().validation_step(inputs, model, metrics)

    def aggregate_logs(self, state: Any = None, step_outputs: Any = None) -> Any:
        if self.is_stopped:
            os.kill(os.getpid(), signal.SIGTERM)
            waiting.wait_for(preemption.requested)
        return None


def test_training_stopped_during_an_evaluation_resumes_with_the_state_from_before_the_evaluation(
    tmp_path,
) -> None:
    def train(name: str, *, is_stopped: bool = False) -> list[np.ndarray]:
        keras.utils.set_random_seed(0)
        params = line_experiment.line_experiment(trainer={"validation_steps": 3})
        task = DrawingTask(params.task)
        task.is_stopped = is_stopped
        model, _ = train_lib.run_experiment(
            None, task, "train_and_eval", params, str(tmp_path / name)
        )
        states = [task.generator.state, *keras_variables.recurrent_states(task.second)]
        return [np.asarray(value) for value in (*model.variables, *states)]

    unbroken = train("unbroken")
    with preemption.catch_signals(), pytest.raises(errors.PreemptedError):
        train("broken", is_stopped=True)
    for expected, got in zip(unbroken, train("broken"), strict=True):
        np.testing.assert_array_equal(got, expected)


_SLOW_MODES = [pytest.param(mode, marks=pytest.mark.slow) for mode in ("eager", "xla_loop")]


@pytest.mark.parametrize("execution", ["graph", *_SLOW_MODES])
def test_trainer_that_draws_two_batches_per_step_resumes_exactly(execution, tmp_path) -> None:
    _assert_resumes_exactly(tmp_path, trainer_cls=Critics, execution=execution)


@pytest.mark.slow
def test_trainer_that_draws_two_batches_per_step_resumes_exactly_on_two_replicas(
    tmp_path, two_replicas
) -> None:
    _assert_resumes_exactly(tmp_path, trainer_cls=Critics, strategy=two_replicas)


class Looping(Varying):
    """A trainer that draws one to three batches per step in a `tf.while_loop`."""

    def train_step(self, iterator: Iterator[Any]) -> None:
        count = tf.constant(0, tf.int64)
        for inputs in iterator:
            self.run_step(self._look, inputs)
            count = count + 1
            if count > self.global_step % 3:
                break
        self.run_step(self._count)

    def _count(self) -> None:
        self.global_step.assign_add(1)


@pytest.mark.parametrize("trainer_cls", [Varying, Looping])
def test_trainer_that_draws_a_varying_number_of_batches_per_step_resumes_exactly(
    trainer_cls, tmp_path, caplog
) -> None:
    _assert_resumes_exactly(tmp_path, trainer_cls=trainer_cls)
    assert "can't be counted" not in caplog.text


def test_passing_the_iterator_to_a_tf_function_warns_that_batches_are_not_counted(
    tmp_path, caplog
) -> None:
    class Inner(base_trainer.Trainer):
        def train_step(self, iterator: Iterator[Any]) -> None:
            tf.function(super().train_step)(iterator)

    terminal._warn.cache_clear()
    _run(tmp_path, 2, trainer_cls=Inner)
    assert caplog.text.count("batches can't be counted") == 1


def test_lookup_tables_and_other_tracked_state_of_a_task_resume_exactly(tmp_path) -> None:
    _assert_resumes_exactly(tmp_path, Remembering)


@pytest.mark.parametrize("cache", [False, True])
def test_mixed_filtered_and_cached_data_without_a_seed_resume_exactly(
    cache, tmp_path, records, caplog
) -> None:
    _assert_resumes_exactly(tmp_path, _reading(records, cache=cache))
    assert "from the beginning" not in caplog.text


class _ShuffledBatches(ArrayTask):
    """A task that shuffles a dataset that can resume, and zips it with a second dataset."""

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        batches = super().build_inputs(params, input_context).shuffle(3)
        weights = tf.data.Dataset.range(7).shuffle(7).repeat()
        return tf.data.Dataset.zip(batches, weights).map(
            lambda batch, weight: (batch[0] * tf.cast(weight, tf.float32), batch[1])
        )


def test_shuffled_and_zipped_datasets_resume_exactly(tmp_path) -> None:
    _assert_resumes_exactly(tmp_path, _ShuffledBatches)


def test_data_resume_at_the_global_step_if_the_checkpoint_lacks_batches_read(
    tmp_path,
) -> None:
    class Old(base_trainer.Trainer):
        def _checkpoint_items(self) -> dict[str, Any]:
            items = super()._checkpoint_items()
            del items["batches_read"]
            return items

    unbroken = _run(tmp_path / "unbroken", 12)
    _run(tmp_path / "broken", 4, trainer_cls=Old)
    for steps in (8, 12):
        resumed = _run(tmp_path / "broken", steps)
    for expected, got in zip(unbroken, resumed, strict=True):
        np.testing.assert_array_equal(got, expected)


class _Passes(ArrayTask):
    """A task whose training data end, with a partial batch that is padded."""

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        num_batches = -(-len(ROWS) // params.global_batch_size)
        return super().build_inputs(params, input_context).take(num_batches)


def _first_batches(
    make_trainer: Any, directory: pathlib.Path, task_cls: Any, *configs: Any, skipped: int = 0
) -> tuple[int, Any, Any]:
    """Skip batches and train 6 steps with the first config, and resume with the second.

    Returns:
        The number of batches that count as read, the next batch, and all batches.
    """
    first, second = (make_trainer(c, task_cls=task_cls, evaluate=False) for c in configs)
    all_batches = [y.numpy() for _, y in second.train_dataset.take(30)]
    first.skip_batches(skipped)
    first.train(tf.constant(6))
    second.checkpoint.restore(first.checkpoint.save(str(directory / "ckpt")))
    second.after_restore()
    _, following = next(iter(second.train_dataset))
    return second.num_batches_read, following.numpy(), all_batches


@pytest.mark.parametrize(
    ("size", "skipped", "batch"),
    # In the last case, the batches that were read are less than one of the new size.
    [(16, 0, 3), (4, 0, 12), (10, 0, 5), (50, 19, 4)],
)
def test_run_resumed_with_another_batch_size_reads_the_next_unread_examples(
    experiment, make_trainer, tmp_path, caplog, size, skipped, batch
) -> None:
    resized = experiment(task={"train_data": {"global_batch_size": size}})
    found, following, batches = _first_batches(
        make_trainer, tmp_path, ArrayTask, experiment(), resized, skipped=skipped
    )
    assert found == batch
    np.testing.assert_array_equal(following, batches[batch])
    # Six batches of 8 have as many examples as 4.8 batches of 10.
    assert ("up to batch 4.80 of the current size" in caplog.text) == (size == 10)


def test_resumed_run_with_other_micro_batches_does_not_repeat_completed_passes_over_finite_data(
    experiment, make_trainer, tmp_path
) -> None:
    whole = experiment(task={"train_data": {"global_batch_size": 24}})
    divided = whole.replace(trainer={"grad_accum_steps": 3})
    found, following, batches = _first_batches(make_trainer, tmp_path, _Passes, whole, divided)
    # Six batches are two passes, each of which has seven micro-batches.
    assert found == 2 * 7
    np.testing.assert_array_equal(following, batches[0])


def test_resuming_a_run_in_epochs_with_another_batch_size_warns_that_the_number_of_epochs_changes(
    experiment, make_task, tmp_path, caplog
) -> None:
    for size, count in ((8, 1), (16, 2)):
        params = experiment(
            task={"train_data": {"global_batch_size": size, "num_examples": 32}},
            trainer={"train_epochs": count},
        )
        task = make_task(params)
        train_lib.run_experiment(
            None, task, "train", params, str(tmp_path), allow_config_change=True
        )
    # Two epochs are four steps with batches of 16, but the run has made four steps with batches of
    # 8.
    assert "trains for 1 instead of 2 epochs" in caplog.text
    assert "set `trainer.train_steps` to 6" in caplog.text


@pytest.mark.parametrize("is_given", [True, False])
def test_training_data_without_a_resume_position_log_one_warning_at_the_start_and_one_on_resuming(
    is_given, tmp_path, caplog
) -> None:
    dataset = tf.data.Dataset.from_tensor_slices((ROWS, LABELS)).batch(5).repeat()
    data = {"dataset": dataset if is_given else None}
    caplog.set_level(logging.INFO, logger="absl")
    why = "passed to the trainer" if is_given else "`build_inputs` does not keep"
    _run(tmp_path, 4, line_experiment.LineTask, **data)
    assert caplog.text.count("if this run is interrupted and resumed, because") == 1
    assert why in caplog.text
    caplog.clear()
    _run(tmp_path, 8, line_experiment.LineTask, **data)
    assert caplog.text.count("restart from the beginning at step 4") == 1
    assert "if this run is interrupted" not in caplog.text


class _Counting(orbit.Hook):
    """A hook with a `tf.Variable` that no `state_dict` returns; the hook raises at a given step."""

    every_n_steps = 1

    def __init__(self, fails_at: int) -> None:
        self.calls = tf.Variable(0)
        self._fails_at = fails_at

    def after_step(self) -> None:
        self.calls.assign_add(1)
        if self.controller.step == self._fails_at:
            raise RuntimeError("killed")


def _run_with_callbacks(directory: pathlib.Path, fails_at: int = 0) -> tuple[Any, ...]:
    keras.utils.set_random_seed(0)
    params = line_experiment.line_experiment(
        trainer={
            "train_steps": 9,
            "validation_interval": 1,
            "checkpoint_interval": 2,
            "optimizer_config": {"learning_rate": {"constant": {"learning_rate": 0.9}}},
        },
        runtime={"execution": "graph"},
    )
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", patience=3, min_delta=1e-9, cooldown=1)
    stop = keras.callbacks.EarlyStopping("val_loss", patience=90, restore_best_weights=True)
    hook = _Counting(fails_at)
    model, _ = train_lib.run_experiment(
        None,
        ArrayTask(params.task),
        "train_and_eval",
        params,
        str(directory),
        hooks=[hook, *map(orbit.hooks.KerasCallback, (plateau, stop))],
    )
    rates = [float(plateau.best), plateau.wait, plateau.cooldown_counter, plateau.min_delta]
    best = [stop.best, stop.best_epoch, stop.wait, *stop.best_weights]
    return int(hook.calls), float(model.optimizer.learning_rate), rates, *best


# Keras causes this warning with NumPy 2.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_keras_callbacks_and_hook_variables_resume_exactly(tmp_path) -> None:
    unbroken = _run_with_callbacks(tmp_path / "unbroken")
    for step in (3, 7):
        with pytest.raises(RuntimeError, match="killed"):
            _run_with_callbacks(tmp_path / "broken", step)
    resumed = _run_with_callbacks(tmp_path / "broken")
    assert unbroken[0] == 9
    for expected, got in zip(unbroken, resumed, strict=True):
        np.testing.assert_array_equal(got, expected)


def _train_at_rate(
    directory: pathlib.Path,
    rate: float,
    steps: int,
    wrap: Callable[[Any], Any],
    halves_rate: bool = False,
) -> float:
    """Train up to step `steps` with a constant rate in the config, and return the last rate."""
    rates = []

    class Task(ArrayTask):
        @classmethod
        def create_optimizer(cls, *args: Any, **kwargs: Any) -> Any:
            rates.append(super().create_optimizer(*args, **kwargs))
            return wrap(rates[0])

    def halve(_: orbit.Hook) -> None:
        rates[0].learning_rate = rates[0].learning_rate / 2

    params = line_experiment.line_experiment(
        trainer={
            "train_steps": steps,
            "optimizer_config": {"learning_rate": {"constant": {"learning_rate": rate}}},
        },
        runtime={"execution": "graph"},
    )
    hook = orbit.hooks.LambdaHook(before_train=halve if halves_rate else None)
    train_lib.run_experiment(
        None,
        Task(params.task),
        "train",
        params,
        str(directory),
        hooks=[hook],
        allow_config_change=True,
    )
    return float(rates[0].learning_rate)


@pytest.mark.parametrize("wrap", [lambda one: one, keras.optimizers.LossScaleOptimizer])
def test_resumed_run_uses_a_constant_learning_rate_that_the_config_has_changed(
    wrap, tmp_path
) -> None:
    assert _train_at_rate(tmp_path, 0.5, 4, wrap, halves_rate=True) == 0.25
    assert _train_at_rate(tmp_path, 0.5, 5, wrap) == 0.25, "the config is unchanged"
    assert _train_at_rate(tmp_path, 0.125, 6, wrap) == 0.125
    assert _train_at_rate(tmp_path, 0.125, 7, wrap) == 0.125


@pytest.mark.parametrize(
    "callback",
    [
        {"callback": "ReduceLROnPlateau", "monitor": "val_loss"},
        {"callback": "LearningRateScheduler", "schedule": lambda epoch: 0.1},
    ],
)
def test_callback_that_sets_a_scheduled_learning_rate_raises_before_training(
    callback, tmp_path
) -> None:
    params = line_experiment.line_experiment(
        trainer={"optimizer_config": {"learning_rate": {"type": "cosine"}}}
    )
    params.trainer.optimizer_config.learning_rate.cosine.override(
        {"initial_learning_rate": 0.1, "decay_steps": 8}
    )
    hook = orbit.hooks.KerasCallback(**callback)
    with pytest.raises(errors.ConfigValueError, match="sets the learning rate, but the optimizer"):
        train_lib.run_experiment(
            None, ArrayTask(params.task), "train", params, str(tmp_path), hooks=[hook]
        )
    assert not list(tmp_path.glob("ckpt-*"))


class _Noisy(line_experiment.LineTask):
    """A task whose dataset functions draw random numbers."""

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        dataset = super().build_inputs(params, input_context)
        if not params.is_training:
            return dataset
        dataset = dataset.map(lambda x, y: (x + tf.random.normal([], name="jitter"), y))
        return dataset.cache() if params.cache else dataset


def test_random_ops_in_the_training_input_pipeline_log_one_warning_that_names_them(
    make_trainer, caplog
) -> None:
    params = line_experiment.line_experiment()
    params.task.train_data.cache = True
    trainer = make_trainer(params, task_cls=_Noisy)
    trainer.build_train_dataset()
    assert caplog.text.count("training data use random ops") == 1
    assert "jitter" in caplog.text
    assert "repeats the numbers of the first epoch: jitter" in caplog.text
