import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import orbit
from official_lite.core import base_trainer
from tests import rounding
from tests.line_experiment import BATCH_SIZE, NUM_EXAMPLES, LineTask


def _losses(trainer: base_trainer.Trainer, steps: int = 5) -> list[float]:
    return [float(trainer.train(tf.constant(1))["training_loss"]) for _ in range(steps)]


def test_uneven_batches_on_two_replicas_do_not_change_the_validation_loss(
    experiment, make_trainer, two_replicas
) -> None:
    # 32 examples in batches of 10 per replica: in the last step, one replica has only 2.
    params = experiment(task={"validation_data": {"global_batch_size": 20}})
    whole = make_trainer(experiment(), train=False).evaluate(tf.constant(-1))
    with two_replicas.scope():
        trainer = make_trainer(params, train=False)
    logs = trainer.evaluate(tf.constant(-1))
    rounding.assert_close(logs["validation_loss"], whole["validation_loss"], roundings=NUM_EXAMPLES)


class _Count(keras.metrics.Metric):
    """A metric that counts examples."""

    def __init__(self):
        super().__init__(name="examples")
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(tf.cast(tf.shape(y_true)[0], tf.float32))

    def result(self):
        return self.total


def test_metrics_count_every_example_once_on_one_or_two_replicas(
    experiment, make_trainer, make_task, two_replicas
) -> None:
    class Ranking(type(make_task(experiment()))):
        def build_inputs(self, params, input_context=None):
            x = tf.random.stateless_normal((103, 2), (1, 2))
            y = tf.cast(x[:, :1] + 0.5 * x[:, 1:] > 0, tf.float32)
            batch_size = params.global_batch_size
            if input_context:
                batch_size = input_context.get_per_replica_batch_size(batch_size)
            return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)

        def build_metrics(self, training=True):
            return [keras.metrics.AUC(name="auc", from_logits=True), _Count()]

    params = experiment(task={"validation_data": {"global_batch_size": 10}})
    results = []
    for strategy in (tf.distribute.get_strategy(), two_replicas):
        with strategy.scope():
            trainer = make_trainer(params, task_cls=Ranking)
            trainer.model.layers[-1].kernel.assign([[1.0], [0.0]])
        results.append(trainer.evaluate(tf.constant(-1)))
    assert [float(tf.convert_to_tensor(result["examples"])) for result in results] == [103, 103]
    assert 0.5 < float(tf.convert_to_tensor(results[0]["auc"])) < 1
    # The metric has 200 thresholds.
    rounding.assert_close(results[0]["auc"], results[1]["auc"], roundings=200)


def test_batch_normalization_statistics_on_two_replicas_equal_those_on_one_replica(
    experiment, make_trainer, two_replicas
) -> None:
    class Normalized(LineTask):
        def build_model(self):
            layers = keras.layers
            return keras.Sequential(
                [keras.Input((2,)), layers.BatchNormalization(momentum=0.5), layers.Dense(1)]
            )

    means = []
    for strategy in (tf.distribute.get_strategy(), two_replicas):
        with strategy.scope():
            trainer = make_trainer(experiment(), task_cls=Normalized, evaluate=False)
        trainer.train(tf.constant(2))
        mean = trainer.model.layers[0].moving_mean.value
        means += [one.numpy() for one in strategy.experimental_local_results(mean)]
    assert np.abs(means[0]).max() > 0.01
    # Two steps on inputs of magnitude 1.
    rounding.assert_close(means[1:], [means[0]] * 2, roundings=2 * BATCH_SIZE, scale=1.0)


@pytest.mark.parametrize(
    ("aggregation", "count", "warning"),
    [
        ("none", 3, "aggregation='only_first_replica'"),
        ("only_first_replica", 3, ""),
        ("sum", 21, "with the aggregation 'sum' on 2 replicas"),
    ],
)
def test_counter_with_unsuitable_aggregation_logs_a_warning_when_trained_on_two_replicas(
    experiment, make_trainer, two_replicas, caplog, aggregation, count, warning
) -> None:
    class Counting(keras.layers.Layer):
        def build(self, shape):
            options = {"dtype": "int32", "initializer": "zeros", "trainable": False}
            self.count = self.add_weight(shape=(), aggregation=aggregation, **options)

        def call(self, x, training=False):
            if training:
                # The replicas add different numbers, so that their values differ.
                context = tf.distribute.get_replica_context()
                self.count.assign_add(1 + context.replica_id_in_sync_group)
            return x

    class CountingTask(LineTask):
        def build_model(self):
            return keras.Sequential([keras.Input((2,)), Counting(), keras.layers.Dense(1)])

    with two_replicas.scope():
        trainer = make_trainer(experiment(), task_cls=CountingTask, evaluate=False)
        trainer.train(tf.constant(3))
    assert int(trainer.model.layers[0].count.numpy()) == count
    warnings = [r.getMessage() for r in caplog.records if "aggregation" in r.getMessage()]
    assert [warning in text for text in warnings] == [True] * bool(warning)


