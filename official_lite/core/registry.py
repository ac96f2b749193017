"""The registry under its Model Garden path; see `official_lite.common.registry`.

It lives in the lowest layer because hooks, writers and strategies have names too.
"""

from official_lite.common.registry import lookup, names, register

__all__ = ["lookup", "names", "register"]
