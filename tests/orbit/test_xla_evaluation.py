import logging

import numpy as np
import pytest
import tensorflow as tf

from official_lite import orbit


class Evaluation:
    """An evaluation step that adds up its batches."""

    def __init__(self, can_compile: bool = True) -> None:
        self.total = tf.Variable(0.0)
        self._can_compile = can_compile

    def step(self, iterator):
        batch = iterator.get_next()
        if not self._can_compile:
            tf.debugging.assert_equal(tf.strings.length(tf.strings.as_string(batch))[0] > 0, True)
        self.total.assign_add(tf.reduce_sum(batch))
        return {"size": tf.shape(batch)[0], "first": batch[0]}


def _dataset(batches: int, last: int) -> tf.data.Dataset:
    return tf.data.Dataset.range(4 * batches + last).map(lambda x: tf.cast(x, tf.float32)).batch(4)


@pytest.mark.parametrize(
    ("batches", "last", "needs_outputs"),
    [(6, 0, True), (6, 3, False), (450, 1, False), (0, 2, True)],
)
def test_xla_eval_loop_evaluates_every_example_once(batches, last, needs_outputs) -> None:
    evaluation = Evaluation()
    loop = orbit.XlaEvalLoop(evaluation.step, needs_outputs=needs_outputs)
    for _ in range(2):
        evaluation.total.assign(0.0)
        loop.calls = 0
        loop(iter(_dataset(batches, last)), -1)
        assert evaluation.total.numpy() == np.arange(4 * batches + last).sum()
        assert loop.calls == batches + (last > 0)


def test_xla_eval_loop_runs_the_requested_number_of_steps() -> None:
    evaluation = Evaluation()
    loop = orbit.XlaEvalLoop(evaluation.step, needs_outputs=False)
    loop(iter(_dataset(9, 1)), tf.constant(5))
    assert evaluation.total.numpy() == np.arange(20).sum()
    assert loop.calls == 5


def test_xla_eval_loop_reduces_step_outputs_in_order() -> None:
    loop = orbit.XlaEvalLoop(Evaluation().step, needs_outputs=True)
    folded = loop(
        iter(_dataset(3, 1)),
        -1,
        state=(),
        reduce_fn=lambda state, outputs: (*state, float(outputs["first"])),
    )
    assert folded == (0.0, 4.0, 8.0, 12.0)


@pytest.mark.parametrize("needs_outputs", [False, True])
def test_evaluation_step_that_xla_cannot_compile_runs_without_xla_and_logs_a_warning(
    needs_outputs, caplog
) -> None:
    evaluation = Evaluation(can_compile=False)
    loop = orbit.XlaEvalLoop(evaluation.step, needs_outputs=needs_outputs)
    with caplog.at_level(logging.WARNING):
        loop(iter(_dataset(6, 2)), -1)
    assert evaluation.total.numpy() == np.arange(26).sum()
    assert sum("without XLA" in message for message in caplog.messages) == 1
