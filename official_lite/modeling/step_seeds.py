"""Random seeds of layers, derived from the run's seed, the step and the replica.

Keras 3 keeps the state of dropout in variables that have the same value on all replicas, so all
replicas drop the same units. Also, an interrupted run would resume with different random numbers
than an uninterrupted one.
"""

import keras
import tensorflow as tf

__all__ = ["StepSeeds", "is_seed"]

# Seed variables have various integer types, all of which can represent this maximum.
_MOST = 2**31 - 1


class StepSeeds:
    """Seeder that sets the state of a model's `keras.random.SeedGenerator`s at the start of a step.

    Args:
        model: A built Keras model. For any other object, nothing is set.
        seed: The seed of the run.
    """

    def __init__(self, model: keras.Model | tf.Module, seed: int) -> None:
        self._states = [v for v in getattr(model, "variables", []) if is_seed(v)]
        self._seed = seed

    def set(self, step: tf.Tensor) -> None:
        """Set the states on the current replica.

        Args:
            step: The number of completed steps, int64.
        """
        if not self._states:
            return
        context = tf.distribute.get_replica_context()
        replica = tf.cast(context.replica_id_in_sync_group, tf.int64)
        key = tf.stack([tf.constant(self._seed, tf.int64), step])
        numbers = tf.random.stateless_uniform(
            [len(self._states), 2],
            tf.random.experimental.stateless_fold_in(key, replica),
            maxval=_MOST,
            dtype=tf.int32,
            # Name the algorithm, so that it is the same with and without XLA.
            alg="philox",
        )
        for state, number in zip(self._states, tf.unstack(numbers), strict=True):
            state.assign(tf.cast(number, state.dtype))


def is_seed(variable: keras.Variable) -> bool:
    """Return whether a variable of a Keras model is the state of a `SeedGenerator`."""
    return str(variable.path).endswith("seed_generator_state")
