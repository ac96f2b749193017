"""Types that check a value against an annotation and apply the few allowed conversions.

`HintCompiler` turns an annotation into a `FieldType`, which treats values as follows:

* An `int` is accepted for `float` and becomes a `float`. No other type is converted: a `bool` is
  not an `int`, `1e6` is not an `int`, and a string is not a number. Numbers and strings of other
  libraries become Python's own.
* A dict becomes the annotated config, or is merged into the existing config.
* Lists and tuples become whichever of the two the annotation names.
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
from typing import Any, SupportsFloat, TypeGuard, cast

from official_lite.common import errors
from official_lite.modeling.hyperparams import overrides, params_dict, yaml_io
from official_lite.modeling.hyperparams.overrides import Cursor

ConfigClass = type[params_dict.ParamsDict]
_Scalar = str | SupportsFloat | None
_Elements = list[Any] | tuple[Any, ...] | overrides.ListItems
SequenceClass = type[list[Any]] | type[tuple[Any, ...]]

_ABSTRACT_SEQUENCES = (
    collections.abc.Sequence,
    collections.abc.Iterable,
    collections.abc.Collection,
)


class HintCompiler:
    """Compiler from annotations to the field types that check values.

    Args:
      open_class: The config class for dicts whose annotation names no class.
      sequence_class: The class stored for an annotation such as `Sequence[int]`: `list` or `tuple`.
      is_lenient: Whether values that do not fit an annotation are accepted as they are.
    """

    def __init__(
        self,
        open_class: ConfigClass,
        sequence_class: SequenceClass = list,
        *,
        is_lenient: bool = False,
    ) -> None:
        self._open_class = open_class
        self._sequence_class = sequence_class
        self._is_lenient = is_lenient

    def compile(self, hint: object) -> FieldType:
        """Return the type for a resolved annotation.

        An annotation that YAML cannot express accepts plain values.
        """
        declared = self._compile(hint)
        return UnionType([declared, self._any()]) if self._is_lenient else declared

    def _compile(self, hint: object) -> FieldType:
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
        # In configs written for the Model Garden, `Tuple[str]` means any number of strings.
        if len(item_types) < 2:
            return SequenceType(item_types[0] if item_types else self._any(), tuple)
        return TupleType(item_types)

    def _any(self) -> AnyType:
        return AnyType(self._open_class)


def optional(field_type: FieldType) -> FieldType:
    """Return a type that also accepts None."""
    return field_type if field_type.accepts(None) else UnionType([field_type, NoneType()])


class FieldType(abc.ABC):
    """Base class of the types that check and convert the value of a field."""

    name: str

    @abc.abstractmethod
    def accepts(self, value: object) -> bool:
        """Return whether `convert` would accept the value; dict contents are not checked."""

    @abc.abstractmethod
    def convert(self, value: object, current: object, cursor: Cursor) -> Any:
        """Return the value to store in place of `current` (None if nothing is stored).

        Raises:
          ConfigTypeError: The value has the wrong type.
          ConfigValueError: The value has the right type but is invalid.
          UnknownKeyError: A nested dict contains a key that its config does not have.
        """

    def read(self, value: object) -> Any:
        """Return the value that this type takes from a text on a command line.

        Raises:
          ConfigValueError: The text is no YAML, and this type does not accept a text.
        """
        if not isinstance(value, overrides.Text):
            return value
        if value.problem is None and (self.accepts(value.parsed) or not self.accepts(value.text)):
            return value.parsed
        if value.problem is not None and not self.accepts(value.text):
            raise value.problem
        return value.text

    def mismatch(self, value: object, cursor: Cursor) -> errors.ConfigTypeError:
        return errors.ConfigTypeError(
            f"{cursor}: expected {self.name}, got {describe(value)}.{_hint(self.name, value)}"
        )


class AnyType(FieldType):
    """Type of plain values of any kind; dicts become the open config class."""

    name = "a plain value"

    def __init__(self, open_class: ConfigClass) -> None:
        self._open = ConfigType(open_class)

    def accepts(self, value: object) -> bool:
        return _is_scalar(value) or _is_sequence(value) or self._open.accepts(value)

    def convert(self, value: object, current: object, cursor: Cursor) -> Any:
        if _is_scalar(value):
            return _plain_scalar(value, cursor)
        if _is_sequence(value):
            pairs = overrides.pair_elements(value, current, cursor)
            elements = _convert_pairs(pairs, lambda _: self, cursor)
            model = current if isinstance(value, overrides.ListItems) else value
            return tuple(elements) if isinstance(model, tuple) else elements
        if not self._open.accepts(value):
            raise errors.ConfigTypeError(
                f"{cursor}: Unknown type {type(value).__name__}; a config can contain strings, "
                "numbers, booleans, None, lists, tuples, dicts and configs."
            )
        return self._open.convert(value, current, cursor)


class NoneType(FieldType):
    name = "null"

    def accepts(self, value: object) -> bool:
        return value is None

    def convert(self, value: object, current: object, cursor: Cursor) -> None:
        if value is not None:
            raise self.mismatch(value, cursor)


class ScalarType(FieldType):
    """Type of a string, a boolean, a 64-bit integer, or a float."""

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

    def accepts(self, value: object) -> bool:
        if type(value) is self._kind:
            return True
        value = overrides.unboxed(value)
        is_bool = isinstance(value, bool)
        return is_bool if self._kind is bool else isinstance(value, self._abstract) and not is_bool

    def convert(self, value: object, current: object, cursor: Cursor) -> Any:
        if not self.accepts(value):
            raise self.mismatch(value, cursor)
        plain: Any = _plain_scalar(cast("_Scalar", value), cursor)
        return float(plain) if self._kind is float else plain


class LiteralType(FieldType):
    """Type of a value from a fixed set of choices."""

    def __init__(self, choices: tuple[Any, ...]) -> None:
        self.name = " or ".join(repr(choice) for choice in choices)
        self._choices = choices

    def accepts(self, value: object) -> bool:
        value = overrides.unboxed(value)
        return any(value == choice and type(value) is type(choice) for choice in self._choices)

    def convert(self, value: object, current: object, cursor: Cursor) -> Any:
        if not self.accepts(value):
            raise errors.ConfigValueError(f"{cursor}: expected {self.name}, got {describe(value)}.")
        return overrides.unboxed(value)


class ConfigType(FieldType):
    """Type of a config of one class or its subclasses; dicts are merged or built."""

    def __init__(self, config_class: ConfigClass) -> None:
        self.name = config_class.__name__
        self._class = config_class

    def accepts(self, value: object) -> bool:
        return isinstance(value, self._class) or _is_mapping(value)

    def convert(self, value: object, current: object, cursor: Cursor) -> Any:
        if isinstance(value, self._class):
            return params_dict.copy_value(value)
        if isinstance(value, params_dict.ParamsDict) and not value._is_open():
            raise errors.ConfigTypeError(
                f"{cursor}: expected {_full_name(self._class)} or a subclass, "
                f"got {_full_name(type(value))}."
            )
        if not _is_mapping(value):
            hint = self._class._explain_mismatch(value, cursor.path)
            raise errors.ConfigTypeError(f"{self.mismatch(value, cursor)}{hint}")
        target = (
            current if isinstance(current, params_dict.ParamsDict) else self._new(value, current)
        )
        is_new = target is not current
        takes_any_key = target._is_open() or target.IS_LENIENT
        is_strict = cursor.strict and not (is_new and takes_any_key)
        target._override(value, cursor._replace(strict=is_strict))
        return target

    def _new(self, value: object, current: object) -> params_dict.ParamsDict:
        replaced = current.value if isinstance(current, overrides.Replaced) else None
        if isinstance(replaced, self._class) and isinstance(value, Mapping):
            return replaced._of_same_classes(value)
        return self._class()


class MappingType(FieldType):
    """Type of a dict with arbitrary keys and annotated values, stored as an open config."""

    def __init__(self, value_type: FieldType, open_class: ConfigClass) -> None:
        self.name = f"a dict of {value_type.name}"
        self._value_type = value_type
        self._open = ConfigType(open_class)

    def accepts(self, value: object) -> bool:
        return self._open.accepts(value)

    def convert(self, value: object, current: object, cursor: Cursor) -> Any:
        if not self.accepts(value):
            raise self.mismatch(value, cursor)
        given = cast("Mapping[str, Any] | params_dict.ParamsDict", value)
        mapping = given.as_dict() if isinstance(given, params_dict.ParamsDict) else given
        converted = {
            key: self._value_type.convert(
                self._value_type.read(element), None, cursor.key(key, mapping)
            )
            for key, element in mapping.items()
        }
        return self._open.convert(converted, current, cursor._replace(strict=False))


class SequenceType(FieldType):
    """Type of a list or tuple with any number of elements of one type."""

    def __init__(self, item_type: FieldType, sequence_class: SequenceClass) -> None:
        self.name = f"{sequence_class.__name__}[{item_type.name}]"
        self._item_type = item_type
        self._class = sequence_class

    def accepts(self, value: object) -> bool:
        if isinstance(value, overrides.ListItems):
            return True
        return _is_sequence(value) and all(self._item_type.accepts(item) for item in value)

    def convert(self, value: object, current: object, cursor: Cursor) -> Any:
        if not _is_sequence(value):
            raise self.mismatch(value, cursor)
        pairs = overrides.pair_elements(value, current, cursor)
        return self._class(_convert_pairs(pairs, lambda _: self._item_type, cursor))


class TupleType(FieldType):
    """Type of a fixed-length tuple with a type for each position."""

    def __init__(self, item_types: list[FieldType]) -> None:
        self.name = f"tuple[{', '.join(item_type.name for item_type in item_types)}]"
        self._item_types = item_types

    def accepts(self, value: object) -> bool:
        if isinstance(value, overrides.ListItems):
            return True
        return (
            _is_sequence(value)
            and len(value) == len(self._item_types)
            and all(kind.accepts(item) for kind, item in zip(self._item_types, value, strict=True))
        )

    def convert(self, value: object, current: object, cursor: Cursor) -> Any:
        if not _is_sequence(value):
            raise self.mismatch(value, cursor)
        pairs = overrides.pair_elements(value, current, cursor)
        if len(pairs) != len(self._item_types):
            raise errors.ConfigValueError(
                f"{cursor}: expected {len(self._item_types)} values ({self.name}), "
                f"got {len(pairs)}."
            )
        return tuple(_convert_pairs(pairs, self._item_types.__getitem__, cursor))


class UnionType(FieldType):
    """Type that converts a value with the first of several types that accepts it."""

    def __init__(self, members: list[FieldType]) -> None:
        # `float` also accepts integers, so try an `int` alternative first.
        self._members = sorted(members, key=lambda member: member.name == "float")
        self.name = " | ".join(member.name for member in members)

    def accepts(self, value: object) -> bool:
        return any(member.accepts(value) for member in self._members)

    def convert(self, value: object, current: object, cursor: Cursor) -> Any:
        for member in self._members:
            if member.accepts(value):
                return member.convert(value, current, cursor)
        values = [member for member in self._members if not isinstance(member, NoneType)]
        if len(values) == 1 and _is_sequence(value):
            # The sequence type reports which element is wrong.
            return values[0].convert(value, current, cursor)
        raise self.mismatch(value, cursor)


def describe(value: object) -> str:
    """Return a value and its type for an error message, shortened to a readable length."""
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
        type_of(position).convert(type_of(position).read(value), current, cursor.item(position))
        for position, (value, current) in enumerate(pairs)
    ]


def _is_scalar(value: object) -> TypeGuard[_Scalar]:
    return value is None or isinstance(overrides.unboxed(value), str | numbers.Real)


def _is_sequence(value: object) -> TypeGuard[_Elements]:
    return isinstance(value, list | tuple | overrides.ListItems)


def _is_mapping(value: object) -> bool:
    """Return whether the value is a dict or an open config, which is equivalent to a dict."""
    if isinstance(value, params_dict.ParamsDict):
        return value._is_open()
    return isinstance(value, Mapping) and not isinstance(value, overrides.ListItems)


def _plain_scalar(value: _Scalar, cursor: Cursor) -> yaml_io.Scalar:
    """Convert numbers and strings of other libraries, and string enums, to Python's own types."""
    value = overrides.unboxed(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if not isinstance(value, numbers.Integral):
        return float(value)
    number = int(value)
    if not yaml_io.INT64_MIN <= number <= yaml_io.INT64_MAX:
        raise errors.ConfigValueError(f"{cursor}: the integer does not fit into 64 bits.")
    return number


def _hint(wanted: str, value: object) -> str:
    if value is None:
        return " Only optional fields accept null."
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
        return f" Write {bare}, without quotes." if not yaml_io.is_plain_text(bare) else ""
    if "str" in kinds and isinstance(value, numbers.Real):
        return f" Write '{value}' in quotes."
    return ""
