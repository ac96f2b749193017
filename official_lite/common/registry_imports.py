"""The Model Garden's module for registration by import, which registers nothing here.

An application lists its imports in its own `registry_imports.py` or passes `--import my_package` on
the command line. An installed package declares an entry point in the group
`official_lite.experiments`.
"""
