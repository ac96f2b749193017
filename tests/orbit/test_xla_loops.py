import numpy as np
import pytest
import tensorflow as tf

from official_lite.orbit import xla_loops
from official_lite.orbit.utils import loop_fns


class Recorder:
    """A step that records the sums of its batches."""

    def __init__(self, batches_per_step: int = 1) -> None:
        self._batches_per_step = batches_per_step
        self.steps = tf.Variable(0, dtype=tf.int64)
        self.sums = tf.Variable(tf.zeros([50]))

    def step(self, iterator) -> None:
        total = tf.constant(0.0)
        for _ in tf.range(self._batches_per_step):
            total += tf.reduce_sum(next(iterator))
        one_hot = tf.one_hot(self.steps, 50)
        self.sums.assign_add(one_hot * total)
        self.steps.assign_add(1)

    def seen(self) -> list[float]:
        return self.sums.numpy()[: int(self.steps)].tolist()


def _batches(count: int | None = None) -> tf.data.Dataset:
    numbers = tf.data.Dataset.range(4 * (count or 50)).map(lambda x: tf.cast(x, tf.float32))
    batches = numbers.batch(4, drop_remainder=True)
    return batches if count else batches.repeat()


def _sums(count: int, batches_per_step: int = 1) -> list[float]:
    numbers = np.arange(4 * count * batches_per_step, dtype=np.float32)
    return numbers.reshape(count, -1).sum(1).tolist()


@pytest.mark.parametrize(
    ("lengths", "batches_per_step"),
    [([20], 1), ([1, 2, 3, 14], 2), ([5, 5, 5, 5], 1), ([4, 9, 6, 1], 1)],
)
def test_xla_loop_reads_each_batch_once_however_steps_are_divided_into_calls(
    lengths, batches_per_step
) -> None:
    recorder = Recorder(batches_per_step)
    loop = xla_loops.StackedLoop(
        recorder.step, _batches(), steps=5, batches_per_step=batches_per_step
    )
    for length in lengths:
        loop(tf.constant(length))
    assert recorder.seen() == _sums(20, batches_per_step)


def test_xla_loop_trains_on_the_last_incomplete_group_of_batches_before_the_end_of_data_error() -> (
    None
):
    recorder = Recorder()
    loop = xla_loops.StackedLoop(recorder.step, _batches(7), steps=5)
    with pytest.raises(loop_fns.END_OF_DATA):
        loop(tf.constant(10))
    assert recorder.seen() == _sums(7)


def test_xla_loop_returns_the_outputs_of_the_last_step() -> None:
    loop = xla_loops.StackedLoop(lambda iterator: {"x": next(iterator)}, _batches(), steps=3)
    assert loop(tf.constant(4))["x"].numpy().tolist() == [12.0, 13.0, 14.0, 15.0]


def test_xla_loop_reads_a_newly_assigned_dataset_from_its_beginning() -> None:
    recorder = Recorder()
    loop = xla_loops.StackedLoop(recorder.step, _batches(), steps=5)
    loop(tf.constant(3))
    loop.read(_batches())
    loop(tf.constant(6))
    assert recorder.seen() == _sums(3) + _sums(6)


def test_xla_loop_fetches_each_group_of_batches_in_one_call_outside_xla() -> None:
    fetched = tf.Variable(0)

    def counting(fetch):
        def counted(iterator):
            tf.print("", end="", output_stream="file:///dev/null")  # XLA can't compile this op.
            fetched.assign_add(1)
            return fetch(iterator)

        return counted

    recorder = Recorder()
    loop = xla_loops.StackedLoop(recorder.step, _batches(), steps=5, wrap_fetch=counting)
    loop(tf.constant(12))
    assert fetched.numpy() == 3
    assert recorder.seen() == _sums(12)


@pytest.mark.parametrize(
    ("make_dataset", "reason"),
    [
        (lambda: tf.data.Dataset.range(10).batch(4), "drop_remainder"),
        (lambda: tf.data.Dataset.from_tensors(tf.constant(["a"])), "string"),
        (lambda: tf.data.Dataset.from_tensors(tf.ragged.constant([[1], [1, 2]])), "Ragged"),
        (lambda: "distributed", "replicas"),
        (_batches, None),
    ],
)
def test_xla_loop_states_a_reason_for_each_kind_of_data_that_it_does_not_support(
    make_dataset, reason
) -> None:
    found = xla_loops.why_not_stackable(make_dataset())
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize(
    ("shape", "steps_per_loop", "steps"),
    [([32], 1000, 200), ([32], 90, 90), ([32], 307, 200), ([2**20], 1000, 10), ([2**26], 1000, 1)],
)
def test_number_of_batches_per_xla_program_is_limited_by_steps_per_loop_and_memory(
    shape, steps_per_loop, steps
) -> None:
    spec = tf.TensorSpec(shape, tf.float32)
    assert xla_loops.steps_per_stack(spec, steps_per_loop) == steps


def test_xla_program_runs_fewer_steps_if_each_step_has_more_micro_batches() -> None:
    mebibyte = tf.TensorSpec([2**18], tf.float32)
    sizes = [xla_loops.steps_per_stack(mebibyte, 1000, micro_batches) for micro_batches in (1, 4)]
    assert sizes == [50, 10]