def test_dropout_depends_on_the_step_number_but_not_on_earlier_steps(
    experiment, make_trainer
) -> None:
    constant = {"learning_rate": {"constant": {"learning_rate": 0.0}}}
    params = experiment(
        task={"dropout_rate": 0.5}, trainer={"optimizer_config": constant, "steps_per_loop": 1}
    )

    def losses_from(step, count):
        trainer = make_trainer(params, evaluate=False)
        trainer.model.dense.kernel.assign([[1.0], [1.0]])
        trainer.global_step.assign(step)
        return _losses(trainer, count)

    # An epoch has four batches, always in the same order.
    losses = losses_from(0, 8)
    assert losses[:4] != losses[4:]
    assert losses_from(4, 4) == losses[4:]


class Watching(orbit.GraphHook):
    """A graph hook that sums the losses and gradient norms that it receives."""

    def __init__(self):
        self.losses = tf.Variable(0.0)
        self.norm = tf.Variable(0.0)
        self.calls = tf.Variable(0)

    def call(self, logs):
        self.calls.assign_add(1)
        self.losses.assign_add(logs["loss"])

    def on_gradients(self, grads_and_vars):
        self.norm.assign_add(tf.linalg.global_norm([gradient for gradient, _ in grads_and_vars]))


def _watched(trainer, hook):
    trainer.set_graph_hooks([hook])
    return _losses(trainer)


@pytest.mark.parametrize(
    "block", [{}, {"runtime": {"enable_xla": True}}, {"trainer": {"optimizer_config": {"ema": {}}}}]
)
def test_graph_hook_is_called_at_every_step_and_does_not_change_the_losses(
    experiment, make_trainer, block
) -> None:
    hook = Watching()
    params = experiment(**block)
    watched = _watched(make_trainer(params, evaluate=False), hook)
    unwatched = _losses(make_trainer(params, evaluate=False))
    rounding.assert_close(watched, unwatched, roundings=len(unwatched) * BATCH_SIZE)
    assert hook.calls.numpy() == len(watched)
    rounding.assert_close(hook.losses, sum(watched), roundings=len(watched))


