"""Functions for nested dictionaries, such as the logs of several tasks."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_lite.common import errors, suggestions


def get_leaf_nested_dict(d: Mapping[str, Any], keys: Sequence[str]) -> Any:
    """Return the value at a path of keys.

    Raises:
        errors.UnknownKeyError: The path does not exist or ends at a dictionary.
    """
    leaf: Any = d
    for key in keys:
        if not isinstance(leaf, Mapping) or key not in leaf:
            known = leaf if isinstance(leaf, Mapping) else ()
            raise errors.UnknownKeyError(
                f"Path not exist while traversing the dictionary: `{'|'.join(keys)}`. "
                f"{suggestions.did_you_mean(key, known)}"
            )
        leaf = leaf[key]
    if isinstance(leaf, Mapping):
        raise errors.UnknownKeyError(
            f"The value extracted with keys `{'|'.join(keys)}` is a dictionary, not a leaf. "
            f"Append one of its keys: {', '.join(leaf)}."
        )
    return leaf


def cast_leaf_nested_dict(d: dict[str, Any], cast_fn: Callable[[Any], Any]) -> dict[str, Any]:
    """Replace each leaf with `cast_fn(leaf)` in place, and return the dictionary."""
    for key, value in d.items():
        if isinstance(value, dict):
            cast_leaf_nested_dict(value, cast_fn)
        else:
            d[key] = cast_fn(value)
    return d


def flatten_nested_dict(
    d: Mapping[str, Any],
    separator: str,
    is_leaf: Callable[[Any], bool] = lambda value: not isinstance(value, Mapping),
) -> dict[str, Any]:
    """Return the leaves by their paths, in order.

    Args:
        d: A dictionary of dictionaries.
        separator: The text between the keys of a path.
        is_leaf: A function that returns whether a value is a leaf. It must return True for
            everything except dictionaries. By default, dictionaries are never leaves, so empty
            dictionaries are omitted.
    """
    flat: dict[str, Any] = {}
    for key, value in d.items():
        if is_leaf(value):
            flat[str(key)] = value
        else:
            leaves = flatten_nested_dict(value, separator, is_leaf)
            flat |= {f"{key}{separator}{path}": leaf for path, leaf in leaves.items()}
    return flat


def filter_leaf_nested_dict(
    d: Mapping[str, Any], predicate: Callable[[Any], bool]
) -> dict[str, Any]:
    """Return a new dictionary with only the leaves that satisfy the predicate."""
    return {
        key: filter_leaf_nested_dict(value, predicate) if isinstance(value, Mapping) else value
        for key, value in d.items()
        if isinstance(value, Mapping) or predicate(value)
    }


def unique_keys(names: Sequence[str]) -> list[str]:
    """Return the names with a number appended to each repetition: `head`, `head_1`, `head_2`."""
    keys: list[str] = []
    for name in names:
        numbered = (f"{name}_{number}" for number in itertools.count(1))
        keys.append(next(key for key in itertools.chain([name], numbered) if key not in keys))
    return keys
