"""Untyped tree of parameters: override, read, write, list, compare and check it."""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, cast

from official_lite.common import errors, files, nested_dict, plugins, suggestions
from official_lite.modeling.hyperparams import yaml_io
from official_lite.modeling.hyperparams.yaml_io import Cursor
from official_lite.modeling.hyperparams.yaml_io import (
    nested_csv_str_to_json_str as nested_csv_str_to_json_str,
)

_Function = TypeVar("_Function", bound=Callable[..., Any])

_FILE_ENDINGS = (".yaml", ".yml", ".json")


Restriction = str | Callable[[Any], bool | None]
"""Two operands joined by one of `== != <= < >= >`, or a function of the config.

The function returns False or raises a `ConfigError` when the rule is violated. An operand is a
dotted path, a number, None, True, False, or a quoted string.
"""

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_CONSTANTS = {"None": None, "True": True, "False": False}
_NUMBER = re.compile(r"-?[.\d].*")


class UnknownAttributeError(errors.UnknownKeyError, AttributeError):
    """Error for a missing key that was read as an attribute; `hasattr` recognizes it."""


class RestrictionError(errors.ConfigValueError, KeyError):
    """Error for values that violate a restriction; also a `KeyError`, as in the Model Garden."""


class _Method:
    """Config method that stays callable even if the config has a key of the same name.

    Keys are stored in the instance, but Python looks up a descriptor with `__set__` in the class
    before it looks at the instance.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __get__(self, config: object, owner: type) -> Any:
        return self._function.__get__(config, owner)

    def __set__(self, config: object, value: object) -> None:
        raise AttributeError(
            "A config method cannot be replaced. To set a key of the same name, call `override`."
        )


def method(function: _Function) -> _Function:
    """Let a config have a key with the name of a method.

    The attribute remains the method; read the key by `get`.
    """
    return cast("_Function", _Method(function))


class ParamsDict:
    """Parameters that are read as attributes and may be nested to any depth.

    New keys are accepted only by the constructor and by `override(..., is_strict=False)`. Assigning
    to an unknown attribute raises an error. Dicts become `ParamsDict`s; other values are copied. A
    key that has the name of a method is read by `get`.

    Args:
        default_params: The initial keys and values.
        restrictions: Rules that `validate` checks; see `Restriction`.
    """

    # `_conversions`, set by the module `config.epochs`, is a dict keyed by the paths of the fields
    # that were converted to steps.
    RESERVED_ATTR = ("_locked", "_restrictions", "_conversions")
    ALIASES: ClassVar[Mapping[str, str]] = {}
    IS_LENIENT: ClassVar[bool] = False
    UNKNOWN_KEY_HINTS: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self,
        default_params: Mapping[str, Any] | ParamsDict | None = None,
        restrictions: Iterable[Restriction] | None = None,
    ) -> None:
        self.__dict__["_locked"] = False
        self.__dict__["_restrictions"] = list(restrictions or ())
        self.override(default_params or {}, is_strict=False)

    def __setattr__(self, key: str, value: object) -> None:
        if key in self.RESERVED_ATTR:
            self.__dict__[key] = value
            return
        cursor = self._cursor().key(key)
        self._refuse_if_locked(cursor)
        if key not in self:
            raise self._unknown_key(key, cursor)
        self._set(key, value, None, cursor)

    def __getattr__(self, key: str) -> Any:
        # Python looks up missing special methods often, so skip the costly error message for them.
        if key.startswith("__"):
            raise AttributeError(key)
        raise UnknownAttributeError(
            f"{type(self).__name__} has no key {key!r}. "
            f"{suggestions.did_you_mean(key, self._keys())}".rstrip()
        )

    def __delattr__(self, key: str) -> None:
        if key not in self:
            raise UnknownAttributeError(f"{type(self).__name__} has no key {key!r} to delete.")
        self._refuse_if_locked(self._cursor().key(key))
        del self.__dict__[key]

    def __contains__(self, key: object) -> bool:
        return key in self.__dict__ and key not in self.RESERVED_ATTR

    @method
    def get(self, key: str, value: object = None) -> Any:
        """Return the value of `key`, or `value` if the key does not exist."""
        return self.__dict__[key] if key in self else value

    @method
    def override(
        self, override_params: Mapping[str, Any] | ParamsDict, is_strict: bool = True
    ) -> None:
        """Merge nested values into this tree; lists are replaced.

        Raises:
            UnknownKeyError: A key does not exist yet and `is_strict` is True.
            LockedConfigError: `lock()` was called before.
        """
        self._override(override_params, self._cursor()._replace(strict=is_strict))
        if derived := self.__dict__.get("_conversions"):
            kept = {path: one for path, one in derived.items() if not _sets(override_params, path)}
            self.__dict__["_conversions"] = kept

    @method
    def lock(self) -> None:
        """Forbid all further assignments, here and in all nested parameters.

        Nested configs that are `Lenient` can still be changed.
        """
        self.__dict__["_locked"] = True
        for _, child in _nested(self._items(), self._cursor()):
            child.lock()
            if child.IS_LENIENT:
                child.__dict__["_locked"] = False

    @method
    def as_dict(self) -> dict[str, Any]:
        """Return a copy as plain nested dicts, lists and tuples."""
        return {key: to_plain(value) for key, value in self._active_items()}

    @method
    def validate(self) -> None:
        """Check the restrictions of this tree and of every nested one.

        Raises:
            RestrictionError: The first rule that is violated (also a `KeyError`).
            UnknownKeyError: A rule names a key that does not exist.
            ConfigValueError: A rule is malformed.
        """
        self._validate(self._cursor())

    def _validate(self, cursor: Cursor) -> None:
        for restriction in self._restrictions:
            _check(restriction, self, cursor)
        for child_cursor, child in _nested(self._active_items(), cursor):
            child._validate(child_cursor)

    def _override(self, params: object, cursor: Cursor) -> None:
        self._refuse_if_locked(cursor)
        params = params.as_dict() if isinstance(params, ParamsDict) else params
        if not isinstance(params, Mapping):
            raise errors.ConfigTypeError(
                f"An override must be a dict, got {type(params).__name__}. For strings and files "
                "use `override_params_dict`."
            )
        params = yaml_io.rename(params, type(self).ALIASES, cursor)
        if given := {k: v for k, v in params.items() if isinstance(v, yaml_io.Text)}:
            params = {**params, **{key: self._read(key, text) for key, text in given.items()}}
        self._merge(params, cursor)

    def _read(self, key: str, value: yaml_io.Text) -> Any:
        """Convert a command-line string to a value for `key`."""
        del key
        return value.value

    def _merge(self, params: Mapping[str, Any], cursor: Cursor) -> None:
        for key, value in params.items():
            below = cursor.key(key, params)
            if key in self.RESERVED_ATTR:
                raise errors.UnknownKeyError(
                    f"{below}: The key {key!r} is internally reserved. Use another name."
                )
            if cursor.strict and key not in self:
                raise self._unknown_key(key, below)
            current = self.__dict__.get(key)
            if isinstance(current, ParamsDict) and key in getattr(params, "empty", ()):
                raise errors.ConfigValueError(
                    f"{below}: the block is empty. Indent its keys below `{key}:`, remove the line "
                    f"to keep the values of {type(current).__name__}, or write `{key}: null` to "
                    "have no such block."
                )
            self._set(key, value, current, below)

    def _set(self, key: str, value: object, current: object, cursor: Cursor) -> None:
        """Store `value`; merge a dict into `current` if `current` is a config."""
        if isinstance(value, yaml_io.ListItems):
            self.__dict__[key] = [to_plain(new) for new, _ in value.over(current, cursor)]
        elif isinstance(value, Mapping) and isinstance(current, ParamsDict):
            current._override(value, cursor)
        elif isinstance(value, Mapping):
            self.__dict__[key] = ParamsDict(value)
        elif isinstance(value, ParamsDict):
            self.__dict__[key] = value._copy()
        else:
            self.__dict__[key] = to_plain(value)

    @classmethod
    def _is_open(cls) -> bool:
        """Return whether the class has no declared fields, like a plain dict."""
        return True

    @classmethod
    def _explain_mismatch(cls, value: object, path: str) -> str:
        """Return a hint for the error about a value that is neither a config nor a dict.

        The hint starts with a space. It is empty unless a subclass overrides this method.
        """
        del value, path
        return ""

    def _of_same_classes(self: _Params, given: Mapping[str, Any]) -> _Params:
        """Return a default config whose nested configs have the same classes as in this config.

        The class of a nested config may be a subclass of the annotated class. Only nested configs
        and lists that `given` contains are kept. The values in `given` are not applied.
        """
        new = type(self)()
        for name, value in given.items():
            key = type(self).ALIASES.get(name, name)
            current = self.__dict__.get(key)
            if isinstance(current, ParamsDict) and isinstance(value, Mapping):
                if not current._is_open():
                    new.__dict__[key] = current._of_same_classes(value)
            elif isinstance(current, list | tuple) and isinstance(value, list | tuple):
                # The caller replaces each element with the corresponding element of `given`.
                new.__dict__[key] = current
        return new

    def _copy(self: _Params) -> _Params:
        """Return an unlocked deep copy of the same class; private, because `copy` may be a key."""
        copied = object.__new__(type(self))
        copied.__dict__.update(
            {key: copy_value(value) for key, value in self.__dict__.items()}, _locked=False
        )
        return copied

    def _items(self) -> Iterator[tuple[str, Any]]:
        return ((key, self.__dict__[key]) for key in self._keys())

    def _active_items(self) -> Iterator[tuple[str, Any]]:
        """Return the items to export and validate: all items, unless a subclass selects some."""
        return self._items()

    def _keys(self) -> list[str]:
        return [key for key in self.__dict__ if key not in self.RESERVED_ATTR]

    def _cursor(self) -> Cursor:
        return Cursor(type(self).__name__)

    def _refuse_if_locked(self, cursor: Cursor) -> None:
        if self.__dict__.get("_locked", False):
            raise errors.LockedConfigError(
                f"{cursor} can't be set: {type(self).__name__} is locked. "
                "Call `replace(...)` to make a changed, unlocked copy."
            )

    def _unknown_key(self, key: object, cursor: Cursor) -> errors.UnknownKeyError:
        name = str(key)
        hint = self.UNKNOWN_KEY_HINTS.get(name) or _hint_for(name, self._keys())
        if "." in name:
            hint = f"Write a path as `{name}=value` on the command line, or nest it in YAML."
        return errors.UnknownKeyError(
            f"{cursor}: The key {name!r} does not exist in {type(self).__name__}. {hint}".rstrip()
        )


def _hint_for(name: str, keys: list[str]) -> str:
    counterpart = suggestions.counterpart(name)
    if counterpart.rpartition(".")[2] in keys:
        return f"Did you mean `{counterpart.rpartition('.')[2]}`?"
    if counterpart == "--config_file":
        return f"To apply a file, use {suggestions.config_file('FILE')}."
    if counterpart.startswith("--"):
        return f"Pass {counterpart} (in Python: the argument `{counterpart.lstrip('-')}`)."
    if counterpart:
        return f"For an experiment, set `{counterpart}`."
    return suggestions.did_you_mean(name, keys)


_Params = TypeVar("_Params", bound=ParamsDict)


def _sets(override: object, path: str) -> bool:
    """Return whether an override contains a value for a dotted path."""
    for name in path.split("."):
        override = vars(override) if isinstance(override, ParamsDict) else override
        if not isinstance(override, Mapping) or name not in override:
            return False
        override = override[name]
    return True


def _nested(
    items: Iterable[tuple[str, Any]], cursor: Cursor
) -> Iterator[tuple[Cursor, ParamsDict]]:
    """Yield the nested parameters in `items`, including those in lists, with their cursors."""
    for key, value in items:
        yield from _found_in(value, cursor.key(key))


def _found_in(value: object, cursor: Cursor) -> Iterator[tuple[Cursor, ParamsDict]]:
    if isinstance(value, ParamsDict):
        yield cursor, value
    elif isinstance(value, list | tuple):
        for position, element in enumerate(value):
            yield from _found_in(element, cursor.item(position))


def copy_value(value: object) -> Any:
    """Return a deep copy of a value in a tree; nested parameters are unlocked in the copy."""
    if isinstance(value, ParamsDict):
        return value._copy()
    if isinstance(value, list | tuple):
        return _sequence_like(value, [copy_value(element) for element in value])
    return value


def to_plain(value: object) -> Any:
    """Return a deep copy that contains no `ParamsDict`: only dicts, lists, tuples and scalars."""
    if isinstance(value, ParamsDict):
        return value.as_dict()
    if isinstance(value, yaml_io.Text):
        return value.value
    if isinstance(value, yaml_io.ListItems):
        return [to_plain(new) for new, _ in value.over(None, Cursor("list"))]
    if isinstance(value, Mapping):
        return {key: to_plain(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return _sequence_like(value, [to_plain(element) for element in value])
    return yaml_io.unboxed(value)


def override_params_dict(
    params: _Params,
    dict_or_string_or_yaml_file: Mapping[str, Any] | ParamsDict | str | os.PathLike[str] | None,
    is_strict: bool,
) -> _Params:
    """Override `params` in place and return it.

    A string is interpreted as the first of these that applies: the name of an existing file; an
    override such as `a.b=1,c=[1,2]`; a file name that ends in .yaml, .yml or .json; a YAML or JSON
    text. An empty override changes nothing.

    Raises:
        ConfigFileError: The file cannot be read.
        ConfigValueError: The string is none of these.
        UnknownKeyError, ConfigTypeError, LockedConfigError: As for `ParamsDict.override`.
    """
    given = dict_or_string_or_yaml_file
    if not given:
        return params
    if isinstance(given, str):
        given = _read_text(given)
    elif isinstance(given, os.PathLike):
        given = yaml_io.read_yaml(given)
    elif not isinstance(given, Mapping | ParamsDict):
        raise errors.ConfigValueError(
            f"An override must be a dict, a string or a file name, got {type(given).__name__}."
        )
    params.override(given, is_strict)
    return params


def read_yaml_to_params_dict(file_path: str | os.PathLike[str]) -> ParamsDict:
    """Read a YAML or JSON file; see `yaml_io.read_yaml` for what it rejects."""
    return ParamsDict(yaml_io.read_yaml(file_path))


def save_params_dict_to_yaml(params: ParamsDict, file_path: str | os.PathLike[str]) -> None:
    """Write plain YAML that reads back as the same values (tuples as lists)."""
    files.write_text(os.fspath(file_path), yaml_io.to_yaml(params.as_dict()))


def _read_text(text: str) -> Mapping[str, Any]:
    if os.path.isfile(text):
        return yaml_io.read_yaml(text)
    if yaml_io.is_csv(text):
        return yaml_io.parse_csv(text)
    if text.endswith(_FILE_ENDINGS) and "\n" not in text:
        return yaml_io.read_yaml(text)
    try:
        return yaml_io.parse_yaml(text, "override")
    except errors.ConfigValueError as error:
        if "\n" in text or text.lstrip().startswith("{"):
            raise
        raise yaml_io.malformed(text, 0) from error


def _sequence_like(original: list[Any] | tuple[Any, ...], elements: list[Any]) -> Any:
    return tuple(elements) if isinstance(original, tuple) else elements


def set_by_path(config: ParamsDict, path: str, value: str) -> None:
    """Apply `--set path=value`; the text is parsed as YAML and typed by the field.

    A string field stores the raw text if it cannot hold the parsed YAML value, so `task.name=010`
    needs no quotes. `[0]` indexes a list; an index equal to its length appends.

    Raises:
        ConfigError: An unknown key, a wrong type or a locked config, as for `override`.
    """
    set_by_paths(config, [(path, value)])


def set_by_paths(config: ParamsDict, values: Iterable[tuple[str, str]]) -> None:
    """Apply several `--set path=value` as one override, so that their order does not matter.

    Of two values for the same path, the later one wins.

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
        is_config = isinstance(value, ParamsDict)
        if is_config and (name in value or not hasattr(type(value), name)):
            # `getattr` would prefer a method of the same name, and for a missing key it would
            # search for similar names.
            value = vars(value).get(name)
        else:
            value = getattr(value, name, None)
    return default if value is None else value


