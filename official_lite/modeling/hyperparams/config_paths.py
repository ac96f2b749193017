"""Configs seen as flat lists of `a.b.c = value`: setting, listing, comparing, rewriting."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from official_lite.common import errors
from official_lite.modeling.hyperparams import csv_override, params_dict, yaml_io


def set_by_path(config: params_dict.ParamsDict, path: str, value: str) -> None:
    """Does what `--set path=value` says; the text is read as in YAML and typed by the field.

    A field that takes text gets the text as it stands if it can't hold what YAML makes of it, so
    `task.name=010` needs no quotes. `[0]` indexes a list; an index just behind its end appends.

    Raises:
      ConfigError: an unknown key, a wrong type or a locked config, as for `override`.
    """
    steps = csv_override.parse_path(path)
    try:
        parsed = yaml_io.parse_value(value, f"`{path}`")
        config.override(csv_override.nest(steps, parsed))
    except (errors.ConfigTypeError, errors.ConfigValueError) as error:
        try:
            config.override(csv_override.nest(steps, value))
        except (errors.ConfigTypeError, errors.ConfigValueError):
            raise error from None


def override_by_path(config: params_dict.ParamsDict, path: str, value: Any) -> None:
    """Overrides what `path` leads to, by a value that is no text to be read.

    Raises:
      ConfigError: as for `set_by_path`.
    """
    config.override(csv_override.nest(csv_override.parse_path(path), value))


def flatten(config: params_dict.ParamsDict | Mapping[str, Any]) -> dict[str, Any]:
    """Dotted path -> plain value, in the order of the fields.

    Lists and tuples are values, with dicts for the configs in them, and so are empty dicts and
    dicts with a key that is no Python name. A `OneOfConfig` shows what it has selected only.
    """
    tree = params_dict.to_plain(config)
    return dict(leaf for key in tree for leaf in _leaves(key, tree[key]))


def diff(
    old: params_dict.ParamsDict | Mapping[str, Any], new: params_dict.ParamsDict | Mapping[str, Any]
) -> list[str]:
    """One line for each path whose value differs: `a.b: 1 -> 2`, sorted; lists equal tuples."""
    old_leaves, new_leaves = _as_read_back(old), _as_read_back(new)
    paths = sorted(old_leaves.keys() | new_leaves.keys())
    shown = {path: (_show(old_leaves, path), _show(new_leaves, path)) for path in paths}
    return [f"{path}: {a} -> {b}" for path, (a, b) in shown.items() if a != b]


def map_texts(
    config: params_dict.ParamsDict, function: Callable[[str], str]
) -> params_dict.ParamsDict:
    """An unlocked copy in which each text, in lists too, is what `function` makes of it."""
    copied = params_dict.copy_value(config)
    _rewrite(copied, function)
    return copied


def texts(value: Any) -> Iterator[str]:
    """All texts in a config, a dict or a list, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, params_dict.ParamsDict):
        for _, element in value._items():
            yield from texts(element)
    elif isinstance(value, Mapping | list | tuple):
        for element in value.values() if isinstance(value, Mapping) else value:
            yield from texts(element)


def _rewrite(value: Any, function: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return function(value)
    if isinstance(value, list | tuple):
        return type(value)(_rewrite(element, function) for element in value)
    if isinstance(value, params_dict.ParamsDict):
        for key, element in value._items():
            value.__dict__[key] = _rewrite(element, function)
    return value


def _leaves(path: str, value: Any) -> list[tuple[str, Any]]:
    if not isinstance(value, dict) or not value or not all(map(str.isidentifier, value)):
        return [(path, value)]
    return [leaf for key in value for leaf in _leaves(f"{path}.{key}", value[key])]


def _as_read_back(config: params_dict.ParamsDict | Mapping[str, Any]) -> dict[str, Any]:
    text = yaml_io.to_yaml(params_dict.to_plain(config))
    return flatten(yaml_io.parse_yaml(text, "config"))


def _show(leaves: Mapping[str, Any], path: str) -> str:
    return repr(leaves[path]) if path in leaves else "(absent)"
