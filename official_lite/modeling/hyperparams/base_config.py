"""Base classes of configs, which are dataclasses that check every value assigned to their fields.

The annotation of a field becomes a `FieldType`, which treats values as follows:

* An `int` is accepted for `float` and becomes a `float`. No other type is converted: a `bool` is
  not an `int`, `1e6` is not an `int`, and a string is not a number. Numbers and strings of other
  libraries become Python's own.
* A dict becomes the annotated config, or is merged into the existing config.
* Lists and tuples become whichever of the two the annotation names.
"""

from __future__ import annotations

import abc
import collections.abc
import dataclasses
import functools
import inspect
import numbers
import os
import re
import reprlib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Self, TypeGuard, TypeVar, cast

from absl import logging

from official_lite.common import errors, suggestions
from official_lite.modeling.hyperparams import params_dict, yaml_io
from official_lite.modeling.hyperparams.params_dict import Restriction
from official_lite.modeling.hyperparams.yaml_io import Cursor

_Builder = TypeVar("_Builder", bound=Callable[..., Any])


def bind(config_cls: type[Config]) -> Callable[[_Builder], _Builder]:
    """Return a decorator that sets a class or function as the `BUILDER` of a config class.

    Raises:
        ConfigValueError: `config_cls` is not a class or already has a builder, or the builder is
            not a class or a function.
    """
    if not inspect.isclass(config_cls):
        raise errors.ConfigValueError(f"`bind` expects a config class, got {config_cls!r}.")

    def decorator(builder: _Builder) -> _Builder:
        if config_cls.__dict__.get("_BUILDER") is not None:
            # The Model Garden's tests expect the beginning of this message.
            raise errors.ConfigValueError(
                "Inside a program, we should not bind a config to a class twice; "
                f"{config_cls.__name__} is already bound to {config_cls._BUILDER!r}. Bind a "
                "subclass of the config instead."
            )
        if not (inspect.isclass(builder) or inspect.isfunction(builder)):
            raise errors.ConfigValueError(
                f"A builder must be a class or a function, got {builder!r}."
            )
        # `staticmethod` prevents a function from receiving the config as its first argument.
        config_cls._BUILDER = staticmethod(builder)
        return builder

    return decorator


