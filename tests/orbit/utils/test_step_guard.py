import logging
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from official_lite import orbit
from official_lite.common import errors
from official_lite.data import tf_data_options

NUM_BATCHES = 3
OPTIONS = {
    "compiled step": {"use_tf_while_loop": False},
    "compiled loop": {"use_tf_while_loop": True},
}


class Counter:
    """A step whose side effects do not use the values of the batches that it fetches."""

    def __init__(self, strategy: tf.distribute.Strategy, style: str) -> None:
        self.strategy, self.style = strategy, style
        with strategy.scope():
            self.branch = tf.Variable(1)
            self.global_step = orbit.utils.create_global_step()
            self.counts = {
                name: tf.Variable(
                    0,
                    dtype=tf.int64,
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
                )
                for name in ("before", "replica", "nested", "after")
            }

    def step(self, iterator: Any) -> None:
        getattr(self, self.style)(iterator)
        self._count("after")

    def one_fetch(self, iterator: Any) -> None:
        self._count("before")
        self.strategy.run(self._replica_step, args=(next(iterator),))

    def get_next(self, iterator: Any) -> None:
        self._count("before")
        self.strategy.run(self._replica_step, args=(iterator.get_next(),))

    def two_fetches(self, iterator: Any) -> None:
        batch = next(iterator)
        self._count("before")
        next(iterator)
        self.strategy.run(self._replica_step, args=(batch,))

    def in_a_loop(self, iterator: Any) -> None:
        self._count("before")

        def body(index: tf.Tensor) -> tuple[tf.Tensor]:
            orbit.utils.guard_step(self._run)(iterator)
            return (index + 1,)

        tf.while_loop(lambda index: index < 2, body, (tf.constant(0),))

    def in_a_branch(self, iterator: Any) -> None:
        self._count("before")
        run = orbit.utils.guard_step(self._run)
        tf.switch_case(self.branch.read_value(), [lambda: run(iterator)] * 2)

    def _run(self, iterator: Any) -> None:
        self.strategy.run(self._replica_step, args=(next(iterator),))

    def _replica_step(self, batch: tf.Tensor) -> None:
        self.counts["replica"].assign_add(1)
        tf.function(lambda batch: self.counts["nested"].assign_add(1))(batch)

    def _count(self, name: str) -> None:
        self.strategy.run(lambda: self.counts[name].assign_add(1))

    def read(self) -> dict[str, int]:
        return {
            name: int(self.strategy.experimental_local_results(count)[0].numpy())
            for name, count in self.counts.items()
        }


class Evaluator(Counter, orbit.StandardEvaluator):
    def __init__(self, strategy: Any, style: str, dataset: Any, **options: bool) -> None:
        Counter.__init__(self, strategy, style)
        options = orbit.StandardEvaluatorOptions(**options)
        orbit.StandardEvaluator.__init__(self, dataset, options)

    def eval_step(self, iterator: Any) -> None:
        self.step(iterator)


class Trainer(Counter, orbit.StandardTrainer):
    def __init__(self, strategy: Any, style: str, dataset: Any, **options: bool) -> None:
        Counter.__init__(self, strategy, style)
        options = orbit.StandardTrainerOptions(**options)
        orbit.StandardTrainer.__init__(self, dataset, options)

    def train_step(self, iterator: Any) -> None:
        self.global_step.assign_add(1)
        self.step(iterator)


@pytest.fixture
def make_data(two_replicas: tf.distribute.Strategy) -> Callable[[int, bool, int], Any]:
    """Return a function that builds a strategy and a distributed dataset for it."""

    def make(replicas: int, is_static: bool, count: int) -> Any:
        strategy = two_replicas if replicas == 2 else tf.distribute.OneDeviceStrategy("CPU:0")
        dataset = tf.data.Dataset.range(4 * count).batch(4, drop_remainder=is_static)
        # Otherwise, releasing an iterator takes as long as the iterator has existed.
        dataset = tf_data_options.without_idle_autotuner(dataset)
        return strategy, strategy.experimental_distribute_dataset(dataset)

    return make


# The number of batches that a step of each style fetches.
STYLES = {"one_fetch": 1, "get_next": 1, "two_fetches": 2, "in_a_loop": 2, "in_a_branch": 1}


def _expected(style: str, steps: int) -> dict[str, int]:
    runs = 2 * steps if style == "in_a_loop" else steps
    return {"before": steps, "replica": runs, "nested": runs, "after": steps}


# The style of the fetches, the number of replicas, and whether batches have a static size.
CASES = [
    ("one_fetch", 1, False),
    ("one_fetch", 2, True),
    ("get_next", 2, False),
    ("two_fetches", 1, True),
    ("two_fetches", 2, False),
    ("in_a_loop", 1, False),
    ("in_a_loop", 2, True),
    ("in_a_branch", 2, True),
]


@pytest.mark.sample(5)
@pytest.mark.parametrize(("style", "replicas", "is_static"), CASES)
def test_evaluation_applies_the_side_effects_of_each_step_once(
    make_data, style, replicas, is_static
) -> None:
    num_batches = NUM_BATCHES * STYLES[style]
    strategy, dataset = make_data(replicas, is_static, num_batches)
    evaluator = Evaluator(strategy, style, dataset)
    for _ in range(5):
        for count in evaluator.counts.values():
            count.assign(0)
        evaluator.evaluate(tf.constant(-1))
        assert evaluator.read() == _expected(style, NUM_BATCHES)


