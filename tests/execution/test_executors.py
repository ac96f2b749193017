import keras
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import base_trainer
from official_lite.execution import executors
from tests import parameter_servers, rounding
from tests.execution.test_auto import EndlessTask, NotForXlaTask
from tests.line_experiment import BATCH_SIZE


@pytest.mark.parametrize("mode", ["xla", "xla_loop"])
def test_step_that_xla_cannot_compile_is_not_run_and_the_error_names_the_op(
    experiment, make_trainer, mode
) -> None:
    trainer = make_trainer(experiment(runtime={"execution": mode}), task_cls=NotForXlaTask)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)unsupported.*(Print|String)"):
        trainer.train(tf.constant(1))
    assert trainer.global_step.numpy() == 0


def test_training_step_error_is_raised_unchanged(experiment, make_trainer) -> None:
    class Failing(EndlessTask):
        def build_losses(self, labels, model_outputs, aux_losses=None):
            tf.debugging.assert_equal(tf.reduce_sum(labels), 0.0)
            return super().build_losses(labels, model_outputs, aux_losses)

    trainer = make_trainer(experiment(runtime={"execution": "graph"}), task_cls=Failing)
    with pytest.raises(tf.errors.InvalidArgumentError, match="assertion failed"):
        trainer.train(tf.constant(1))


def test_execution_mode_can_be_changed_before_training(experiment, make_trainer) -> None:
    trainer = make_trainer(experiment(), task_cls=EndlessTask)
    graph_loop = trainer.train_loop
    trainer.execution = "xla_loop"
    assert type(trainer.train_loop) is not type(graph_loop)
    trainer.train(tf.constant(3))
    assert trainer.global_step.numpy() == 3


def test_dataset_num_private_threads_applies_to_training_and_evaluation_datasets(
    experiment, make_trainer
) -> None:
    trainer = make_trainer(experiment(runtime={"dataset_num_private_threads": 3}))
    for dataset in (trainer.train_dataset, trainer.eval_dataset):
        assert dataset.options().threading.private_threadpool_size == 3
    assert trainer.train(tf.constant(2))["training_loss"] > 0


@pytest.mark.parametrize("mode", ["xla", "xla_loop"])
def test_step_with_two_updates_trains_the_same_weights_in_xla_and_in_graph_mode(
    experiment, make_trainer, mode
) -> None:
    class Twice(EndlessTask):
        def train_step(self, inputs, model, optimizer, metrics=None):
            super().train_step(inputs, model, optimizer, metrics)
            return super().train_step(inputs, model, optimizer, metrics)

    weights = []
    for execution in ("graph", mode):
        trainer = make_trainer(experiment(runtime={"execution": execution}), task_cls=Twice)
        trainer.train(tf.constant(3))
        assert int(trainer.optimizer.iterations) == 6
        weights.append(trainer.model.get_weights())
    for in_graph, compiled in zip(*weights, strict=True):
        rounding.assert_close(compiled, in_graph, roundings=6 * BATCH_SIZE)


def test_xla_step_on_two_replicas_trains_the_same_weights_as_the_graph_step(
    experiment, make_trainer, two_replicas
) -> None:
    weights = []
    for is_split in (False, True):
        with two_replicas.scope():
            trainer = make_trainer(experiment(), evaluate=False)
        if is_split:
            trainer.execution = "xla"
        trainer.train(tf.constant(3))
        weights.append(trainer.model.get_weights())
    for whole, split in zip(*weights, strict=True):
        rounding.assert_close(split, whole, roundings=3 * BATCH_SIZE)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"runtime": {"execution": "xla"}},
        {"runtime": {"execution": "graph"}, "trainer": {"virtual_replicas": 2}},
    ],
)
def test_each_apply_gradients_call_on_two_replicas_is_a_separate_optimizer_update(
    experiment, make_trainer, two_replicas, kwargs
) -> None:
    class UpdatesTwice(EndlessTask):
        def train_step(self, inputs, model, optimizer, metrics=None):
            features, labels = inputs
            with tf.GradientTape() as tape:
                loss = self.build_losses(labels, model(features, training=True))
            pairs = list(zip(tape.gradient(loss, model.weights), model.weights, strict=True))
            optimizer.apply_gradients(pairs[:1])
            optimizer.apply_gradients(pairs[1:])
            return {self.loss: loss}

    with two_replicas.scope():
        trainer = make_trainer(experiment(**kwargs), task_cls=UpdatesTwice)
        trainer.train(tf.constant(3))
    assert trainer.optimizer.iterations.numpy() == 6
    assert trainer.global_step.numpy() == 3


