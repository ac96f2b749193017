"""Checks a value against an annotation, and converts the little that may be converted.

`HintCompiler` turns an annotation into a `FieldType`. What that does with a value:

* `int` is taken for `float` and becomes one; nothing else changes its kind: `bool` is no `int`,
  `1e6` is no `int`, a text is no number. Numbers and texts of other libraries become Python's.
* a dict becomes the annotated config, or is merged into the config that is there;
* a list and a tuple become whichever the annotation names.
"""

from __future__ import annotations

import abc
import collections.abc
import numbers
import re
import reprlib
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from official_lite.common import errors
from official_lite.modeling.hyperparams import overrides, params_dict, yaml_scalars
from official_lite.modeling.hyperparams.overrides import Cursor

ConfigClass = type[params_dict.ParamsDict]
SequenceClass = type[list[Any]] | type[tuple[Any, ...]]

_ABSTRACT_SEQUENCES = (
    collections.abc.Sequence,
    collections.abc.Iterable,
    collections.abc.Collection,
)


class HintCompiler:
    """Turns annotations into the types that check values.

    Args:
      open_class: the config class that dicts without an annotated class become.
      sequence_class: what an annotation such as `Sequence[int]` stores, `list` or `tuple`.
    """

    def __init__(self, open_class: ConfigClass, sequence_class: SequenceClass = list) -> None:
        self._open_class = open_class
        self._sequence_class = sequence_class

    def compile(self, hint: Any) -> FieldType:
        """The type for a resolved annotation; one without a meaning in YAML takes plain values."""
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            return UnionType([self.compile(arg) for arg in args])
        if origin is typing.Literal:
            return LiteralType(args)
        if origin is typing.Annotated:
            return self.compile(args[0])
        if hint is None or hint is types.NoneType:
            return NoneType()
        base = origin or getattr(hint, "__supertype__", hint)
        return self._compile_class(base, args) if isinstance(base, type) else self._any()

    def _compile_class(self, base: type, args: tuple[Any, ...]) -> FieldType:
        if base in (str, bool, int, float):
            return ScalarType(base)
        if issubclass(base, params_dict.ParamsDict):
            return ConfigType(base)
        if issubclass(base, tuple):
            return self._compile_tuple([self.compile(arg) for arg in args if arg is not Ellipsis])
        if issubclass(base, Mapping):
            value_type = self.compile(args[1]) if args else self._any()
            return MappingType(value_type, self._open_class)
        item_type = self.compile(args[0]) if args else self._any()
        if issubclass(base, list):
            return SequenceType(item_type, list)
        if base in _ABSTRACT_SEQUENCES:
            return SequenceType(item_type, self._sequence_class)
        return self._any()

    def _compile_tuple(self, item_types: list[FieldType]) -> FieldType:
        # `Tuple[str]` means any number of texts in configs written for the Model Garden.
        if len(item_types) < 2:
            return SequenceType(item_types[0] if item_types else self._any(), tuple)
        return TupleType(item_types)

    def _any(self) -> AnyType:
        return AnyType(self._open_class)


def optional(field_type: FieldType) -> FieldType:
    """Lets the field hold None, too."""
    return field_type if field_type.accepts(None) else UnionType([field_type, NoneType()])


class FieldType(abc.ABC):
    """What a field takes."""

    name: str

    @abc.abstractmethod
    def accepts(self, value: Any) -> bool:
        """Whether `convert` would take the value; dicts are looked at from outside only."""

    @abc.abstractmethod
    def convert(self, value: Any, current: Any, cursor: Cursor) -> Any:
        """The value to store, where `current` is stored now (None if nothing is).

        Raises:
          ConfigTypeError: the value is of the wrong type.
          ConfigValueError: it is of the right type and can't be used.
          UnknownKeyError: a key in a nested dict that its config does not have.
        """

    def mismatch(self, value: Any, cursor: Cursor) -> errors.ConfigTypeError:
        return errors.ConfigTypeError(
            f"{cursor}: expected {self.name}, got {describe(value)}.{_hint(self.name, value)}"
        )