@dataclasses.dataclass
class Config(params_dict.ParamsDict):
    """Base class of configs; subclasses are dataclasses.

    A field holds a string, a number, a boolean, None, a config, or lists and tuples of these. A
    dict becomes the annotated config class, or a plain `Config` with the dict's keys. Assigned
    configs and lists are copied. A field whose default is None accepts None whatever its
    annotation.

    A class that declares fields accepts no other keys. `Config` itself and subclasses without
    fields are open: their constructor accepts any keys.

    A subclass can set three class attributes:

    * `ALIASES` maps alternative names to field names; they are accepted wherever values come in.
    * `CLEARS` maps a field to another field, None by default, that may replace it. Setting either
      field resets the other one, to its default or to None. Setting both at once raises a
      `ConfigValueError`, unless the first field has its default value.
    * `UNKNOWN_KEY_HINTS` maps a key that users of other systems may try to a sentence that says
      what to use instead. The error about the unknown key ends with this sentence.

    Args:
        default_params: Nested values that override the fields' defaults.
        restrictions: Rules for `validate`; see `params_dict.Restriction`.
    """

    IMMUTABLE_TYPES: ClassVar[tuple[type, ...]] = (str, int, float, bool, type(None))
    SEQUENCE_TYPES: ClassVar[tuple[type, ...]] = (list, tuple)
    CLEARS: ClassVar[Mapping[str, str]] = {}
    _BUILDER: ClassVar[Any] = None
    _COMPILED: ClassVar[dict[str, FieldType]]

    default_params: dataclasses.InitVar[Mapping[str, Any] | None] = None
    restrictions: dataclasses.InitVar[Iterable[Restriction] | None] = None

    def __new__(cls, *_: Any, **kwargs: Any) -> Self:
        code = getattr(cls.__init__, "__code__", None)
        if code is not None and not code.co_flags & inspect.CO_VARKEYWORDS:
            taken = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
            for name in kwargs.keys() - set(taken):
                raise errors.ConfigTypeError(
                    f"{cls.__name__} has no field {name!r}. {suggestions.did_you_mean(name, taken)}"
                )
        return super().__new__(cls)

    def __post_init__(
        self,
        default_params: Mapping[str, Any] | None,
        restrictions: Iterable[Restriction] | None,
    ) -> None:
        self.__dict__["_locked"] = False
        self.__dict__["_restrictions"] = list(restrictions or ())
        self._refuse_rivals(self.__dict__, self._cursor())
        if default_params:
            strict = not (self._is_open() or self.IS_LENIENT)
            self._override(default_params, self._cursor()._replace(strict=strict))

    @property
    def BUILDER(self) -> Any:
        """The class or function that `bind` set as the builder of this config class."""
        return self._BUILDER

    def __setattr__(self, key: str, value: object) -> None:
        if key in ("BUILDER", "_BUILDER"):
            raise AttributeError(
                "`BUILDER` is a property and `_BUILDER` is the reserved class attribute. "
                "Set the builder of a config class with `bind`."
            )
        if key in self.RESERVED_ATTR:
            self.__dict__[key] = value
            return
        cursor = self._cursor().key(key)
        self._refuse_if_locked(cursor)
        if not self.IS_LENIENT and key not in self._field_types() and key not in self:
            raise self._unknown_key(key, cursor)
        self._set(key, value, self.__dict__.get(key), cursor)
        # The constructor sets `_locked` after it has assigned all fields. Until then, do not clear
        # mutually exclusive fields.
        if "_locked" in self.__dict__:
            self._clear_rivals({key: value})

    def __eq__(self, other: object) -> bool:
        # Only open configs use this method: `dataclasses` generates `__eq__` for all other configs.
        return type(other) is type(self) and other.as_dict() == self.as_dict()

    def __repr__(self) -> str:
        return f"Config({self.as_dict()!r})"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """Return the config as YAML, which is what IPython and notebooks display."""
        del include, exclude  # IPython applies these filters to the result.
        return {"text/plain": yaml_io.to_yaml(self.as_dict()).rstrip("\n")}

    @params_dict.method
    def replace(self, **kwargs: Any) -> Self:
        """Return an unlocked copy with some fields overridden; this config does not change."""
        replaced = self._copy()
        replaced.override(kwargs)
        return replaced

    @classmethod
    def from_yaml(cls, file_path: str | os.PathLike[str]) -> Self:
        """Build a config from the defaults of this class, overridden by a YAML or JSON file.

        A file does not name classes. If a field holds a subclass of its annotation, build the
        config first and pass the file to `override_params_dict`, which keeps the classes.

        Raises:
            ConfigError: As for `params_dict.override_params_dict`, with file and line.
        """
        return cls(yaml_io.read_yaml(file_path))

    @classmethod
    def from_json(cls, file_path: str | os.PathLike[str]) -> Self:
        """Build a config from a JSON file, as `from_yaml` does; JSON is a subset of YAML."""
        return cls.from_yaml(file_path)

    @classmethod
    def from_args(cls, *args: Any, **kwargs: Any) -> Self:
        """Build a config from positional values for the fields that this class itself declares.

        Raises:
            ConfigTypeError: There are more values than fields.
        """
        names = list(inspect.get_annotations(cls))
        if len(args) > len(names):
            raise errors.ConfigTypeError(
                f"{cls.__name__} declares {len(names)} fields, but got {len(args)} positional "
                "values. Pass at most one value per field."
            )
        return cls(default_params=dict(zip(names, args, strict=False)) | kwargs)

    @params_dict.method
    def validate_fields(self) -> None:
        """Check constraints that annotations cannot express; `validate` calls this method.

        Subclasses override it and raise a `ConfigValueError` that names the field.
        """

    def _read(self, key: str, value: yaml_io.Text) -> Any:
        return self._field_types().get(key, _UNDECLARED).read(value)

    def _merge(self, params: Mapping[str, Any], cursor: Cursor) -> None:
        self._refuse_rivals(params, cursor)
        super()._merge(params, cursor)
        self._clear_rivals(params)

    def _clear_rivals(self, given: Mapping[str, Any]) -> None:
        for name, rival in self.CLEARS.items():
            if given.get(name) is not None and rival not in given:
                self.__dict__[rival] = None
            elif given.get(rival) is not None and name not in given:
                self.__dict__[name] = getattr(type(self), name)

    def _refuse_rivals(self, given: Mapping[str, Any], cursor: Cursor) -> None:
        for name, rival in self.CLEARS.items():
            # Treat a default value as not given: a serialized config contains the default of a
            # field even if a mutually exclusive field replaces it.
            is_given = given.get(name) not in (None, getattr(type(self), name))
            if is_given and given.get(rival) is not None:
                raise errors.ConfigValueError(
                    f"{cursor.key(rival, given)}: `{name}` is {given[name]!r} and `{rival}` is "
                    f"{given[rival]!r}, which are mutually exclusive. Set only one of them."
                )

    def _set(self, key: str, value: object, current: object, cursor: Cursor) -> None:
        field_type = self._field_types().get(key)
        if field_type is None:
            _refuse_nested_sequence(value, cursor)
            field_type = _UNDECLARED
        self.__dict__[key] = field_type.convert(value, current, cursor)

    def _validate(self, cursor: Cursor) -> None:
        # A list may have been changed in place since it was assigned, so check the types again.
        for key, field_type in self._field_types().items():
            value = self.__dict__.get(key)
            if not field_type.accepts(value):
                field_type.convert(value, None, cursor.key(key))
        try:
            self.validate_fields()
        except errors.ConfigValueError as error:
            if not cursor.path:
                raise
            raise errors.ConfigValueError(f"In {cursor}: {error}") from error
        super()._validate(cursor)

    @classmethod
    def _is_open(cls) -> bool:
        return not cls._field_types()

    @classmethod
    def _field_types(cls) -> dict[str, FieldType]:
        # Resolving annotations is slow, so do it once per class, on first use.
        if "_COMPILED" not in cls.__dict__:
            cls._COMPILED = _compile_fields(cls)
        return cls._COMPILED


