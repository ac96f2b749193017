"""The Model Garden's hook for registration by import; nothing is registered here.

An application lists its imports in a `registry_imports.py` of its own, or passes
`--import my_package` on the command line; an installed package has an entry point in the group
`official_lite.experiments`.
"""