class AnyType(FieldType):
    """Plain values of any kind; dicts become the open config class."""

    name = "a plain value"

    def __init__(self, open_class: ConfigClass) -> None:
        self._open = ConfigType(open_class)

    def accepts(self, value: Any) -> bool:
        return _is_scalar(value) or _is_sequence(value) or self._open.accepts(value)

    def convert(self, value: Any, current: Any, cursor: Cursor) -> Any:
        if _is_scalar(value):
            return _plain_scalar(value, cursor)
        if _is_sequence(value):
            pairs = overrides.pair_elements(value, current, cursor)
            elements = _convert_pairs(pairs, lambda _: self, cursor)
            model = current if isinstance(value, overrides.ListItems) else value
            return tuple(elements) if isinstance(model, tuple) else elements
        if not self._open.accepts(value):
            raise errors.ConfigTypeError(
                f"{cursor}: Unknown type {type(value).__name__}; a config holds texts, numbers, "
                "booleans, None, lists, tuples, dicts and configs."
            )
        return self._open.convert(value, current, cursor)


class NoneType(FieldType):
    name = "null"

    def accepts(self, value: Any) -> bool:
        return value is None

    def convert(self, value: Any, current: Any, cursor: Cursor) -> None:
        if value is not None:
            raise self.mismatch(value, cursor)


class ScalarType(FieldType):
    """A text, a boolean, an integer within 64 bits, or a float."""

    _ABSTRACT: typing.ClassVar[dict[type, type]] = {
        str: str,
        bool: bool,
        int: numbers.Integral,
        float: numbers.Real,
    }

    def __init__(self, kind: type) -> None:
        self.name = kind.__name__
        self._kind = kind
        self._abstract = self._ABSTRACT[kind]

    def accepts(self, value: Any) -> bool:
        if type(value) is self._kind:
            return True
        return isinstance(value, self._abstract) and not isinstance(value, bool)

    def convert(self, value: Any, current: Any, cursor: Cursor) -> Any:
        if not self.accepts(value):
            raise self.mismatch(value, cursor)
        value = _plain_scalar(value, cursor)
        return float(value) if self._kind is float else value


class LiteralType(FieldType):
    """One of a few given values."""

    def __init__(self, choices: tuple[Any, ...]) -> None:
        self.name = " or ".join(repr(choice) for choice in choices)
        self._choices = choices

    def accepts(self, value: Any) -> bool:
        return any(value == choice and type(value) is type(choice) for choice in self._choices)

    def convert(self, value: Any, current: Any, cursor: Cursor) -> Any:
        if not self.accepts(value):
            raise errors.ConfigValueError(f"{cursor}: expected {self.name}, got {describe(value)}.")
        return value


class ConfigType(FieldType):
    """A config of one class or of its subclasses; dicts are merged or built."""

    def __init__(self, config_class: ConfigClass) -> None:
        self.name = config_class.__name__
        self._class = config_class

    def accepts(self, value: Any) -> bool:
        return isinstance(value, self._class) or _is_mapping(value)

    def convert(self, value: Any, current: Any, cursor: Cursor) -> Any:
        if isinstance(value, self._class):
            return params_dict.copy_value(value)
        if isinstance(value, params_dict.ParamsDict) and not value._is_open():
            raise errors.ConfigTypeError(
                f"{cursor}: expected {_full_name(self._class)} or a subclass, "
                f"got {_full_name(type(value))}."
            )
        if not _is_mapping(value):
            raise self.mismatch(value, cursor)
        target = current if isinstance(current, params_dict.ParamsDict) else self._class()
        is_new = target is not current
        is_strict = cursor.strict and not (is_new and target._is_open())
        target._override(value, cursor._replace(strict=is_strict))
        return target


class MappingType(FieldType):
    """A dict with free keys and annotated values; it is stored as an open config."""

    def __init__(self, value_type: FieldType, open_class: ConfigClass) -> None:
        self.name = f"a dict of {value_type.name}"
        self._value_type = value_type
        self._open = ConfigType(open_class)

    def accepts(self, value: Any) -> bool:
        return self._open.accepts(value)

    def convert(self, value: Any, current: Any, cursor: Cursor) -> Any:
        if not self.accepts(value):
            raise self.mismatch(value, cursor)
        mapping = value.as_dict() if isinstance(value, params_dict.ParamsDict) else value
        converted = {
            key: self._value_type.convert(element, None, cursor.key(key, mapping))
            for key, element in mapping.items()
        }
        return self._open.convert(converted, current, cursor._replace(strict=False))


class SequenceType(FieldType):
    """Any number of elements of one type, in a list or in a tuple."""

    def __init__(self, item_type: FieldType, sequence_class: SequenceClass) -> None:
        self.name = f"{sequence_class.__name__}[{item_type.name}]"
        self._item_type = item_type
        self._class = sequence_class

    def accepts(self, value: Any) -> bool:
        if isinstance(value, overrides.ListItems):
            return True
        return _is_sequence(value) and all(self._item_type.accepts(item) for item in value)

    def convert(self, value: Any, current: Any, cursor: Cursor) -> Any:
        if not _is_sequence(value):
            raise self.mismatch(value, cursor)
        pairs = overrides.pair_elements(value, current, cursor)
        return self._class(_convert_pairs(pairs, lambda _: self._item_type, cursor))


