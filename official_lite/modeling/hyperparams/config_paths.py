"""Configs seen as flat lists of `a.b.c = value`: setting one, listing all, comparing two."""

from collections.abc import Mapping
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


def _leaves(path: str, value: Any) -> list[tuple[str, Any]]:
    if not isinstance(value, dict) or not value or not all(map(str.isidentifier, value)):
        return [(path, value)]
    return [leaf for key in value for leaf in _leaves(f"{path}.{key}", value[key])]


def _as_read_back(config: params_dict.ParamsDict | Mapping[str, Any]) -> dict[str, Any]:
    text = yaml_io.to_yaml(params_dict.to_plain(config))
    return flatten(yaml_io.parse_yaml(text, "config"))


def _show(leaves: Mapping[str, Any], path: str) -> str:
    return repr(leaves[path]) if path in leaves else "(absent)"
