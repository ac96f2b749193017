import numpy as np
import pytest
import tensorflow as tf

from official_lite import orbit
from official_lite.common import errors
from official_lite.data import tf_data_options
from official_lite.orbit import standard_runner
from official_lite.orbit.utils import loop_fns


class Collector(orbit.StandardEvaluator):
    """An evaluator that collects its batches in the loop state."""

    def __init__(self, dataset, **options):
        super().__init__(dataset, orbit.StandardEvaluatorOptions(**options))

    def eval_begin(self):
        return tf.zeros([0], tf.int64)

    def eval_step(self, iterator):
        return next(iterator)

    def eval_reduce(self, state, step_outputs):
        return tf.concat([state, [step_outputs]], 0)

    def eval_end(self, state):
        return {"values": state.numpy().tolist()}


OPTIONS = [
    {"use_tf_function": False, "use_tf_while_loop": False},
    {"use_tf_function": True, "use_tf_while_loop": False},
    {"use_tf_function": True, "use_tf_while_loop": True},
    {"use_tpu_summary_optimization": True},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_training_result_does_not_depend_on_the_trainer_options(make_trainer, options):
    trainer = make_trainer(options=orbit.StandardTrainerOptions(**options))
    output = trainer.train(tf.constant(5))
    assert (output["loss"], output["steps"]) == (5, 5)
    assert trainer.global_step.numpy() == 5


def test_run_steps_may_be_called_several_times_between_train_loop_begin_and_end(make_trainer):
    trainer = make_trainer()
    trainer.train_loop_begin()
    trainer.run_steps(tf.constant(2))
    trainer.run_steps(tf.constant(3))
    assert trainer.train_loop_end()["steps"] == 5
    assert trainer.traces == 1


def test_steps_of_a_trainer_that_overrides_train_are_not_divided_into_several_calls(make_trainer):
    class Own(make_trainer):
        def train(self, num_steps):
            return None

    assert standard_runner.is_splittable(make_trainer())
    assert not standard_runner.is_splittable(Own())


@pytest.mark.parametrize("options", OPTIONS[:3])
def test_end_of_the_training_data_raises_in_eager_graph_and_while_loop_training(
    make_trainer, options
):
    dataset = tf.data.Dataset.from_tensors(1.0).repeat(4)
    trainer = make_trainer(dataset, orbit.StandardTrainerOptions(**options))
    with pytest.raises(errors.DataError, match="ended at step 4,"):
        trainer.train(tf.constant(10))
    assert trainer.weight.numpy() == 4


def test_assigning_train_dataset_replaces_the_training_data(make_trainer):
    trainer = make_trainer()
    trainer.train(tf.constant(1))
    trainer.train_dataset = tf.data.Dataset.from_tensors(10.0).repeat()
    assert trainer.train(tf.constant(1))["loss"] == 11


@pytest.mark.parametrize("while_loop", [True, False])
def test_evaluation_passes_the_state_from_step_to_step(while_loop):
    evaluator = Collector(tf.data.Dataset.range(10), use_tf_while_loop=while_loop)
    assert evaluator.evaluate(tf.constant(4)) == {"values": [0, 1, 2, 3]}


@pytest.mark.parametrize("num_steps", [-1, 100])
def test_evaluation_ends_without_an_error_when_the_data_end(num_steps):
    evaluator = Collector(tf.data.Dataset.range(10))
    assert evaluator.evaluate(tf.constant(num_steps))["values"] == list(range(10))
    assert evaluator.steps_run == 10


def test_evaluation_restarts_its_data_only_if_recreate_iterator_for_each_eval_is_true():
    again = Collector(tf.data.Dataset.range(10))
    further = Collector(tf.data.Dataset.range(10), recreate_iterator_for_each_eval=False)
    assert [again.evaluate(tf.constant(2))["values"] for _ in range(2)] == [[0, 1], [0, 1]]
    assert [further.evaluate(tf.constant(2))["values"] for _ in range(2)] == [[0, 1], [2, 3]]


def test_exhausted_iterator_is_recreated_for_the_next_evaluation():
    evaluator = Collector(tf.data.Dataset.range(3), recreate_iterator_for_each_eval=False)
    outputs = [evaluator.evaluate(tf.constant(-1))["values"] for _ in range(2)]
    assert outputs == [[0, 1, 2], [0, 1, 2]]


def test_evaluation_restarts_its_data_if_the_previous_one_stopped_exactly_at_their_end():
    evaluator = Collector(tf.data.Dataset.range(4), recreate_iterator_for_each_eval=False)
    outputs = [evaluator.evaluate(tf.constant(2))["values"] for _ in range(3)]
    assert outputs == [[0, 1], [2, 3], [0, 1]]


@pytest.mark.parametrize("num_steps", [-1, 5])
def test_evaluation_of_empty_data_raises_an_error(num_steps):
    with pytest.raises(errors.DataError, match="empty"):
        Collector(tf.data.Dataset.range(0)).evaluate(tf.constant(num_steps))


def test_while_loop_evaluation_raises_if_num_steps_is_unset_or_exceeds_the_data():
    evaluator = Collector(tf.data.Dataset.range(3), use_tf_while_loop=True)
    with pytest.raises(errors.ConfigValueError, match="num_steps=-1"):
        evaluator.evaluate(tf.constant(-1))
    with pytest.raises(errors.DataError, match="ended before 5 steps"):
        evaluator.evaluate(tf.constant(5))


def test_assigning_eval_dataset_replaces_the_evaluation_data():
    evaluator = Collector(tf.data.Dataset.range(3), recreate_iterator_for_each_eval=False)
    evaluator.evaluate(tf.constant(1))
    evaluator.eval_dataset = tf.data.Dataset.range(7, 9)
    assert evaluator.evaluate(tf.constant(-1))["values"] == [7, 8]


@pytest.mark.parametrize(
    "options",
    [
        {"use_tf_function": False},
        {"use_tf_while_loop": False, "use_tpu_summary_optimization": True},
    ],
)
def test_conflicting_trainer_options_raise(make_trainer, options):
    with pytest.raises(errors.ConfigValueError, match="requires"):
        make_trainer(options=orbit.StandardTrainerOptions(**options))


class Remembers(orbit.StandardTrainer):
    """A trainer with LiBai's `previous_output`, the model's output in the last step."""

    def __init__(self, dataset, options=None):
        self.global_step = orbit.utils.create_global_step()
        super().__init__(dataset, options)

    @property
    def previous_output(self):
        return self.last_step_outputs

    def train_step(self, iterator):
        x = next(iterator)
        self.global_step.assign_add(1)
        return {"doubled": x * 2, "sum": tf.reduce_sum(x)}


@pytest.mark.parametrize("is_compiled", [True, False])
def test_last_step_outputs_are_available_after_each_train_call(is_compiled):
    options = orbit.StandardTrainerOptions(is_compiled, is_compiled)
    dataset = tf.data.Dataset.range(23, output_type=tf.float32).batch(2)
    trainer = Remembers(dataset, options)
    trainer.train(tf.constant(10))
    assert trainer.previous_output["doubled"].numpy().tolist() == [36.0, 38.0]
    trainer.train(tf.constant(2))
    assert trainer.previous_output["sum"].numpy() == 22.0
    assert trainer.previous_output["doubled"].numpy().tolist() == [44.0]


def test_last_step_outputs_include_every_replica(two_replicas):
    class PerReplica(Remembers):
        def train_step(self, iterator):
            self.global_step.assign_add(1)
            return two_replicas.run(lambda x: {"doubled": x * 2}, args=(next(iterator),))

    with two_replicas.scope():
        dataset = tf.data.Dataset.range(40, output_type=tf.float32).batch(4)
        dataset = tf_data_options.without_idle_autotuner(dataset)
        trainer = PerReplica(two_replicas.experimental_distribute_dataset(dataset))
        trainer.train(tf.constant(2))
        values = two_replicas.experimental_local_results(trainer.previous_output["doubled"])
    assert [value.numpy().tolist() for value in values] == [[8.0, 10.0], [12.0, 14.0]]


def test_train_steps_run_eagerly_if_run_functions_eagerly_is_set():
    trainer = Remembers(tf.data.Dataset.range(9, output_type=tf.float32).batch(1))
    eager = []
    trainer.wrap_train_step(
        lambda step: lambda it: (eager.append(tf.executing_eagerly()), step(it))
    )
    try:
        tf.config.run_functions_eagerly(True)
        trainer.train(tf.constant(2))
    finally:
        tf.config.run_functions_eagerly(False)
    assert eager == [True, True]


@pytest.mark.parametrize("convert", [int, np.int64])
def test_train_accepts_num_steps_of_any_integer_type(convert):
    trainer = Remembers(tf.data.Dataset.range(9, output_type=tf.float32).batch(1))
    trainer.train(tf.constant(1))
    trainer.train(convert(3))
    assert trainer.last_step_outputs["sum"].numpy() == 3.0


def test_loop_that_is_traced_again_continues_reading_its_data_unless_it_gets_a_new_dataset():
    drawn = tf.Variable(0, dtype=tf.int64)

    def step(iterator):
        drawn.assign(drawn * 10 + next(iterator))

    loop = standard_runner.IteratorLoop(
        lambda: tf.function(loop_fns.create_tf_while_loop_fn(step)), tf.data.Dataset.range(1, 9)
    )
    loop.trace()
    assert drawn.numpy() == 0
    loop(tf.constant(2))
    (before,) = loop.trace()
    loop.retrace()
    loop(tf.constant(1))
    assert drawn.numpy() == 123
    (after,) = loop.trace()
    assert after is not before
    loop.read(tf.data.Dataset.range(5, 9))
    loop(tf.constant(2))
    assert drawn.numpy() == 12356
    assert loop.trace()[0] is after
