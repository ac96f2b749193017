"""Random numbers of layers as a function of the run's seed, the step and the replica.

Keras 3 keeps the state of dropout in variables of which all replicas have the same value, so that
they drop the same units; and an interrupted run goes on with others than it would have drawn.
"""

from typing import Any

import tensorflow as tf

__all__ = ["StepSeeds", "is_seed"]

# Seeds are of several integer types, all of which hold this.
_MOST = 2**31 - 1


class StepSeeds:
    """Gives every `keras.random.SeedGenerator` of a model its state at the beginning of a step.

    Args:
        model: A built Keras model; of anything else nothing is set.
        seed: That of the run.
    """

    def __init__(self, model: Any, seed: int) -> None:
        self._states = [v for v in getattr(model, "variables", []) if is_seed(v)]
        self._seed = seed

    def set(self, step: tf.Tensor) -> None:
        """Sets them on one replica.

        Args:
            step: The steps completed, int64.
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
            # The same one with XLA and without.
            alg="philox",
        )
        for state, number in zip(self._states, tf.unstack(numbers), strict=True):
            state.assign(tf.cast(number, state.dtype))


def is_seed(variable: Any) -> bool:
    """Whether a variable of a Keras model is the state of a `SeedGenerator`."""
    return str(variable.path).endswith("seed_generator_state")