def test_graph_hook_receives_equal_gradients_with_and_without_replicas_and_micro_batches(
    experiment, make_trainer, two_replicas
) -> None:
    norms = []
    for steps, strategy in ((1, tf.distribute.get_strategy()), (2, two_replicas)):
        params = experiment(trainer={"grad_accum_steps": steps})
        with strategy.scope():
            trainer, hook = make_trainer(params, evaluate=False), Watching()
            # Every replica receives the summed gradients, so add only the norms on the first
            # replica.
            hook.norm = tf.Variable(0.0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
            hook.call = lambda logs: None
            _watched(trainer, hook)
        norms.append(hook.norm.numpy())
    assert norms[0] > 0
    rounding.assert_close(*norms, roundings=5 * BATCH_SIZE)


@pytest.mark.parametrize("execution", ["graph", "xla"])
def test_set_graph_hooks_replaces_the_earlier_hooks(experiment, make_trainer, execution) -> None:
    params = experiment(runtime={"execution": execution})
    trainer, first, second = make_trainer(params, evaluate=False), Watching(), Watching()
    _watched(trainer, first)
    calls = first.calls.numpy()
    _watched(trainer, second)
    assert (first.calls.numpy(), second.calls.numpy()) == (calls, calls)


def _at_least_zero(number):
    # AutoGraph must convert this branch on a tensor.
    if tf.reduce_sum(number) < 0:
        number = tf.zeros_like(number)
    return number


def test_user_defined_task_metric_and_hook_methods_may_branch_on_tensors(
    experiment, make_trainer, make_task
) -> None:
    class Metric(keras.metrics.Mean):
        def update_state(self, y_true, y_pred, sample_weight=None):
            return super().update_state(_at_least_zero(tf.reduce_sum(y_pred)))

    class Branching(type(make_task(experiment()))):
        def build_metrics(self, training=True):
            return [Metric(name="branching")]

        def build_losses(self, labels, model_outputs, aux_losses=None):
            return _at_least_zero(super().build_losses(labels, model_outputs, aux_losses))

        def process_metrics(self, metrics, labels, model_outputs, **kwargs):
            _at_least_zero(tf.reduce_sum(labels))
            super().process_metrics(metrics, labels, model_outputs)

        def train_step(self, inputs, model, optimizer, metrics=None):
            _at_least_zero(tf.reduce_sum(inputs[0]))
            return super().train_step(inputs, model, optimizer, metrics)

        def validation_step(self, inputs, model, metrics=None):
            _at_least_zero(tf.reduce_sum(inputs[0]))
            return super().validation_step(inputs, model, metrics)

        def inference_step(self, inputs, model):
            _at_least_zero(tf.reduce_sum(inputs))
            return super().inference_step(inputs, model)

    class Look(orbit.GraphHook):
        def call(self, logs):
            _at_least_zero(logs["loss"])

        def on_gradients(self, grads_and_vars):
            _at_least_zero(tf.reduce_sum(grads_and_vars[0][0]))

    params = experiment(runtime={"execution": "xla"})
    trainer = make_trainer(params, task_cls=Branching)
    trainer.set_graph_hooks([Look()])
    assert trainer.train(tf.constant(4))["branching"] >= 0
    assert trainer.evaluate(tf.constant(-1))["branching"] >= 0


@pytest.mark.parametrize(("execution", "micro_batches"), [("graph", 2), ("xla_loop", 1)])
def test_next_inputs_methods_of_a_trainer_may_branch_on_tensors(
    experiment, make_trainer, execution, micro_batches
) -> None:
    class Branching(base_trainer.Trainer):
        def next_train_inputs(self, iterator):
            x, y = super().next_train_inputs(iterator)
            return x, _at_least_zero(y)

        def next_eval_inputs(self, iterator):
            (x, y), logs = super().next_eval_inputs(iterator)
            return (x, _at_least_zero(y)), logs

    params = experiment(
        runtime={"execution": execution}, trainer={"grad_accum_steps": micro_batches}
    )
    trainer = make_trainer(params, cls=Branching, task_cls=_NegativeTask)
    assert trainer.train(tf.constant(1))["training_loss"] == 0
    assert trainer.evaluate(tf.constant(-1))["validation_loss"] == 0


@pytest.mark.slow
def test_train_step_can_be_traced_many_times_with_one_iterator(experiment, make_trainer) -> None:
    trainer = make_trainer(experiment(runtime={"execution": "graph"}), evaluate=False)
    for _ in range(33):
        trainer.train_loop.retrace()
        trainer.train_loop.trace()
    assert trainer.train(tf.constant(1))["training_loss"] > 0


class _NegativeTask(LineTask):
    """A task with negative labels and a model whose initial outputs are 0."""

    def build_inputs(self, params, input_context=None):
        dataset = super().build_inputs(params, input_context).unbatch()
        dataset = dataset.map(lambda x, y: (x, -tf.abs(y)))
        return dataset.batch(params.global_batch_size, drop_remainder=True)


class _TableTask(LineTask):
    """A task with an embedding table; a batch looks up few of its rows, some of them twice."""

    def build_model(self):
        layers = keras.layers
        return keras.Sequential(
            [keras.Input((2,)), layers.Embedding(9, 3), layers.Flatten(), layers.Dense(1)]
        )


class _Norms(orbit.GraphHook):
    def __init__(self, takes_rows: bool) -> None:
        self.takes_rows = takes_rows
        self.types: list[type] = []
        self.norm = tf.Variable(0.0)

    def on_gradients(self, grads_and_vars) -> None:
        gradients = [gradient for gradient, _ in grads_and_vars]
        self.types += map(type, gradients)
        self.norm.assign(tf.linalg.global_norm([getattr(g, "values", g) for g in gradients]))


def test_graph_hook_that_takes_rows_receives_sparse_gradients_as_indexed_slices(
    experiment, make_trainer
) -> None:
    trainer = make_trainer(experiment(), task_cls=_TableTask)
    by_rows, dense = _Norms(takes_rows=True), _Norms(takes_rows=False)
    trainer.set_graph_hooks([by_rows, dense])
    trainer.train(tf.constant(1))
    assert by_rows.types[0] is tf.IndexedSlices
    assert tf.IndexedSlices not in dense.types
    assert float(by_rows.norm) > 0
    # The table has 9 rows of 3 numbers.
    rounding.assert_close(by_rows.norm, dense.norm, roundings=9 * 3)


@pytest.mark.slow
def test_lazy_rows_optimizer_trains_equal_weights_with_and_without_micro_batches(
    experiment, make_trainer, two_replicas
) -> None:
    adamw = {"type": "adamw", "adamw": {"lazy_rows": True, "weight_decay_rate": 0.1}}
    trained = []
    for count in (1, 2):
        params = experiment(
            trainer={"grad_accum_steps": count, "optimizer_config": {"optimizer": adamw}}
        )
        with two_replicas.scope():
            trainer = make_trainer(params, task_cls=_TableTask)
            trainer.train(tf.constant(4))
        trained.append([v.numpy() for v in trainer.model.variables])
    for one, other in zip(*trained, strict=True):
        # Each run trains for four steps.
        rounding.assert_close(one, other, roundings=4 * BATCH_SIZE)