def _compile_fields(config_cls: type[Config]) -> dict[str, FieldType]:
    try:
        hints = typing.get_type_hints(config_cls)
    except NameError as error:
        raise errors.ConfigTypeError(
            f"An annotation of {config_cls.__name__} can't be resolved: {error}. "
            "Import or define the name at the top of the module."
        ) from error
    declared = {field.name for field in dataclasses.fields(config_cls)}
    if lost := [n for n in inspect.get_annotations(config_cls) if n in hints and n not in declared]:
        lost = [name for name in lost if typing.get_origin(hints[name]) is not ClassVar]
        if lost and "__dataclass_fields__" not in config_cls.__dict__:
            logging.warning(
                "%s declares `%s`, but is not a dataclass, so no config can set it. Decorate the "
                "class with `@dataclasses.dataclass`.",
                config_cls.__name__,
                "`, `".join(lost),
            )
    compiled = {}
    for field in dataclasses.fields(config_cls):
        sequence_class = tuple if isinstance(field.default, tuple) else list
        kind = _field_type(hints[field.name], sequence_class, is_lenient=config_cls.IS_LENIENT)
        if field.default is None and not kind.accepts(None):
            kind = UnionType([kind, NoneType()])
        compiled[field.name] = kind
    return compiled


def _refuse_nested_sequence(value: object, cursor: Cursor) -> None:
    """Raise if an undeclared key holds a nested sequence, which requires an annotation."""
    if isinstance(value, list | tuple):
        if any(isinstance(element, list | tuple) for element in value):
            raise errors.ConfigTypeError(
                f"{cursor}: Invalid sequence: only supports single level lists and tuples where "
                f"no field is declared; got {_described(value)}. Declare a field for a nested "
                "sequence."
            )