@pytest.mark.sample(8)
@pytest.mark.parametrize(("style", "replicas", "is_static"), CASES)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_end_of_the_training_data_raises_after_the_last_complete_step(
    make_data, style, replicas, is_static, options
) -> None:
    num_batches = NUM_BATCHES * STYLES[style]
    strategy, dataset = make_data(replicas, is_static, num_batches)
    trainer = Trainer(strategy, style, dataset, **options)
    with pytest.raises(errors.DataError, match=f"ended at step {NUM_BATCHES},"):
        trainer.train(tf.constant(100))
    assert trainer.read() == _expected(style, NUM_BATCHES)
    assert int(trainer.global_step.numpy()) == NUM_BATCHES


def test_steps_decorated_with_tf_function_have_no_effect_after_the_data_end(make_data) -> None:
    class Decorated(Evaluator, Trainer):
        @tf.function
        def eval_step(self, iterator: Any) -> None:
            self.step(iterator)

        @tf.function
        def train_step(self, iterator: Any) -> None:
            self.step(iterator)

    strategy, dataset = make_data(2, False, NUM_BATCHES)
    decorated = Decorated(strategy, "one_fetch", dataset)
    decorated.evaluate(tf.constant(-1))
    assert decorated.read() == _expected("one_fetch", NUM_BATCHES)
    orbit.StandardTrainer.__init__(decorated, dataset)
    with pytest.raises(errors.DataError):
        decorated.train(tf.constant(100))
    assert decorated.read() == _expected("one_fetch", 2 * NUM_BATCHES)


def test_evaluation_on_a_dict_of_iterators_ends_with_the_shortest_dataset() -> None:
    data = {"a": tf.data.Dataset.range(8).batch(1), "b": tf.data.Dataset.range(3).batch(1)}
    strategy = tf.distribute.get_strategy()
    count = tf.Variable(0)

    class Both(Evaluator):
        def eval_step(self, iterators: Any) -> None:
            count.assign_add(1)
            next(iterators["a"])
            next(iterators["b"])

    Both(strategy, "", data).evaluate(tf.constant(-1))
    assert count.numpy() == 3


def test_step_whose_batch_cannot_be_read_has_no_side_effects() -> None:
    def fail_at_two(x: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([tf.debugging.assert_less(x, tf.constant(2, tf.int64))]):
            return x[tf.newaxis]

    trainer = Trainer(
        tf.distribute.get_strategy(), "one_fetch", tf.data.Dataset.range(4).map(fail_at_two)
    )
    with pytest.raises((errors.DataError, tf.errors.InvalidArgumentError)):
        trainer.train(tf.constant(4))
    assert trainer.read() == _expected("one_fetch", 2)


def test_control_dependency_of_a_batch_fetch_runs_before_the_batch_is_fetched() -> None:
    order = tf.Variable([0, 0])
    strategy = tf.distribute.get_strategy()

    class Ordered(Evaluator):
        def eval_step(self, iterator: Any) -> None:
            first = order.assign(order + 1)
            with tf.control_dependencies([first]):
                next(iterator)

    Ordered(strategy, "", tf.data.Dataset.range(3).batch(1)).evaluate(tf.constant(-1))
    assert order.numpy().tolist() == [4, 4]


def test_side_effects_and_batch_fetches_of_a_step_run_in_program_order() -> None:
    value = tf.Variable(1)
    strategy = tf.distribute.get_strategy()

    class Ordered(Evaluator):
        def eval_step(self, iterator: Any) -> None:
            value.assign(value * 2)
            next(iterator)
            value.assign(value + 1)
            next(iterator)
            value.assign(value * 3)

    Ordered(strategy, "", tf.data.Dataset.range(2).batch(1)).evaluate(tf.constant(1))
    assert value.numpy() == 9


def test_step_that_fetches_batches_inside_a_tf_loop_logs_a_warning(caplog) -> None:
    class Looping(Evaluator):
        def eval_step(self, iterator: Any) -> None:
            for _ in tf.range(2):
                next(iterator)

    with caplog.at_level(logging.WARNING):
        Looping(tf.distribute.get_strategy(), "", tf.data.Dataset.range(4)).evaluate(
            tf.constant(-1)
        )
    assert "orbit.utils.guard_step" in caplog.text


def test_evaluation_step_may_loop_over_all_remaining_batches() -> None:
    total = tf.Variable(0, dtype=tf.int64)

    class Rest(Evaluator):
        def eval_step(self, iterator: Any) -> None:
            next(iterator)
            for batch in iterator:
                total.assign_add(batch)

    Rest(tf.distribute.get_strategy(), "", tf.data.Dataset.range(5)).evaluate(tf.constant(-1))
    assert total.numpy() == 1 + 2 + 3 + 4


def test_eval_step_can_pass_its_iterator_to_a_tf_function() -> None:
    @tf.function
    def draw(iterator: Any) -> tf.Tensor:
        return next(iterator)

    class Asking(Evaluator):
        def eval_step(self, iterator: Any) -> Any:
            assert isinstance(iterator, tf.data.Iterator)
            assert iterator.element_spec == tf.TensorSpec([], tf.int64)
            return draw(iterator) + draw(iterator)

        def eval_reduce(self, state: Any = None, step_outputs: Any = None) -> Any:
            return [*(state or []), int(step_outputs)]

        def eval_end(self, state: Any) -> Any:
            return {"sums": state}

    asking = Asking(tf.distribute.get_strategy(), "", tf.data.Dataset.range(4))
    assert asking.evaluate(tf.constant(-1)) == {"sums": [1, 5]}