def test_xla_replica_step_updates_the_metrics_passed_at_its_construction(
    experiment, make_trainer
) -> None:
    trainer = make_trainer(experiment(), evaluate=False)
    executor = executors.XlaExecutor(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))
    step = executor.replica_step(trainer.task.train_step, trainer.train_metrics)
    inputs = next(iter(trainer.train_dataset))
    logs = step(inputs, model=trainer.model, optimizer=trainer.optimizer, metrics=None)
    assert float(logs[trainer.task.loss]) > 0
    assert float(trainer.train_metrics[0].result()) > 0


def test_no_optimizer_counts_the_steps_that_are_repeated_after_the_loss_of_a_worker():
    weights = [keras.Variable([1.0], name="kernel"), keras.Variable([1.0], name="bias")]
    groups = [keras.optimizers.SGD(0.1), keras.optimizers.Adam(0.1), keras.optimizers.SGD(0.1)]
    optimizer = keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(groups[0], {"bias": groups[1], "no such weight": groups[2]})
    )
    optimizer.build(weights)
    global_step = tf.Variable(0, dtype=tf.int64)

    def run(num_steps):
        for _ in range(int(num_steps) + 2):
            optimizer.apply([tf.constant([1.0]), tf.constant([1.0])], weights)
            global_step.assign_add(1)

    executors.run_and_count(run, tf.constant(3), global_step, optimizer)
    counts = [int(one.iterations.numpy()) for one in (optimizer, *groups)]
    assert (int(global_step.numpy()), counts) == (3, [3, 3, 3, 0])


# A script that trains with two workers and records all counters.
COUNTS = """
import tensorflow as tf

from experiments.vision.digits import configs, task
from official_lite.core import trainer_factory

params = configs.digits_mlp()
params.trainer.optimizer_config.override({"ema": {"average_decay": 0.9}}, is_strict=False)
with strategy.scope():
    digits = task.DigitsTask(params.task)
    trainer = trainer_factory.create_trainer(params, digits, train=True, evaluate=True)
    trainer.train_loop_begin()
    for length in (1, 149, 50):
        trainer.run_steps(tf.constant(length))
    results["batches"] = float(trainer.train_loss.count)
    results["examples"] = float(trainer.train_metrics[0].count)
    logs = trainer.train_loop_end()
    results["steps"] = int(trainer.global_step.numpy())
    results["iterations"] = int(trainer.optimizer.iterations.numpy())
    results["learning_rate"] = float(logs["learning_rate"])
    schedule = trainer.optimizer.inner_optimizer._learning_rate
    results["schedule"] = float(schedule(200))
    results["accuracy"] = float(trainer.evaluate(tf.constant(-1))["accuracy"])
    results["evaluated"] = float(trainer.validation_metrics[0].count)
    # Repeats steps, as after the loss of a worker that had not reported them.
    lost = trainer.train_loop

    def run_twice(num_steps):
        lost(num_steps)
        lost(tf.constant(3))

    trainer.use_train_loop(run_twice)
    trainer.run_steps(tf.constant(10))
    results["steps_after_loss"] = int(trainer.global_step.numpy())
    results["iterations_after_loss"] = int(trainer.optimizer.iterations.numpy())
    try:
        trainer.execution = "xla"
    except ValueError as error:
        results["xla"] = str(error)
"""


