"""Random seeds of layers, derived from the run's seed, the step and the replica.

Keras 3 keeps the state of dropout in variables that have the same value on all replicas, so all
replicas drop the same units. Also, an interrupted run would resume with different random numbers
than an uninterrupted one.

XLA draws the same random bits as the other modes, but makes other floating-point numbers of them.
While this module is imported, uniform and normal numbers are the same in all modes.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.ops import control_flow_util, gen_stateless_random_ops_v2

__all__ = ["StepSeeds", "is_random_state", "is_seed", "numbers_for"]

# Seed variables have various integer types, all of which can represent this maximum.
_MOST = 2**31 - 1

# The states of `keras.random.SeedGenerator` and `tf.random.Generator`.
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
        maxval=_MOST,
        dtype=tf.int32,
        # Name the algorithm, so that it is the same with and without XLA.
        alg="philox",
    )
    return list(tf.unstack(numbers))


def is_seed(variable: keras.Variable) -> bool:
    """Return whether a variable of a Keras model is the state of a `SeedGenerator`."""
    return str(variable.path).endswith("seed_generator_state")


def is_random_state(variable: tf.Variable) -> bool:
    """Return whether a variable is the state of a Keras or TensorFlow generator of numbers."""
    # The copies of other replicas are called `name/replica_1:0`.
    name = str(variable.name).split(":")[0].split("/replica_")[0]
    return name.endswith(_STATE_NAMES)


def _uniform_of(bits: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return numbers in [0, 1) as TensorFlow's kernels make them: of the last bits, not the first.

    Args:
        bits: Random integers, uint32 or, for float64, uint64.
        dtype: The dtype of the result.
    """
    if dtype == tf.float64:
        # The kernels take the two words of an integer in the other order.
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
    # The method of Box and Muller makes two numbers of two.
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
    """Wrap an op of TensorFlow so that XLA computes the numbers of the other modes."""

    @functools.wraps(draw)
    def draw_alike(
        shape: Any, key: Any, counter: Any, alg: Any, dtype: Any = tf.float32, name: Any = None
    ) -> tf.Tensor:
        wanted = tf.as_dtype(dtype)
        # XLA and the kernels already agree on uniform numbers of half precision.
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


# `tf.random.stateless_*`, `tf.random.Generator` and Keras look these functions up on each call.
for _name, _make in (
    ("stateless_random_uniform_v2", _uniform),
    ("stateless_random_normal_v2", _normal),
):
    _draw = getattr(gen_stateless_random_ops_v2, _name)
    setattr(gen_stateless_random_ops_v2, _name, _alike_in_xla(_draw, _make))
