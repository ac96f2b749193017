"""Configs as flat lists of `a.b.c = value`: functions to set, list, compare and rewrite them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from official_lite.common import errors, nested_dict
from official_lite.modeling.hyperparams import overrides, params_dict, yaml_io


def set_by_path(config: params_dict.ParamsDict, path: str, value: str) -> None:
    """Apply `--set path=value`; the text is parsed as YAML and typed by the field.

    A string field stores the raw text if it cannot hold the parsed YAML value, so `task.name=010`
    needs no quotes. `[0]` indexes a list; an index equal to its length appends.

    Raises:
      ConfigError: An unknown key, a wrong type or a locked config, as for `override`.
    """
    set_by_paths(config, [(path, value)])


def set_by_paths(config: params_dict.ParamsDict, values: Iterable[tuple[str, str]]) -> None:
    """Apply several `--set path=value` as one override, so that their order does not matter.

    Of two values for the same path, the later one counts.

    Raises:
      ConfigError: As for `set_by_path`.
    """
    override_by_paths(config, [(path, _text(path, value)) for path, value in values])


def get_by_path(config: object, path: str, default: Any = None) -> Any:
    """Return the value at a dotted path, or `default` if a part of the path is absent or None.

    Use this for fields that Model Garden configs or user-defined config classes may lack. If the
    field is known to exist, use the attribute.
    """
    value: Any = config
    for name in path.split("."):
        is_key = isinstance(value, params_dict.ParamsDict) and name in value
        value = vars(value)[name] if is_key else getattr(value, name, None)
    return default if value is None else value


def override_by_path(config: params_dict.ParamsDict, path: str, value: object) -> None:
    """Override the value at `path` with a Python value, which is not parsed.

    Raises:
      ConfigError: As for `set_by_path`.
    """
    override_by_paths(config, [(path, value)])


def override_by_paths(config: params_dict.ParamsDict, values: Iterable[tuple[str, object]]) -> None:
    """Override the values at several paths with Python values, all at once.

    Raises:
      ConfigError: As for `set_by_path`.
    """
    steps = [(params_dict.parse_path(path), value) for path, value in values]
    config.override(params_dict.nest_all(steps, config._cursor()))


def flatten(config: params_dict.ParamsDict | Mapping[str, Any]) -> dict[str, Any]:
    """Return a dict from dotted path to plain value, in the order of the fields.

    Lists and tuples are values (configs in them become dicts). So are empty dicts and dicts with a
    key that is not a Python identifier in ASCII. A `OneOfConfig` contributes only its selected
    alternative.
    """
    return nested_dict.flatten_nested_dict(params_dict.to_plain(config), ".", _is_leaf)


def diff(
    old: params_dict.ParamsDict | Mapping[str, Any], new: params_dict.ParamsDict | Mapping[str, Any]
) -> list[str]:
    """Return a sorted line `a.b: 1 -> 2` for each path whose value differs; lists equal tuples."""
    old_leaves, new_leaves = _as_read_back(old), _as_read_back(new)
    paths = sorted(old_leaves.keys() | new_leaves.keys())
    shown = {path: (_show(old_leaves, path), _show(new_leaves, path)) for path in paths}
    return [f"{path}: {a} -> {b}" for path, (a, b) in shown.items() if a != b]


def map_texts(
    config: params_dict.ParamsDict, function: Callable[[str], str]
) -> params_dict.ParamsDict:
    """Return an unlocked copy with `function` applied to each string, also in lists."""
    copied = params_dict.copy_value(config)
    _rewrite(copied, function)
    return copied


def texts(value: object) -> Iterator[str]:
    """Yield all strings in a config, a dict or a list, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, params_dict.ParamsDict):
        for _, element in value._items():
            yield from texts(element)
    elif isinstance(value, Mapping | list | tuple):
        for element in value.values() if isinstance(value, Mapping) else value:
            yield from texts(element)


def _text(path: str, value: str) -> overrides.Text:
    try:
        return overrides.Text(value, yaml_io.parse_value(value, f"`{path}`"))
    except errors.ConfigValueError as error:
        return overrides.Text(value, problem=error)


def _rewrite(value: object, function: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return function(value)
    if isinstance(value, list | tuple):
        return type(value)(_rewrite(element, function) for element in value)
    if isinstance(value, params_dict.ParamsDict):
        for key, element in value._items():
            value.__dict__[key] = _rewrite(element, function)
    return value


def _is_leaf(value: Any) -> bool:
    if not isinstance(value, dict) or not value:
        return True
    return not all(key.isascii() and key.isidentifier() for key in value)


def _as_read_back(config: params_dict.ParamsDict | Mapping[str, Any]) -> dict[str, Any]:
    text = yaml_io.to_yaml(params_dict.to_plain(config))
    return flatten(yaml_io.parse_yaml(text, "config"))


def _show(leaves: Mapping[str, Any], path: str) -> str:
    return repr(leaves[path]) if path in leaves else "(absent)"
