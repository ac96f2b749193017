"""The registry at its Model Garden path; see `official_lite.common.plugins`.

The implementation is in the lowest layer because hooks, writers and strategies are registered too.
"""

from official_lite.common.plugins import lookup, names, register

__all__ = ["lookup", "names", "register"]