_SequenceClass = type[list[Any]] | type[tuple[Any, ...]]
_Elements = list[Any] | tuple[Any, ...] | yaml_io.ListItems

_ABSTRACT_SEQUENCES = (
    collections.abc.Sequence,
    collections.abc.Iterable,
    collections.abc.Collection,
)


def _field_type(
    hint: object,
    sequence_class: _SequenceClass,
    *,
    is_lenient: bool = False,
) -> FieldType:
    """Return the `FieldType` of a resolved annotation.

    An annotation that YAML cannot express accepts plain values.

    Args:
        hint: The annotation.
        sequence_class: The class stored for an annotation such as `Sequence[int]`.
        is_lenient: Whether values that do not fit the annotation are accepted as they are.
    """
    compiled = functools.partial(_field_type, sequence_class=sequence_class, is_lenient=is_lenient)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    base = origin or getattr(hint, "__supertype__", hint)
    declared: FieldType = _UNDECLARED
    if origin in (typing.Union, types.UnionType):
        declared = UnionType([compiled(arg) for arg in args])
    elif origin is typing.Literal:
        declared = LiteralType(args)
    elif origin is typing.Annotated:
        return compiled(args[0])
    elif hint is None or hint is types.NoneType:
        declared = NoneType()
    elif not isinstance(base, type):
        pass
    elif base in (str, bool, int, float):
        declared = ScalarType(base)
    elif issubclass(base, params_dict.ParamsDict):
        declared = ConfigType(base)
    elif issubclass(base, tuple):
        items = [compiled(arg) for arg in args if arg is not Ellipsis]
        # In configs written for the Model Garden, `Tuple[str]` means any number of strings.
        is_fixed = len(items) > 1
        declared = TupleType(items) if is_fixed else SequenceType([*items, _UNDECLARED][0], tuple)
    elif issubclass(base, Mapping):
        declared = MappingType(compiled(args[1]) if args else _UNDECLARED)
    elif issubclass(base, list) or base in _ABSTRACT_SEQUENCES:
        kind = list if issubclass(base, list) else sequence_class
        declared = SequenceType(compiled(args[0]) if args else _UNDECLARED, kind)
    # Values without an annotation already accept everything.
    is_widened = is_lenient and declared is not _UNDECLARED
    return UnionType([declared, _UNDECLARED]) if is_widened else declared


class FieldType(abc.ABC):
    """Base class of the types that check and convert the value of a field."""

    name: str

    @abc.abstractmethod
    def accepts(self, value: object) -> bool:
        """Return whether `convert` would accept the value; dict contents are not checked."""

    @abc.abstractmethod
    def convert(self, value: object, current: object, cursor: Cursor) -> Any:
        """Return the value to store in place of `current`, which is None if nothing is stored.

        Raises:
            ConfigTypeError: The value has the wrong type.
            ConfigValueError: The value has the right type but is invalid.
            UnknownKeyError: A nested dict contains a key that its config does not have.
        """

    def read(self, value: object) -> Any:
        """Return a command-line text parsed as YAML, or the text itself if only that is accepted.

        Raises:
            ConfigValueError: The text is not valid YAML, and this type does not accept strings.
        """
        if not isinstance(value, yaml_io.Text):
            return value
        if value.problem is None and (self.accepts(value.parsed) or not self.accepts(value.text)):
            return value.parsed
        if value.problem is not None and not self.accepts(value.text):
            raise value.problem
        return value.text

    def mismatch(self, value: object, cursor: Cursor) -> errors.ConfigTypeError:
        return errors.ConfigTypeError(
            f"{cursor}: expected {self.name}, got {_described(value)}.{_hint(self.name, value)}"
        )


