"""State of a training step on several replicas or workers: seeds, moving statistics and counters.

Keras 3 keeps the state of dropout in variables that have the same value on all replicas, so all
replicas drop the same units. Also, an interrupted run would resume with different random numbers
than an uninterrupted one. `StepSeeds` derives the seeds of layers from the run's seed, the step and
the replica. XLA draws the same random bits as the other execution modes, but converts them to
different floating-point numbers. Importing this module makes uniform and normal numbers the same in
all modes.

In Keras 3 each replica keeps the batch normalization statistics of its own part of the batch, and
so does every layer that assigns to a weight without an `aggregation`. Evaluations on several
replicas would use all of these values, but a checkpoint contains only the statistics of the first
replica. `MovingStatistics` averages them.

Keras 3 adds to a variable by reading it, adding, and assigning the sum. Under a parameter server,
another worker may add to the variable between the read and the assignment, and that addition is
lost. About a tenth of the increments of an optimizer's `iterations` are lost this way, which
distorts learning-rate schedules, Adam's bias correction and the decay of averages. The counts and
sums of metrics are affected too. `make_atomic` prevents this.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging
from keras.src.backend.common import stateless_scope
from tensorflow.python.ops import control_flow_util, gen_stateless_random_ops_v2

from official_lite.common import keras_variables, terminal

__all__ = [
    "MovingStatistics",
    "StepSeeds",
    "is_random_state",
    "is_seed",
    "make_atomic",
    "numbers_for",
]

# Seed variables have various integer types, all of which can represent this maximum.
_MAX_SEED = 2**31 - 1

# The names of the state variables of `keras.random.SeedGenerator` and `tf.random.Generator`.
_STATE_NAMES = ("seed_generator_state", "StateVar")


class StepSeeds:
    """Seeder that sets the state of a model's `keras.random.SeedGenerator`s at the start of a step.

    Args:
        model: A built Keras model. For any other object, nothing is set.
        seed: The seed of the run.
        per_replica: Whether replicas get different states.
    """

    def __init__(
        self, model: keras.Model | tf.Module, seed: int, *, per_replica: bool = True
    ) -> None:
        self._states = [v for v in getattr(model, "variables", []) if is_seed(v)]
        self._seed = seed
        self._per_replica = per_replica

    @property
    def states(self) -> Sequence[keras.Variable]:
        """The states of the seed generators, which `set` assigns."""
        return self._states

    def set(self, step: tf.Tensor) -> None:
        """Set the states on the current replica.

        Args:
            step: The number of completed steps, int64.
        """
        if not self._states:
            return
        context = tf.distribute.get_replica_context()
        replica = context.replica_id_in_sync_group if self._per_replica else 0
        numbers = numbers_for(len(self._states), self._seed, step, replica)
        for state, number in zip(self._states, numbers, strict=True):
            state.assign(tf.cast(number, state.dtype))


def numbers_for(
    count: int, seed: int, step: tf.Tensor, replica: tf.Tensor | int
) -> list[tf.Tensor]:
    """Return states for `count` seed generators, each an int32 tensor of shape (2,).

    Args:
        count: The number of generators.
        seed: The seed of the run.
        step: The number of completed steps or batches, int64.
        replica: The index of the replica or of the input pipeline.
    """
    key = tf.stack([tf.constant(seed, tf.int64), step])
    numbers = tf.random.stateless_uniform(
        [count, 2],
        tf.random.experimental.stateless_fold_in(key, tf.cast(replica, tf.int64)),
        maxval=_MAX_SEED,
        dtype=tf.int32,
        # Set the algorithm explicitly, because the automatic choice may differ under XLA.
        alg="philox",
    )
    return list(tf.unstack(numbers))


def is_seed(variable: keras.Variable | tf.Variable) -> bool:
    """Return whether a variable is the state of a `keras.random.SeedGenerator`."""
    return keras_variables.path_of(variable).endswith("seed_generator_state")


def is_random_state(variable: tf.Variable) -> bool:
    """Return whether a variable is the state of a Keras or TensorFlow random number generator."""
    # Copies of a variable on other replicas have names such as `name/replica_1:0`.
    name = str(variable.name).split(":")[0].split("/replica_")[0]
    return name.endswith(_STATE_NAMES)


def _uniform_of(bits: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Convert the low bits of integers to numbers in [0, 1), as TensorFlow's kernels do.

    Args:
        bits: Random integers, uint32 or, for float64, uint64.
        dtype: The dtype of the result.
    """
    if dtype == tf.float64:
        # Swap the two 32-bit words of each integer, as TensorFlow's kernels do.
        high = tf.bitwise.left_shift(bits & 0xFFFFF, tf.constant(32, tf.uint64))
        low = tf.bitwise.right_shift(bits, tf.constant(32, tf.uint64))
        return tf.bitcast(high | low | (1023 << 52), tf.float64) - 1
    if dtype == tf.bfloat16:
        return tf.bitcast(tf.cast(bits & 0x7F, tf.uint16) | (127 << 7), tf.bfloat16) - 1
    return tf.bitcast((bits & 0x7FFFFF) | (127 << 23), tf.float32) - 1


