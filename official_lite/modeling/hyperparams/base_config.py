"""Base class of configs: a dataclass that checks every value assigned to its fields."""

from __future__ import annotations

import dataclasses
import inspect
import os
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Self, TypeVar

from absl import logging

from official_lite.common import errors, suggestions
from official_lite.modeling.hyperparams import field_types, overrides, params_dict, yaml_io
from official_lite.modeling.hyperparams.overrides import Cursor
from official_lite.modeling.hyperparams.params_dict import Restriction

_Builder = TypeVar("_Builder", bound=Callable[..., Any])


def bind(config_cls: type[Config]) -> Callable[[_Builder], _Builder]:
    """Return a decorator that sets a class or function as the `BUILDER` of a config class.

    Raises:
      ConfigValueError: `config_cls` is not a class or already has a builder, or the builder is not
        a class or a function.
    """
    if not inspect.isclass(config_cls):
        raise errors.ConfigValueError(f"`bind` expects a config class, got {config_cls!r}.")

    def decorator(builder: _Builder) -> _Builder:
        if config_cls.__dict__.get("_BUILDER") is not None:
            raise errors.ConfigValueError(
                "Inside a program, we should not bind a config to a class twice; "
                f"{config_cls.__name__} is already bound to {config_cls._BUILDER!r}."
            )
        if not (inspect.isclass(builder) or inspect.isfunction(builder)):
            raise errors.ConfigValueError(
                f"A builder must be a class or a function, got {builder!r}."
            )
        # Static, so that a function does not receive the config as its first argument.
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
    _COMPILED: ClassVar[dict[str, field_types.FieldType]]

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
                "`BUILDER` is a property and `_BUILDER` is the reserved class attribute; "
                "`bind` sets it."
            )
        if key in self.RESERVED_ATTR:
            self.__dict__[key] = value
            return
        cursor = self._cursor().key(key)
        self._refuse_if_locked(cursor)
        if not self.IS_LENIENT and key not in self._field_types() and key not in self:
            raise self._unknown_key(key, cursor)
        self._set(key, value, self.__dict__.get(key), cursor)
        if "_locked" in self.__dict__:
            # Skip this while the fields receive their first values.
            self._clear_rivals({key: value})

    def __eq__(self, other: object) -> bool:
        # Used by open configs only: `dataclasses` generates a field-wise `__eq__` for the others.
        return type(other) is type(self) and other.as_dict() == self.as_dict()

    def __repr__(self) -> str:
        return f"Config({self.as_dict()!r})"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """Return the config as YAML, which is what IPython and notebooks display."""
        del include, exclude  # IPython filters the result.
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
                f"{cls.__name__} has {len(names)} fields, but got {len(args)} values."
            )
        return cls(default_params=dict(zip(names, args, strict=False)) | kwargs)

    @params_dict.method
    def validate_fields(self) -> None:
        """Check constraints that annotations cannot express; `validate` calls this method.

        Subclasses override it and raise a `ConfigValueError` that names the field.
        """

    def _read(self, key: str, value: overrides.Text) -> Any:
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
            # A serialized config contains the field's default next to the field that replaces it.
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
    def _field_types(cls) -> dict[str, field_types.FieldType]:
        # Resolving annotations is slow, so do it once per class, on first use.
        if "_COMPILED" not in cls.__dict__:
            cls._COMPILED = _compile_fields(cls)
        return cls._COMPILED


def _compile_fields(config_cls: type[Config]) -> dict[str, field_types.FieldType]:
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
        compiler = field_types.HintCompiler(
            Config, sequence_class, is_lenient=config_cls.IS_LENIENT
        )
        field_type = compiler.compile(hints[field.name])
        is_optional = field.default is None
        compiled[field.name] = field_types.optional(field_type) if is_optional else field_type
    return compiled


def _refuse_nested_sequence(value: object, cursor: Cursor) -> None:
    """Raise if an undeclared key holds a nested sequence, which requires an annotation."""
    if isinstance(value, list | tuple):
        if any(isinstance(element, list | tuple) for element in value):
            raise errors.ConfigTypeError(
                f"{cursor}: Invalid sequence: only supports single level lists and tuples where "
                f"no field is declared; got {field_types.describe(value)}."
            )


_UNDECLARED = field_types.AnyType(Config)


class Lenient:
    """Mixin for config classes ported from the Model Garden, whose fields accept any value.

    List it before the base class. Values that fit their annotation are converted as usual. Others,
    such as None or a float for an `int`, are kept as they are. A dict from which such a config is
    built may contain other keys, and code may assign to them: `config.key = value`. Overriding a
    key that does not exist is still an error.
    Locking the config that contains it does not lock it, because models change their configs.
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
            raise errors.ConfigValueError(
                f"{cursor}: `name` is {'missing' if name is None else repr(name)}; expected a "
                "name or a dict with `name` and arguments."
            )


_ANYTHING = field_types.AnyType(FreeConfig)
