"""Hooks: user-defined Python code between steps. The module `hook` documents the call order."""

from official_lite.common import lazy_imports

__getattr__, __all__ = lazy_imports.attach_stub(__name__, __file__)
