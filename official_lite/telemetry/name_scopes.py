"""Prefixes of names."""

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
    """Puts `name/` before the names of everything that is put in within.

    ::

        with telemetry.name_scope("encoder"):
            telemetry.put_scalar("norm", norm)  # encoder/norm
    """
    # The threads of replicas take turns in the middle of their scopes, so each has its own; but
    # they are to see the scopes around `strategy.run`, which another thread has opened.
    names = _of_replica.names if _runs_on_a_replica() else _shared
    names.append(name)
    try:
        yield
    finally:
        names.pop()


def current_name_scope() -> str:
    """The prefix of a name that is put in here and now: empty, or with a `/` at its end."""
    return "".join(f"{name}/" for name in (*_shared, *_of_replica.names))


def _runs_on_a_replica() -> bool:
    return bool(tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context())
