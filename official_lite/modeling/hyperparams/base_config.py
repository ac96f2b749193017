"""`Config`: a dataclass whose fields are checked however their values arrive."""

from __future__ import annotations

import dataclasses
import inspect
import os
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Self, TypeVar

from official_lite.common import errors, suggestions
from official_lite.modeling.hyperparams import field_types, params_dict, yaml_io
from official_lite.modeling.hyperparams.overrides import Cursor
from official_lite.modeling.hyperparams.restrictions import Restriction

_Builder = TypeVar("_Builder", bound=Callable[..., Any])


def bind(config_cls: type[Config]) -> Callable[[_Builder], _Builder]:
    """Class or function decorator: makes the decorated thing the `BUILDER` of a config class.

    Raises:
      ConfigValueError: `config_cls` is no class or already bound, or the builder can't be called.
    """
    if not inspect.isclass(config_cls):
        raise errors.ConfigValueError(f"`bind` wants a config class, got {config_cls!r}.")

    def decorator(builder: _Builder) -> _Builder:
        if config_cls.__dict__.get("_BUILDER") is not None:
            raise errors.ConfigValueError(
                "Inside a program, we should not bind a config to a class twice; "
                f"{config_cls.__name__} has the builder {config_cls._BUILDER!r}."
            )
        if not (inspect.isclass(builder) or inspect.isfunction(builder)):
            raise errors.ConfigValueError(f"A builder is a class or a function, not {builder!r}.")
        # Static, so that a function does not take the config for its first argument.
        config_cls._BUILDER = staticmethod(builder)
        return builder

    return decorator


@dataclasses.dataclass
class Config(params_dict.ParamsDict):
    """Base class of configs; subclasses are dataclasses too.

    A field holds a text, a number, a boolean, None, a config, or lists and tuples of these. A dict
    becomes the annotated config class, or a bare `Config` with the keys of the dict. Assigned
    configs and lists are copied. A field whose default is None takes None whatever its annotation.

    A class that declares fields knows no others. `Config` itself and subclasses without fields are
    open: the constructor takes any keys.

    A subclass may say in `ALIASES` by which other names a field goes wherever values come in, and
    in `CLEARS` for which field another one, None by default, may stand in. Of the two the one
    given last counts, and the other goes back to its default or to None. It is a
    `ConfigValueError` to give both at once, as far as the first one is not at its default.

    Args:
      default_params: nested values that override the fields' defaults.
      restrictions: rules for `validate`, see `restrictions.Restriction`.
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
            self._override(default_params, self._cursor()._replace(strict=not self._is_open()))

    @property
    def BUILDER(self) -> Any:
        """What `bind` tied to this class: the class or function that is built from the config."""
        return self._BUILDER

    def __setattr__(self, key: str, value: Any) -> None:
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
        if key not in self._field_types() and key not in self:
            raise self._unknown_key(key, cursor)
        self._set(key, value, self.__dict__.get(key), cursor)
        if "_locked" in self.__dict__:
            # Not while the fields get their first values.
            self._clear_rivals({key: value})

    def __eq__(self, other: object) -> bool:
        # Of open configs only: dataclasses compare their fields.
        return type(other) is type(self) and other.as_dict() == self.as_dict()

    def __repr__(self) -> str:
        return f"Config({self.as_dict()!r})"

    def replace(self, **kwargs: Any) -> Self:
        """An unlocked copy with some fields overridden; this config stays as it is."""
        replaced = self._copy()
        replaced.override(kwargs)
        return replaced

    @classmethod
    def from_yaml(cls, file_path: str | os.PathLike[str]) -> Self:
        """Reads a config from a YAML or JSON file over the defaults of this class.

        A file does not name classes: where a field holds a subclass of its annotation, build the
        config first and `override_params_dict` it with the file, which keeps the classes.

        Raises:
          ConfigError: as for `params_dict.override_params_dict`, with file and line.
        """
        return cls(yaml_io.read_yaml(file_path))

    @classmethod
    def from_json(cls, file_path: str | os.PathLike[str]) -> Self:
        """The same as `from_yaml`; JSON is YAML."""
        return cls.from_yaml(file_path)

    @classmethod
    def from_args(cls, *args: Any, **kwargs: Any) -> Self:
        """Builds a config from positional values for the fields that this very class declares.

        Raises:
          ConfigTypeError: there are more values than fields.
        """
        names = list(inspect.get_annotations(cls))
        if len(args) > len(names):
            raise errors.ConfigTypeError(
                f"{cls.__name__} declares {len(names)} fields, got {len(args)} values."
            )
        return cls(default_params=dict(zip(names, args, strict=False)) | kwargs)

    def validate_fields(self) -> None:
        """Checks of this very config what its annotations can't say; `validate` calls it.

        To be overridden, by raising a `ConfigValueError` that names the field.
        """

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
            # A config that is written out has the default beside what stands in for it.
            is_given = given.get(name) not in (None, getattr(type(self), name))
            if is_given and given.get(rival) is not None:
                raise errors.ConfigValueError(
                    f"{cursor.key(rival, given)}: `{name}` is {given[name]!r} and `{rival}` is "
                    f"{given[rival]!r}, which say one thing in two ways. Give one of them."
                )

    def _set(self, key: str, value: Any, current: Any, cursor: Cursor) -> None:
        field_type = self._field_types().get(key)
        if field_type is None:
            _refuse_nested_sequence(value, cursor)
            field_type = _UNDECLARED
        self.__dict__[key] = field_type.convert(value, current, cursor)

    def _validate(self, cursor: Cursor) -> None:
        # A list can be changed behind our back, so the types are checked once more.
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
        # Resolving annotations is slow, so each class does it once, when it is first needed.
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
    compiled = {}
    for field in dataclasses.fields(config_cls):
        sequence_class = tuple if isinstance(field.default, tuple) else list
        field_type = field_types.HintCompiler(Config, sequence_class).compile(hints[field.name])
        is_optional = field.default is None
        compiled[field.name] = field_types.optional(field_type) if is_optional else field_type
    return compiled


def _refuse_nested_sequence(value: Any, cursor: Cursor) -> None:
    """Undeclared keys hold flat lists, so that their meaning is plain without an annotation."""
    if isinstance(value, list | tuple):
        if any(isinstance(element, list | tuple) for element in value):
            raise errors.ConfigTypeError(
                f"{cursor}: Invalid sequence: only supports single level lists and tuples where "
                f"no field is declared; got {field_types.describe(value)}."
            )


_UNDECLARED = field_types.AnyType(Config)