class TupleType(FieldType):
    """A tuple of fixed length with a type for each place."""

    def __init__(self, item_types: list[FieldType]) -> None:
        self.name = f"tuple[{', '.join(item_type.name for item_type in item_types)}]"
        self._item_types = item_types

    def accepts(self, value: Any) -> bool:
        if isinstance(value, overrides.ListItems):
            return True
        return (
            _is_sequence(value)
            and len(value) == len(self._item_types)
            and all(kind.accepts(item) for kind, item in zip(self._item_types, value, strict=True))
        )

    def convert(self, value: Any, current: Any, cursor: Cursor) -> Any:
        if not _is_sequence(value):
            raise self.mismatch(value, cursor)
        pairs = overrides.pair_elements(value, current, cursor)
        if len(pairs) != len(self._item_types):
            raise errors.ConfigValueError(
                f"{cursor}: expected {len(self._item_types)} values, {self.name}, got {len(pairs)}."
            )
        return tuple(_convert_pairs(pairs, self._item_types.__getitem__, cursor))


class UnionType(FieldType):
    """The first of several types that takes the value."""

    def __init__(self, members: list[FieldType]) -> None:
        # `float` takes integers as well, so an `int` beside it is asked first.
        self._members = sorted(members, key=lambda member: member.name == "float")
        self.name = " | ".join(member.name for member in members)

    def accepts(self, value: Any) -> bool:
        return any(member.accepts(value) for member in self._members)

    def convert(self, value: Any, current: Any, cursor: Cursor) -> Any:
        for member in self._members:
            if member.accepts(value):
                return member.convert(value, current, cursor)
        values = [member for member in self._members if not isinstance(member, NoneType)]
        if len(values) == 1 and _is_sequence(value):
            # It knows which element is wrong.
            return values[0].convert(value, current, cursor)
        raise self.mismatch(value, cursor)


def describe(value: Any) -> str:
    """A value and its type for an error message, cut to a readable length."""
    if value is None:
        return "null"
    if isinstance(value, params_dict.ParamsDict):
        return f"a {type(value).__name__}"
    if isinstance(value, overrides.ListItems):
        return "values for single list elements"
    return f"{reprlib.repr(value)} ({type(value).__name__})"


def _full_name(config_class: ConfigClass) -> str:
    return f"{config_class.__module__}.{config_class.__qualname__}"


def _convert_pairs(
    pairs: list[tuple[Any, Any]], type_of: Callable[[int], FieldType], cursor: Cursor
) -> list[Any]:
    return [
        type_of(position).convert(value, current, cursor.item(position))
        for position, (value, current) in enumerate(pairs)
    ]


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | numbers.Real)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, list | tuple | overrides.ListItems)


def _is_mapping(value: Any) -> bool:
    """A dict, or parameters without declared fields, which say no more than a dict does."""
    if isinstance(value, params_dict.ParamsDict):
        return value._is_open()
    return isinstance(value, Mapping) and not isinstance(value, overrides.ListItems)


def _plain_scalar(value: Any, cursor: Cursor) -> yaml_scalars.Scalar:
    """Turns numbers and texts of other libraries, and text enums, into Python's own."""
    if value is None or type(value) in (bool, float, str):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if not isinstance(value, numbers.Integral):
        return float(value)
    number = int(value)
    if not yaml_scalars.INT64_MIN <= number <= yaml_scalars.INT64_MAX:
        raise errors.ConfigValueError(f"{cursor}: the integer does not fit into 64 bits.")
    return number


def _hint(wanted: str, value: Any) -> str:
    if value is None:
        return " Only an optional field takes null."
    if not isinstance(value, str | numbers.Real):
        return ""
    kinds = set(re.findall(r"\w+", wanted))
    if value in ("None", "none") and "null" in kinds:
        return " Write null."
    if "bool" in kinds and value in ("yes", "no", "on", "off", 0, 1):
        return " Write true or false."
    if "int" in kinds and isinstance(value, float) and value.is_integer():
        return f" Write {int(value)}."
    if isinstance(value, str) and kinds & {"int", "float"}:
        bare = value.replace("_", "").replace(",", "")
        return f" Write {bare}, without quotes." if not yaml_scalars.is_plain_text(bare) else ""
    if "str" in kinds and isinstance(value, numbers.Real):
        return f" Write '{value}' in quotes."
    return ""
