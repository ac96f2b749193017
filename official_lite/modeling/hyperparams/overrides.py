"""Building blocks of overrides: located mappings, list items by index, and config positions."""

from __future__ import annotations

import dataclasses
import numbers
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from official_lite.common import errors


class LocatedDict(dict[str, Any]):
    """Mapping read from a text that records the line of each key for error messages.

    `empty` holds the keys after whose colon the text has nothing, not even `null`.
    """

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.lines: dict[str, int] = {}
        self.empty: set[str] = set()


class ListItems(dict[int, Any]):
    """New values for some elements of a list, by index: the effect of `a[0]=1,a[2].b=3` on `a`."""

    def over(self, current: object, cursor: Cursor) -> list[tuple[Any, Any]]:
        """Return a pair (new value, current value) for each element of the resulting list.

        An index equal to the length appends.

        Raises:
          ConfigValueError: An index is greater than the length.
        """
        present = list(current) if isinstance(current, list | tuple) else []
        pairs = [(value, value) for value in present]
        for index in sorted(self):
            if index > len(pairs):
                raise errors.ConfigValueError(
                    f"{cursor.item(index)}: the list has {len(pairs)} elements, so the next free "
                    f"index is {len(pairs)}. Pass all values of the list in order."
                )
            old = present[index] if index < len(present) else None
            pairs[index : index + 1] = [(self[index], old)]
        return pairs


@dataclasses.dataclass(frozen=True)
class Text:
    """Value on a command line: a field takes it as YAML, or as text if it only accepts that.

    Attributes:
      text: The text.
      parsed: The value that the text is in YAML.
      problem: Why the text is no YAML; None if it is.
    """

    text: str
    parsed: Any = None
    problem: errors.ConfigValueError | None = None

    @property
    def value(self) -> Any:
        """The value for a key of any type."""
        return self.parsed if self.problem is None else self.text


@dataclasses.dataclass(frozen=True)
class Replaced:
    """Current value that a new value replaces: only the classes of its configs are kept."""

    value: Any


class Cursor(NamedTuple):
    """Position in a config tree where an override applies, and whether it is strict.

    Attributes:
      root: The name of the class at the root of the tree.
      path: The dotted path from the root.
      source: File and line, if the value was read from a file.
      strict: Whether new keys are errors.
    """

    root: str
    path: str = ""
    source: str = ""
    strict: bool = True

    def key(self, key: str, mapping: Mapping[str, Any] | None = None) -> Cursor:
        """Return the cursor one key deeper; a `LocatedDict` also provides the file and line."""
        source = self.source
        if isinstance(mapping, LocatedDict):
            source = f"{mapping.source}:{mapping.lines[key]}"
        path = f"{self.path}.{key}" if self.path else str(key)
        return Cursor(self.root, path, source, self.strict)

    def item(self, position: int) -> Cursor:
        return self._replace(path=f"{self.path}[{position}]")

    def __str__(self) -> str:
        source = f" ({self.source})" if self.source else ""
        return (f"`{self.path}` of {self.root}" if self.path else self.root) + source


def pair_elements(
    value: list[Any] | tuple[Any, ...] | ListItems, current: object, cursor: Cursor
) -> list[tuple[Any, Any]]:
    """Pair each new element with the current element that it changes or replaces, or with None.

    `ListItems` are merged into the elements at their positions. A list replaces the old one.
    """
    if isinstance(value, ListItems):
        return value.over(current, cursor)
    current = current.value if isinstance(current, Replaced) else current
    replaced = [Replaced(old) for old in current] if isinstance(current, list | tuple) else []
    rest = [None] * max(0, len(value) - len(replaced))
    return list(zip(value, [*replaced, *rest], strict=False))


def merge(old: Any, new: Any, cursor: Cursor) -> Any:
    """Return one override with the effect of two, whose order does not matter.

    Of two values for the same field, the new one counts.

    Raises:
      ConfigValueError: One override sets a value below a path, to which the other one sets a value
          that has nothing below it.
    """
    if not isinstance(old, Mapping) and not isinstance(new, Mapping):
        return new
    old, new = (one.value if isinstance(one, Text) else one for one in (old, new))
    if isinstance(old, ListItems) and isinstance(new, list | tuple):
        old, new = new, old
    if isinstance(old, list | tuple) and isinstance(new, ListItems):
        return [
            merge(present, value, cursor) if _are_mergeable(present, value) else value
            for value, present in new.over(old, cursor)
        ]
    if not _are_mergeable(old, new):
        raise errors.ConfigValueError(
            f"{cursor}: the same override sets it and also a part of it. Set only one of them."
        )
    is_of_items = isinstance(old, ListItems)
    merged: dict[Any, Any] = ListItems(old) if is_of_items else dict(old)
    for key, value in new.items():
        below = cursor.item(key) if is_of_items else cursor.key(key)
        merged[key] = merge(merged[key], value, below) if key in merged else value
    return merged


def _are_mergeable(old: object, new: object) -> bool:
    is_each = isinstance(old, Mapping) and isinstance(new, Mapping)
    return is_each and isinstance(old, ListItems) == isinstance(new, ListItems)


def unboxed(value: Any) -> Any:
    """Return a scalar of NumPy as the same scalar of Python, and any other value unchanged."""
    # A program that has not imported NumPy has none of its scalars.
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.generic):
        return value
    plain = value.item()
    # Python has no counterpart of `longdouble`.
    return float(plain) if isinstance(plain, numbers.Real) and type(plain) is type(value) else plain


def rename(
    mapping: Mapping[str, Any], aliases: Mapping[str, str], cursor: Cursor
) -> Mapping[str, Any]:
    """Return the mapping with its keys renamed by `aliases` (alias -> key); line numbers are kept.

    Raises:
      ConfigValueError: Two keys refer to the same field.
    """
    if not aliases.keys() & mapping.keys():
        return mapping
    renamed = LocatedDict(mapping.source) if isinstance(mapping, LocatedDict) else {}
    origins: dict[str, str] = {}
    for given, value in mapping.items():
        key = aliases.get(given, given)
        if key in origins:
            raise errors.ConfigValueError(
                f"{cursor.key(given, mapping)}: `{origins[key]}` and `{given}` are the same "
                "field. Set only one of them."
            )
        origins[key] = given
        renamed[key] = value
        if isinstance(renamed, LocatedDict) and isinstance(mapping, LocatedDict):
            renamed.lines[key] = mapping.lines[given]
            renamed.empty |= {key} if given in mapping.empty else set()
    return renamed