class AnyType(FieldType):
    """Type of plain values of any kind; dicts become the open config class."""

    name = "a plain value"

    def __init__(self, open_class: type[Config]) -> None:
        self._open = ConfigType(open_class)

    def accepts(self, value: object) -> bool:
        return yaml_io.is_scalar(value) or _is_sequence(value) or self._open.accepts(value)

    def convert(self, value: object, current: object, cursor: Cursor) -> Any:
        if yaml_io.is_scalar(value):
            return yaml_io.plain_scalar(value, cursor)
        if _is_sequence(value):
            pairs = yaml_io.pair_elements(value, current, cursor)
            elements = _convert_pairs(pairs, lambda _: self, cursor)
            model = current if isinstance(value, yaml_io.ListItems) else value
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

    _ABSTRACT: ClassVar[dict[type, type]] = {
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
        value = yaml_io.unboxed(value)
        is_bool = isinstance(value, bool)
        return is_bool if self._kind is bool else isinstance(value, self._abstract) and not is_bool

    def convert(self, value: object, current: object, cursor: Cursor) -> Any:
        if not self.accepts(value):
            raise self.mismatch(value, cursor)
        plain: Any = yaml_io.plain_scalar(cast("yaml_io.ForeignScalar", value), cursor)
        return float(plain) if self._kind is float else plain


class LiteralType(FieldType):
    """Type of a value from a fixed set of choices."""

    def __init__(self, choices: tuple[Any, ...]) -> None:
        self.name = " or ".join(repr(choice) for choice in choices)
        self._choices = choices

    def accepts(self, value: object) -> bool:
        value = yaml_io.unboxed(value)
        return any(value == choice and type(value) is type(choice) for choice in self._choices)

    def convert(self, value: object, current: object, cursor: Cursor) -> Any:
        if not self.accepts(value):
            raise errors.ConfigValueError(
                f"{cursor}: expected {self.name}, got {_described(value)}."
            )
        return yaml_io.unboxed(value)


class ConfigType(FieldType):
    """Type of configs of one class or its subclasses; a dict updates or creates a config."""

    def __init__(self, config_class: type[params_dict.ParamsDict]) -> None:
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
        replaced = current.value if isinstance(current, yaml_io.Replaced) else None
        if isinstance(replaced, self._class) and isinstance(value, Mapping):
            return replaced._of_same_classes(value)
        return self._class()


class MappingType(FieldType):
    """Type of a dict with arbitrary keys and annotated values, stored as an open config."""

    def __init__(self, value_type: FieldType) -> None:
        self.name = f"a dict of {value_type.name}"
        self._value_type = value_type
        self._open = ConfigType(Config)

    def accepts(self, value: object) -> bool:
        return self._open.accepts(value)

    def convert(self, value: object, current: object, cursor: Cursor) -> Any:
        if not self.accepts(value):
            raise self.mismatch(value, cursor)
        given = cast("Mapping[str, Any] | params_dict.ParamsDict", value)
        mapping = given.as_dict() if isinstance(given, params_dict.ParamsDict) else given
        old = vars(current) if isinstance(current, params_dict.ParamsDict) else {}
        # Values without an annotation accept new keys at any depth, as the dict itself does.
        inside = cursor._replace(strict=cursor.strict and self._value_type is not _UNDECLARED)
        converted = {
            key: self._value_type.convert(
                self._value_type.read(element), old.get(key), inside.key(key, mapping)
            )
            for key, element in mapping.items()
        }
        return self._open.convert(converted, current, cursor._replace(strict=False))


class SequenceType(FieldType):
    """Type of a list or tuple with any number of elements of one type."""

    def __init__(self, item_type: FieldType, sequence_class: _SequenceClass) -> None:
        self.name = f"{sequence_class.__name__}[{item_type.name}]"
        self._item_type = item_type
        self._class = sequence_class

    def accepts(self, value: object) -> bool:
        if isinstance(value, yaml_io.ListItems):
            return True
        return _is_sequence(value) and all(self._item_type.accepts(item) for item in value)

    def convert(self, value: object, current: object, cursor: Cursor) -> Any:
        if not _is_sequence(value):
            raise self.mismatch(value, cursor)
        pairs = yaml_io.pair_elements(value, current, cursor)
        return self._class(_convert_pairs(pairs, lambda _: self._item_type, cursor))


class TupleType(FieldType):
    """Type of a fixed-length tuple with a type for each position."""

    def __init__(self, item_types: list[FieldType]) -> None:
        self.name = f"tuple[{', '.join(item_type.name for item_type in item_types)}]"
        self._item_types = item_types

    def accepts(self, value: object) -> bool:
        if isinstance(value, yaml_io.ListItems):
            return True
        return (
            _is_sequence(value)
            and len(value) == len(self._item_types)
            and all(kind.accepts(item) for kind, item in zip(self._item_types, value, strict=True))
        )

    def convert(self, value: object, current: object, cursor: Cursor) -> Any:
        if not _is_sequence(value):
            raise self.mismatch(value, cursor)
        pairs = yaml_io.pair_elements(value, current, cursor)
        if len(pairs) != len(self._item_types):
            raise errors.ConfigValueError(
                f"{cursor}: expected {len(self._item_types)} values ({self.name}), "
                f"got {len(pairs)}."
            )
        return tuple(_convert_pairs(pairs, self._item_types.__getitem__, cursor))


class UnionType(FieldType):
    """Type that converts a value with the first of several types that accepts it."""

    def __init__(self, members: list[FieldType]) -> None:
        # Try `int` before `float`, which also accepts integers.
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
            # Let the sequence type raise the error, because it reports which element is wrong.
            return values[0].convert(value, current, cursor)
        raise self.mismatch(value, cursor)


def _described(value: object) -> str:
    """Describe a value for an error message, usually by its shortened `repr` and its type."""
    if value is None:
        return "null"
    if isinstance(value, params_dict.ParamsDict):
        return f"a {type(value).__name__}"
    if isinstance(value, yaml_io.ListItems):
        return "values for single list elements"
    return f"{reprlib.repr(value)} ({type(value).__name__})"


def _full_name(config_class: type[params_dict.ParamsDict]) -> str:
    return f"{config_class.__module__}.{config_class.__qualname__}"


def _convert_pairs(
    pairs: list[tuple[Any, Any]], type_of: Callable[[int], FieldType], cursor: Cursor
) -> list[Any]:
    return [
        type_of(position).convert(type_of(position).read(value), current, cursor.item(position))
        for position, (value, current) in enumerate(pairs)
    ]


def _is_sequence(value: object) -> TypeGuard[_Elements]:
    return isinstance(value, list | tuple | yaml_io.ListItems)


def _is_mapping(value: object) -> bool:
    """Return whether the value is a dict or an open config, which is equivalent to a dict."""
    if isinstance(value, params_dict.ParamsDict):
        return value._is_open()
    return isinstance(value, Mapping) and not isinstance(value, yaml_io.ListItems)


def _hint(wanted: str, value: object) -> str:
    if value is None:
        return " Only optional fields accept null."
    if not isinstance(value, str | numbers.Real):
        return ""
    # Ignore the types in brackets, which apply to the elements of a list instead of the value.
    kinds = set(re.findall(r"\w+", re.sub(r"\[.*\]", "", wanted)))
    if value in ("None", "none") and "null" in kinds:
        return " Write null."
    if "list" in kinds and not kinds & {"str", "int", "float", "bool"}:
        return f" Write [{value}]." if isinstance(value, str) else " Write a list: […]."
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


class Lenient:
    """Mixin for config classes ported from the Model Garden, whose fields accept any value.

    List the mixin before the base class. Values that fit their annotation are converted as usual.
    Others, such as None or a float for an `int`, are kept as they are. A dict from which such a
    config is built may contain other keys, and code may assign to them: `config.key = value`.
    Overriding a key that does not exist is still an error.
    Locking an outer config does not lock a lenient one, because models change their configs.
    """

    IS_LENIENT: ClassVar[bool] = True


class FreeConfig(Config):
    """Config that accepts any keys at any time, with values nested in any way."""

    def _merge(self, params: Mapping[str, Any], cursor: Cursor) -> None:
        super()._merge(params, cursor._replace(strict=False))

    def _set(self, key: str, value: object, current: object, cursor: Cursor) -> None:
        self.__dict__[key] = _ANYTHING.convert(value, current, cursor)


class PluginConfig(FreeConfig):
    """Config with the `name` of a class and the arguments to call it with.

    An override that contains a `name` replaces the whole entry, so that no arguments of another
    class remain. An override without a `name` changes individual arguments.
    """

    def _merge(self, params: Mapping[str, Any], cursor: Cursor) -> None:
        if "name" in params:
            for key in self._keys():
                del self.__dict__[key]
        super()._merge(params, cursor)
        self._require_name(cursor)

    def _validate(self, cursor: Cursor) -> None:
        self._require_name(cursor)
        super()._validate(cursor)

    def _require_name(self, cursor: Cursor) -> None:
        name = self.get("name")
        if not isinstance(name, str) or not name:
            # In an entry like `{early_stopping: {patience: 3}}`, the name is the key. Use the key
            # as the example in the message.
            nested = [key for key in self._keys() if isinstance(self.get(key), Config)]
            example = nested[0] if nested and name is None else "…"
            raise errors.ConfigValueError(
                f"{cursor}: `name` is {'missing' if name is None else repr(name)}; expected a "
                f"name or a dict with `name` and arguments: {{name: {example}, argument: value}}."
            )


@dataclasses.dataclass
class OneOfConfig(Config):
    """Config that holds alternatives in its fields and selects one of them by its field `type`.

    ::

        @dataclasses.dataclass
        class WarmupConfig(OneOfConfig):
            type: str | None = None
            linear: LinearWarmupConfig = dataclasses.field(default_factory=LinearWarmupConfig)

        WarmupConfig({"type": "linear", "linear": {"warmup_steps": 500}}).get()

    Only the selected alternative is exported and validated. An override that sets an alternative
    that is not selected would have no effect, so it raises an error.

    Attributes:
        type: The name of the selected field; None or an empty string selects nothing.
    """

    type: str | None = None

    def get(self) -> Any:  # type: ignore[override]  # the signature of the Model Garden
        """Return the selected alternative, or None."""
        return self.__dict__[self.type] if self.type else None

    def __setattr__(self, key: str, value: object) -> None:
        super().__setattr__(key, value)
        if key == "type":
            self._check_type(self._cursor().key("type"))

    def _merge(self, params: Mapping[str, Any], cursor: Cursor) -> None:
        super()._merge(params, cursor)
        if "type" in params:
            self._check_type(cursor.key("type", params))
        for key in params:
            if key not in ("type", self.type):
                raise self._no_effect(key, cursor.key("type"), cursor.key(key, params))

    def choices(self) -> str:
        """Return the alternatives as a sentence for an error message."""
        return f"Choose one of {', '.join(f'`{name}`' for name in sorted(self._alternatives()))}."

    @classmethod
    def _explain_mismatch(cls, value: object, path: str) -> str:
        if isinstance(value, str) and value in cls()._alternatives():
            return f" To choose `{value}`, set `{path}.type`."
        return f" Set `{path}.type` and the fields of that choice. {cls().choices()}"

    def _active_items(self) -> Iterator[tuple[str, Any]]:
        return ((key, value) for key, value in self._items() if key in ("type", self.type))

    def _check_type(self, cursor: Cursor) -> None:
        alternatives = self._alternatives()
        if self.type and self.type not in alternatives:
            raise errors.ConfigValueError(
                f"{cursor}: {type(self).__name__} has no alternative {self.type!r}. "
                f"{suggestions.did_you_mean(self.type, alternatives)}".rstrip()
            )

    def _no_effect(self, key: str, selector: Cursor, cursor: Cursor) -> errors.ConfigValueError:
        selected = f"is {self.type!r}" if self.type else "selects nothing"
        return errors.ConfigValueError(
            f"{cursor} would have no effect, because `{selector.path}` {selected}. Set "
            f"`{selector.path}` to {key!r} first, or in the same override."
        )

    def _alternatives(self) -> set[str]:
        # Include the declared fields, because the constructor sets `type` before the alternatives.
        declared = {field.name for field in dataclasses.fields(self)}
        return (declared | set(self._keys())) - {"type"}


_UNDECLARED = AnyType(Config)

_ANYTHING = AnyType(FreeConfig)
