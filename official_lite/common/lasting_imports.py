"""Imports of large libraries in less time."""

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["lasting_imports"]


@contextlib.contextmanager
def lasting_imports() -> Iterator[None]:
    """Keeps the garbage collector away from what is imported inside.

    TensorFlow and Keras make some 300,000 objects that stay to the end. The collector looks at all
    of them several times while they are made, again whenever it comes by later, and once more at
    the end of the process: a fifth of the time of the import, and a quarter of a second each time.

    For programs, at their beginning: whatever is garbage by then is never collected.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