def _uniform(shape: Any, dtype: tf.DType, draw_bits: Callable[..., tf.Tensor]) -> tf.Tensor:
    return _uniform_of(draw_bits(shape, dtype=_bits_of(dtype)), dtype)


def _normal(shape: Any, dtype: tf.DType, draw_bits: Callable[..., tf.Tensor]) -> tf.Tensor:
    computed = tf.float64 if dtype == tf.float64 else tf.float32
    size = tf.reduce_prod(tf.cast(shape, tf.int32))
    bits = draw_bits(tf.stack([(size + 1) // 2, 2]), dtype=_bits_of(computed))
    # The Box-Muller transform converts two uniform numbers into two normal numbers.
    radius, angle = tf.unstack(_uniform_of(bits, computed), axis=1)
    radius = tf.sqrt(-2 * tf.math.log(tf.maximum(radius, 1e-7)))
    angle = 2 * math.pi * angle
    pairs = tf.stack([radius * tf.sin(angle), radius * tf.cos(angle)], axis=1)
    return tf.cast(tf.reshape(tf.reshape(pairs, [-1])[:size], shape), dtype)


def _bits_of(dtype: tf.DType) -> tf.DType:
    return tf.uint64 if dtype == tf.float64 else tf.uint32


def _alike_in_xla(
    draw: Callable[..., tf.Tensor], make: Callable[..., tf.Tensor]
) -> Callable[..., tf.Tensor]:
    """Wrap a TensorFlow random op so that XLA returns the same numbers as the other modes."""

    @functools.wraps(draw)
    def draw_alike(
        shape: Any, key: Any, counter: Any, alg: Any, dtype: Any = tf.float32, name: Any = None
    ) -> tf.Tensor:
        wanted = tf.as_dtype(dtype)
        # XLA and the kernels already agree on uniform float16 numbers.
        is_alike = wanted == tf.float16 and make is _uniform
        graph = tf.compat.v1.get_default_graph()
        if is_alike or not control_flow_util.GraphOrParentsInXlaContext(graph):
            return draw(shape=shape, key=key, counter=counter, alg=alg, dtype=dtype, name=name)
        draw_bits = functools.partial(
            gen_stateless_random_ops_v2.stateless_random_uniform_full_int_v2,
            key=key,
            counter=counter,
            alg=alg,
        )
        return make(shape, wanted, draw_bits)

    return draw_alike


# Replace the functions in their module, where `tf.random.stateless_*`, `tf.random.Generator` and
# Keras look them up on each call.
for _name, _make in (
    ("stateless_random_uniform_v2", _uniform),
    ("stateless_random_normal_v2", _normal),
):
    _draw = getattr(gen_stateless_random_ops_v2, _name)
    setattr(gen_stateless_random_ops_v2, _name, _alike_in_xla(_draw, _make))


class MovingStatistics:
    """Synchronizer of the variables that each replica updates by itself.

    These are the variables without an `aggregation` that no optimizer updates, and the averages
    that an optimizer keeps of them. Most of them are moving averages, so averaging them after each
    step is equivalent to averaging the values that enter them. Integer variables are not averaged;
    their differences are only reported.

    Create the synchronizer in the strategy's scope.

    Args:
        checkpoint: The trainer's checkpoint, which contains everything that has to be the same on
            all replicas. Attributes may still be added to it.
    """

    def __init__(self, checkpoint: tf.train.Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._num_replicas = tf.distribute.get_strategy().num_replicas_in_sync

    def average(self) -> None:
        """Average the variables in one all-reduce; call this in every replica after a step."""
        context = tf.distribute.get_replica_context()
        if context.num_replicas_in_sync == 1:
            return
        self._warn_of_summed_values(context.num_replicas_in_sync)
        by_dtype: dict[tf.DType, list[tf.Variable]] = {}
        for variable in _written(map(keras_variables.raw, self._unsynchronized())):
            if variable.dtype.is_floating:
                by_dtype.setdefault(variable.dtype, []).append(variable)
        if not by_dtype:
            return
        flat = [
            tf.concat([tf.reshape(variable, [-1]) for variable in variables], axis=0)
            for variables in by_dtype.values()
        ]
        averages = context.all_reduce(tf.distribute.ReduceOp.MEAN, flat)
        for variables, average in zip(by_dtype.values(), averages, strict=True):
            sizes = [math.prod(variable.shape) for variable in variables]
            for variable, part in zip(variables, tf.split(average, sizes), strict=True):
                variable.assign(tf.reshape(part, variable.shape))

    def warn_of_differences(self) -> None:
        """Warn about variables that still differ between replicas; call this after a step."""
        if self._num_replicas == 1:
            return
        paths = [
            keras_variables.path_of(variable)
            for variable in self._unsynchronized()
            if not is_random_state(keras_variables.raw(variable))
            and _differs(keras_variables.local_values(variable))
        ]
        if paths:
            logging.warning(
                "Each replica has its own value of %s, because the training step assigns to these "
                "variables on every replica. Checkpoints store only the value of the first "
                "replica, so a restored model evaluates differently. Create the variables with "
                "`add_weight(…, aggregation='only_first_replica')`, which keeps the value of the "
                "first replica on all of them. To count over all replicas, call `assign_add` of a "
                "`tf.Variable` with `aggregation=tf.VariableAggregation.SUM`.",
                ", ".join(paths),
            )

    def _warn_of_summed_values(self, num_replicas: int) -> None:
        """Warn about Keras variables of which a traced step sums whole values over replicas."""
        if tf.executing_eagerly():
            return
        parts = tf.train.TrackableView(self._checkpoint).descendants()
        of_optimizers = _of_optimizers(parts)
        summed = {
            _id(part): part
            for part in parts
            if isinstance(part, keras.Variable)
            and _sums_assigned_values(part)
            and _id(part) not in of_optimizers
        }
        written = _written(map(keras_variables.raw, summed.values()))
        if written:
            terminal.warn_once(
                "The training step assigns to %s with the aggregation 'sum' on %d replicas. "
                "TensorFlow adds up the assigned values, and Keras assigns the new total for "
                "`assign_add`, so each step would multiply the old value by the number of "
                "replicas. Use the aggregation 'only_first_replica' for the value of the first "
                "replica, or, to count over all replicas, a `tf.Variable` with "
                "`aggregation=tf.VariableAggregation.SUM`.",
                ", ".join(keras_variables.path_of(summed[id(variable)]) for variable in written),
                num_replicas,
            )

    def _unsynchronized(self) -> Iterator[Any]:
        """Yield the variables that may differ, because each replica assigns to its own copy."""
        parts = tf.train.TrackableView(self._checkpoint).descendants()
        known = _of_optimizers(parts)
        for part in parts:
            if not keras_variables.is_variable(part):
                continue
            variable = keras_variables.raw(part)
            if (
                id(variable) not in known
                and variable.aggregation == tf.VariableAggregation.NONE
                and variable.synchronization != tf.VariableSynchronization.ON_READ
            ):
                known.add(id(variable))
                yield part


def _of_optimizers(parts: Iterable[Any]) -> set[int]:
    """Return the `id` of each variable that optimizers own or update.

    These variables have the same value on all replicas, except for averages of variables that no
    optimizer updates, which are not returned.
    """
    found: set[int] = set()
    averages: dict[int, int] = {}
    for part in parts:
        if isinstance(part, keras.optimizers.Optimizer):
            own = [*part.variables, *getattr(part, "_trainable_variables", ())]
            found.update(map(_id, own))
            pairs = getattr(part, "shadows", ())
            averages |= {_id(average): _id(weight) for weight, average in pairs}
    return found - {average for average, weight in averages.items() if weight not in found}


def _id(variable: Any) -> int:
    return id(keras_variables.raw(variable))


def _sums_assigned_values(variable: keras.Variable) -> bool:
    raw = keras_variables.raw(variable)
    # Metrics store one value per replica, which is summed only when it is read.
    return (
        raw.aggregation == tf.VariableAggregation.SUM
        and raw.synchronization != tf.VariableSynchronization.ON_READ
    )


def _written(variables: Iterable[tf.Variable]) -> list[tf.Variable]:
    """Return the variables that the traced step writes, or all variables in eager execution."""
    if tf.executing_eagerly():
        return list(variables)
    graph = tf.compat.v1.get_default_graph()
    handles = {id(handle) for handle in keras_variables.written_handles(graph)}
    return [
        variable
        for variable in variables
        if any(id(copy.handle) in handles for copy in keras_variables.local_values(variable))
    ]


def _differs(copies: Sequence[tf.Variable]) -> bool:
    first, *others = [copy.numpy() for copy in copies]
    return any(not np.array_equal(first, other) for other in others)


def make_atomic(variables: Iterable[Any]) -> None:
    """Make additions to the given Keras variables atomic; other objects are left unchanged.

    This covers `variable.assign_add(x)` and `variable.assign(variable + x)`. Each variable remains
    the same object, but its class becomes a subclass of its original class. Calling this function
    twice has no further effect.
    """
    for variable in variables:
        if isinstance(variable, keras.Variable) and not isinstance(variable, _AtomicCounters):
            variable_cls: Any = type(variable)
            variable.__class__ = _atomic_class(variable_cls)


class _AtomicCounters:
    """Mixin that makes additions to a Keras variable atomic; list it before the variable class."""

    # The underlying `tf.Variable`, which mixed precision does not cast.
    _value: tf.Variable
    # The result of the latest addition `variable + x`, and `x`.
    _sum: tuple[Any, Any] | None = None

    def __add__(self, other: tf.Tensor | float) -> tf.Tensor:
        variable: Any = super()
        result = variable.__add__(other)
        self._sum = result, other
        return result

    def assign(self, value: tf.Tensor) -> tf.Tensor:
        """Assign the value; if it is the latest result of `variable + x`, add `x` instead."""
        last_sum, self._sum = self._sum, None
        if last_sum is None or value is not last_sum[0] or stateless_scope.in_stateless_scope():
            variable: Any = super()
            return variable.assign(value)
        self._add(last_sum[1])
        return value

    def assign_add(self, value: tf.Tensor) -> tf.Tensor:
        """Add the value atomically."""
        if stateless_scope.in_stateless_scope():
            variable: Any = super()
            return variable.assign_add(value)
        return self._add(value)

    def _add(self, value: tf.Tensor) -> tf.Tensor:
        value = keras.ops.convert_to_tensor(value)
        value = tf.broadcast_to(tf.cast(value, self._value.dtype), self._value.shape)
        return self._value.assign_add(value)


@functools.cache
def _atomic_class(variable_cls: type[keras.Variable]) -> type[keras.Variable]:
    # Keep the name of the class, which is recorded when a variable is saved.
    namespace = {"__module__": variable_cls.__module__, "__qualname__": variable_cls.__qualname__}
    return type(variable_cls.__name__, (_AtomicCounters, variable_cls), namespace)
