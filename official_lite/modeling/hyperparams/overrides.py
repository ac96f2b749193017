"""Building blocks of overrides: located mappings, list items by index, and config positions."""

from __future__ import annotations

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
    """Pair each new element with the current element to merge it into, or with None.

    Lists of equal length are merged element by element. Otherwise the new list replaces the old
    one.
    """
    if isinstance(value, ListItems):
        return value.over(current, cursor)
    if isinstance(current, list | tuple) and len(current) == len(value):
        return list(zip(value, current, strict=True))
    return [(element, None) for element in value]


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
