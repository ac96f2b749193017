"""A context that makes imports of large libraries faster."""

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["lasting_imports"]


@contextlib.contextmanager
def lasting_imports() -> Iterator[None]:
    """Exclude everything that is imported inside the context from garbage collection.

    TensorFlow and Keras create some 300,000 objects that live until the process exits. The
    collector would visit them several times during the import, in later collections, and again at
    exit. This takes a fifth of the import time and a quarter of a second for each later collection.

    Use this at the start of a program: objects that are garbage by then are never collected.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