def override_by_path(config: ParamsDict, path: str, value: object) -> None:
    """Override the value at `path` with a Python value, which is not parsed.

    Raises:
        ConfigError: As for `set_by_path`.
    """
    override_by_paths(config, [(path, value)])


def override_by_paths(config: ParamsDict, values: Iterable[tuple[str, object]]) -> None:
    """Override the values at several paths with Python values, all at once.

    Raises:
        ConfigError: As for `set_by_path`.
    """
    steps = [(yaml_io.parse_path(path), value) for path, value in values]
    config.override(yaml_io.nest_all(steps, config._cursor()))


def flatten(config: ParamsDict | Mapping[str, Any]) -> dict[str, Any]:
    """Return a dict from dotted path to plain value, in the order of the fields.

    Lists and tuples are values (configs in them become dicts). So are empty dicts and dicts with a
    key that is not a Python identifier in ASCII. A `OneOfConfig` contributes only its selected
    alternative.
    """
    return nested_dict.flatten_nested_dict(to_plain(config), ".", _is_leaf)


def diff(old: ParamsDict | Mapping[str, Any], new: ParamsDict | Mapping[str, Any]) -> list[str]:
    """Return a sorted line `a.b: 1 -> 2` for each path whose value differs; lists equal tuples."""
    old_leaves, new_leaves = _as_read_back(old), _as_read_back(new)
    paths = sorted(old_leaves.keys() | new_leaves.keys())
    shown = {path: (_show(old_leaves, path), _show(new_leaves, path)) for path in paths}
    return [f"{path}: {a} -> {b}" for path, (a, b) in shown.items() if a != b]


