"""Name scopes, which add prefixes to the names of recorded values."""

import contextlib
import threading
from collections.abc import Iterator

import tensorflow as tf

__all__ = ["current_name_scope", "name_scope"]

_shared: list[str] = []


class _OfReplica(threading.local):
    def __init__(self) -> None:
        self.names: list[str] = []


_of_replica = _OfReplica()


@contextlib.contextmanager
def name_scope(name: str) -> Iterator[None]:
    """Prepend `name/` to the names of all values recorded within the context.

    ::

        with telemetry.name_scope("encoder"):
            telemetry.put_scalar("norm", norm)  # encoder/norm
    """
    # Replica threads may be switched in the middle of a scope, so each thread has its own scopes.
    # Scopes opened around `strategy.run` belong to another thread and apply to all replicas.
    names = _of_replica.names if _runs_on_a_replica() else _shared
    names.append(name)
    try:
        yield
    finally:
        names.pop()


def current_name_scope() -> str:
    """Return the current prefix: empty, or ending with `/`."""
    return "".join(f"{name}/" for name in (*_shared, *_of_replica.names))


def _runs_on_a_replica() -> bool:
    return bool(tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context())
