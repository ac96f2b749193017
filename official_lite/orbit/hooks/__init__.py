"""Hooks: Python of the user's own between the steps. `hook` has the order of the calls."""

from official_lite.orbit.hooks.hook import GraphHook, Hook

__all__ = [
    "GraphHook",
    "Hook",
]
