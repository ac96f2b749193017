"""Hooks: user-defined Python code between steps. The module `hook` documents the call order."""

from official_lite.common import plugins

__getattr__, __all__ = plugins.attach_stub(__name__, __file__)
