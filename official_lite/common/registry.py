"""Registries: nested dictionaries of things that a config can name, with functions to use them.

A name is a path such as `vision/image_classification/resnet18`, in which each part except the last
is a group. Keys that are not strings, such as config classes, are stored unchanged::

    _TASKS: registry.Collection = {}

    @registry.register(_TASKS, "vision/digits")
    class DigitsTask: ...

    registry.lookup(_TASKS, "vision/digits")
"""

from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

from official_lite.common import errors, qualnames, suggestions

__all__ = ["Collection", "DuplicateNameError", "import_hint", "lookup", "names", "register"]

Collection = dict[Any, Any]
Registered = TypeVar("Registered")

import_hint = (
    "Make sure that the module that registers it is imported: pass `--import my_package`, or "
    "import it in `registry_imports.py` or in your code."
)


class DuplicateNameError(errors.ConfigError, KeyError):
    """A name that is registered for two different things."""


def register(
    registered_collection: Collection, reg_key: Hashable
) -> Callable[[Registered], Registered]:
    """Return a decorator that registers an object under `reg_key` and returns it unchanged.

    An object is identified by its module and qualified name. Registering it again replaces the old
    one, so reloading a module or running a notebook cell twice works.

    Raises:
        DuplicateNameError: (a `KeyError`) The key, or a part of its path, already names something
            else.
        ConfigValueError: The name has an empty part, `..` or a control character.
    """

    def decorator(registered: Registered) -> Registered:
        group, leaf = _group_of(registered_collection, reg_key)
        if leaf in group and not _is_same(group[leaf], registered):
            raise DuplicateNameError(
                f"{_shown(reg_key)} is already registered as {_described(group[leaf])}. Register "
                f"{_described(registered)} under another name."
            )
        group[leaf] = registered
        return registered

    return decorator


def lookup(registered_collection: Collection, reg_key: Hashable) -> Any:
    """Return the object that is registered under `reg_key`.

    Raises:
        UnknownNameError: (a `LookupError`) The name is unknown, names a group, or continues beyond
            a registered name. The message suggests the nearest names.
    """
    if not isinstance(reg_key, str):
        if reg_key in registered_collection:
            return registered_collection[reg_key]
        raise _unknown(registered_collection, reg_key)
    found: Any = registered_collection
    for part in reg_key.split("/"):
        if not isinstance(found, dict) or part not in found:
            raise _unknown(registered_collection, reg_key)
        found = found[part]
    if isinstance(found, dict):
        raise errors.UnknownNameError(
            f"{reg_key!r} is a group of names, not a name. "
            f"{suggestions.did_you_mean('', (f'{reg_key}/{name}' for name in names(found)))}"
        )
    return found


def names(registered_collection: Collection) -> list[str]:
    """Return all registered names in alphabetical order, without keys that are not strings."""
    return sorted(_walk(registered_collection))


def _walk(collection: Collection) -> Iterator[str]:
    for key, value in collection.items():
        if not isinstance(key, str):
            continue
        if isinstance(value, dict):
            yield from (f"{key}/{name}" for name in _walk(value))
        else:
            yield key


def _group_of(collection: Collection, key: Hashable) -> tuple[Collection, Hashable]:
    if not isinstance(key, str):
        return collection, key
    *group_names, leaf = _checked_parts(key)
    group = collection
    for depth, part in enumerate(group_names, start=1):
        group = group.setdefault(part, {})
        if not isinstance(group, dict):
            prefix = "/".join(group_names[:depth])
            raise DuplicateNameError(
                f"{key!r} can't be registered: {prefix!r} is already registered as "
                f"{_described(group)}, so it can't be a group of names as well."
            )
    return group, leaf


def _checked_parts(name: str) -> list[str]:
    parts = name.split("/")
    if not name.isprintable() or any(part in ("", ".", "..") for part in parts):
        raise errors.ConfigValueError(
            f"{name!r} is not a valid name. Expected parts separated by single slashes, such as "
            "`vision/digits`, without `..` or control characters."
        )
    return parts


def _is_same(old: Any, new: Any) -> bool:
    if old is new or (isinstance(old, str) and old == new):
        return True
    identity = _identity(new)
    return identity is not None and identity == _identity(old)


def _identity(thing: Any) -> tuple[str, str] | None:
    """Return module and qualified name; None for objects without a name of their own.

    A lambda is such an object.
    """
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if module is None or name is None or "<" in name:
        return None
    return module, name


def _unknown(collection: Collection, key: Hashable) -> errors.UnknownNameError:
    if isinstance(key, str):
        answer = suggestions.did_you_mean(key, names(collection))
    else:
        # `did_you_mean` adds the backticks itself.
        others = (_shown(other).strip("`") for other in collection if not isinstance(other, str))
        answer = suggestions.did_you_mean(_shown(key).strip("`"), others)
    message = f"{_shown(key)} is not registered. {answer} {import_hint}"
    return errors.UnknownNameError(message.replace("  ", " "))


def _shown(key: Hashable) -> str:
    return repr(key) if isinstance(key, str) else _described(key)


def _described(thing: Any) -> str:
    if isinstance(thing, dict):
        return "a group of names"
    if isinstance(thing, str):
        return f"`{thing}`"
    return f"`{qualnames.name_of(thing)}`" if hasattr(thing, "__qualname__") else repr(thing)
