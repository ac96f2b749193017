"""Names for types that Python can't spell out."""

from typing import Any, TypeAlias

__all__ = ["Nest"]

# Only the user's dataset, model and task know how their values are nested: type checkers can't
# follow the structure, so these types accept any structure.
Nest: TypeAlias = Any
"""A tensor, an array, or any nesting of tuples, lists and dicts of them."""
