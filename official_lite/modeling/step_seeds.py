"""Random seeds of layers, derived from the run's seed, the step and the replica.

Keras 3 keeps the state of dropout in variables that have the same value on all replicas, so all
replicas drop the same units. Also, an interrupted run would resume with different random numbers
than an uninterrupted one.
"""

import keras
import tensorflow as tf

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