class Minimal(base_trainer._AsyncTrainer):
    def __init__(self):
        self._strategy = tf.distribute.get_strategy()
        self.init_async()
        # Model Garden trainers also set these attributes after `init_async`.
        self.global_step = tf.Variable(0, dtype=tf.int64)
        self.model, self.optimizer, self.config = keras.Sequential(), keras.optimizers.SGD(), None

    def train_step(self, iterator):
        raise NotImplementedError

    def eval_step(self, iterator):
        raise NotImplementedError


def test_trainer_creates_no_coordinator_without_a_parameter_server_strategy() -> None:
    trainer = Minimal()
    trainer.join()
    # The Model Garden uses this attribute name.
    assert trainer._coordinator is None
    with pytest.raises(ValueError, match="parameter_server"):
        trainer.coordinator_for_async()


def test_async_trainer_without_a_coordinator_distributes_datasets() -> None:
    dataset = Minimal().distribute_dataset(lambda: tf.data.Dataset.range(3))
    assert list(dataset.as_numpy_iterator()) == [0, 1, 2]


@pytest.mark.slow
def test_two_workers_count_each_step_once_and_the_chief_evaluates_each_example_once(tmp_path):
    found = parameter_servers.run_script(tmp_path, COUNTS)
    assert (found["steps"], found["iterations"]) == (200, 200)
    assert (found["batches"], found["examples"]) == (200, 200 * 64)
    assert found["learning_rate"] == pytest.approx(found["schedule"])
    assert found["evaluated"] == 360
    # The accuracy of the averaged weights.
    assert found["accuracy"] > 0.8
    # Steps that ran twice are counted once.
    assert (found["steps_after_loss"], found["iterations_after_loss"]) == (210, 210)
    assert "graph" in found["xla"]


# A script that draws examples. The coordinator gives each draw to any free worker.
DRAW = """
import tensorflow as tf

from official_lite.execution import executors

coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
shares = [tf.data.Dataset.range(10 * i, 10 * i + 10).shuffle(10, seed=1).repeat() for i in (0, 1)]
dataset = executors.WorkerDatasets(coordinator, shares)
draw = tf.function(lambda iterator: next(iterator))
iterator = iter(dataset)
drawn = [coordinator.schedule(draw, (iterator,)) for _ in range(400)]
coordinator.join()
values = [int(value.fetch()) for value in drawn]
results["spec"] = str(dataset.element_spec)
results["values"] = values
"""


@pytest.mark.slow
def test_each_parameter_server_worker_reads_its_own_share_of_the_data(tmp_path):
    found = parameter_servers.run_script(tmp_path, DRAW)
    assert found["spec"] == str(tf.TensorSpec([], tf.int64))
    assert set(found["values"]) == set(range(20))
    # Whatever the order, no example is repeated before all examples of its share were drawn.
    for share in (range(10), range(10, 20)):
        own = [value for value in found["values"] if value in share]
        assert max(map(own.count, share)) - min(map(own.count, share)) <= 1


def test_parameter_server_workers_share_data_even_if_build_inputs_takes_any_keyword_argument():
    def build_inputs(params, **kwargs):
        context = kwargs["input_context"]
        numbers = tf.data.Dataset.range(params)
        return numbers.shard(context.num_input_pipelines, context.input_pipeline_id)

    # A process can't leave a cluster, so build the shares without one.
    executor = object.__new__(executors.ParameterServerExecutor)
    executor.strategy = tf.distribute.get_strategy()
    shares = [executor._build_share(worker, 2, build_inputs, (4,), {}) for worker in (0, 1)]
    assert [list(share.as_numpy_iterator()) for share in shares] == [[0, 2], [1, 3]]


def test_serializing_a_dataset_with_a_python_function_raises():
    def read(index):
        return tf.numpy_function(lambda i: i, [index], tf.int64)

    with pytest.raises(errors.ConfigValueError, match="runs Python"):
        executors._serialize(tf.data.Dataset.range(3).map(read))
