"""The names that Keras gives to layers, metrics and optimizers without a name of their own.

Keras numbers them through the whole process: `dense` in the first model, `dense_1` in the next one.
What a run writes and what its config selects by name must not depend on what was built before it.
"""

import collections
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from keras.src.backend.common import global_state

__all__ = ["built", "counts", "fresh"]

Built = TypeVar("Built")

# Where Keras counts the objects without a name, by the snake case of their class.
_COUNTERS = "object_name_uids"


def counts() -> Mapping[str, int]:
    """Return the number of objects that Keras has named, by the snake case of their class."""
    return dict(global_state.get_global_attribute(_COUNTERS) or {})


@contextlib.contextmanager
def fresh() -> Iterator[None]:
    """Let Keras count objects without a name from zero, as in a new process.

    Afterwards, it continues above all numbers so far, so that layers which are added to a model
    later have other names.
    """
    before = counts()
    _set_counts({})
    try:
        yield
    finally:
        within = counts()
        names = before.keys() | within.keys()
        _set_counts({name: max(before.get(name, 0), within.get(name, 0)) for name in names})


def built(build: Callable[[], Built]) -> Built:
    """Return what a function builds, under the names that it gets in a new process.

    If it extends a model that was built before, a name may occur twice, which Keras refuses. The
    function is then called again, with the names that Keras gives otherwise.

    Args:
        build: Builds a model or an optimizer. A call that fails must have no lasting effects.
    """
    is_new = not counts()
    try:
        with fresh():
            return build()
    except ValueError:
        if is_new:
            raise
    return build()


def _set_counts(numbers: Mapping[str, int]) -> None:
    global_state.set_global_attribute(_COUNTERS, collections.defaultdict(int, numbers))
