"""The outputs of an evaluation step on all workers."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from official_lite.core import predictor

__all__ = ["create_gather"]

Outputs = Mapping[str, Any]


def create_gather(strategy: tf.distribute.Strategy) -> Callable[[Outputs], Outputs]:
    """Create a function that returns the outputs of a step on the replicas of all workers.

    All workers must call the function after each step, with the outputs of their own replicas: each
    output is a tuple with one element per replica. The result has the same structure, with one
    element for each replica of the first worker, then of the second, and so on. All other values
    are those of this worker.
    """
    exchange = predictor.create_exchange(strategy)

    def gather(outputs: Outputs) -> Outputs:
        leaves = tf.nest.flatten(outputs, expand_composites=True)
        own = {str(place): leaf for place, leaf in enumerate(leaves) if tf.is_tensor(leaf)}
        parts = exchange([own]) if own else []
        if len(parts) < 2:
            return outputs
        by_worker = [
            tf.nest.pack_sequence_as(
                outputs,
                [
                    tf.convert_to_tensor(part[str(place)]) if str(place) in own else leaf
                    for place, leaf in enumerate(leaves)
                ],
                expand_composites=True,
            )
            for part in parts
        ]
        joined: Outputs = _join(outputs, by_worker)
        return joined

    return gather


def _join(own: Any, by_worker: Sequence[Any]) -> Any:
    if isinstance(own, Mapping):
        return {name: _join(own[name], [one[name] for one in by_worker]) for name in own}
    if isinstance(own, tuple) and not any(map(tf.nest.is_nested, own)):
        return tuple(itertools.chain.from_iterable(by_worker))
    if isinstance(own, tuple | list):
        parts = (_join(part, column) for part, *column in zip(own, *by_worker, strict=True))
        is_named = hasattr(own, "_fields")
        return type(own)(*parts) if is_named else type(own)(parts)
    return own