def map_texts(config: ParamsDict, function: Callable[[str], str]) -> ParamsDict:
    """Return an unlocked copy with `function` applied to each string, also in lists."""
    copied = copy_value(config)
    _rewrite(copied, function)
    return copied


def texts(value: object) -> Iterator[str]:
    """Yield all strings in a config, a dict or a list, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, ParamsDict):
        for _, element in value._items():
            yield from texts(element)
    elif isinstance(value, Mapping | list | tuple):
        for element in value.values() if isinstance(value, Mapping) else value:
            yield from texts(element)


def _text(path: str, value: str) -> yaml_io.Text:
    try:
        return yaml_io.Text(value, yaml_io.parse_value(value, f"`{path}`"))
    except errors.ConfigValueError as error:
        return yaml_io.Text(value, problem=error)


def _rewrite(value: object, function: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return function(value)
    if isinstance(value, list | tuple):
        return type(value)(_rewrite(element, function) for element in value)
    if isinstance(value, ParamsDict):
        for key, element in value._items():
            value.__dict__[key] = _rewrite(element, function)
    return value


def _is_leaf(value: Any) -> bool:
    if not isinstance(value, dict) or not value:
        return True
    return not all(key.isascii() and key.isidentifier() for key in value)


def _as_read_back(config: ParamsDict | Mapping[str, Any]) -> dict[str, Any]:
    text = yaml_io.to_yaml(to_plain(config))
    return flatten(yaml_io.parse_yaml(text, "config"))


def _show(leaves: Mapping[str, Any], path: str) -> str:
    return repr(leaves[path]) if path in leaves else "(absent)"


def _check(restriction: Restriction, config: ParamsDict, cursor: Cursor) -> None:
    """Raise if `config`, which is at `cursor` in the whole tree, violates `restriction`.

    Raises:
        RestrictionError: The rule is violated, or the two values cannot be compared.
        UnknownKeyError: A path does not exist in the config.
        ConfigValueError: The restriction is malformed.
    """
    inside = f" in {cursor}" if cursor.path else ""
    if callable(restriction):
        if restriction(config) is False:
            name = getattr(restriction, "__name__", repr(restriction))
            raise RestrictionError(f"The config violates the restriction `{name}`{inside}.")
        return
    left, symbol, right = _split(restriction)
    values = config.as_dict()
    left_value, right_value = _operand(left, values), _operand(right, values)
    try:
        is_met = _OPERATORS[symbol](left_value, right_value)
    except TypeError:
        is_met = False
    if not is_met:
        raise RestrictionError(
            f"Found inconsistency between keys: the values {left_value!r} and {right_value!r} "
            f"violate the restriction `{restriction}`{inside}."
        )


def _split(restriction: str) -> tuple[str, str, str]:
    parts = re.split(r"(==|!=|<=|>=|<|>)", restriction)
    if len(parts) != 3:
        raise errors.ConfigValueError(
            f"The restriction {restriction!r} does not have the form `a.b <= c.d`. Write two "
            f"operands joined by one of {' '.join(_OPERATORS)}."
        )
    return parts[0].strip(), parts[1], parts[2].strip()


def _operand(text: str, values: Mapping[str, Any]) -> Any:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[:1] in ("'", '"'):
        return text[1:-1]
    if _NUMBER.fullmatch(text):
        return _number(text)
    node: Any = values
    for key in text.split("."):
        if not isinstance(node, Mapping) or key not in node:
            known = node if isinstance(node, Mapping) else ()
            raise errors.UnknownKeyError(
                (
                    f"A restriction uses `{text}`, but the config has no {key!r}. "
                    f"{suggestions.did_you_mean(key, known)}"
                ).rstrip()
            )
        node = node[key]
    return node


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise errors.ConfigValueError(
            f"A restriction compares with {text!r}, which is not a number. Put strings in quotes."
        ) from error


def require_one_of(config: ParamsDict, name: str, allowed: Sequence[str]) -> None:
    value = getattr(config, name)
    if value.lower() not in allowed:
        raise errors.ConfigValueError(
            f"`{name}` is {value!r}. {suggestions.did_you_mean(value, allowed)}"
        )


def require_not_negative(config: ParamsDict, *names: str) -> None:
    for name in names:
        if getattr(config, name) < 0:
            raise errors.ConfigValueError(
                f"`{name}` is {getattr(config, name)}; expected 0 or a positive number."
            )


def require_positive(config: ParamsDict, *names: str) -> None:
    for name in names:
        if getattr(config, name) <= 0:
            raise errors.ConfigValueError(
                f"`{name}` is {getattr(config, name)}; expected a positive number."
            )


def require_positive_or_none(config: ParamsDict, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and not 0 < value < math.inf:
            raise errors.ConfigValueError(
                f"`{name}` is {value}; expected a positive number, or null."
            )


def require_subdirectories(config: ParamsDict, *names: str) -> None:
    for name in names:
        plugins.require_subdirectory(getattr(config, name), name)


def require_patterns(config: ParamsDict, *names: str) -> None:
    for name in names:
        for pattern in getattr(config, name):
            try:
                re.compile(pattern)
            except re.error as error:
                raise errors.ConfigValueError(
                    f"`{name}` has {pattern!r}, which is not a valid regular expression: {error}."
                ) from error
