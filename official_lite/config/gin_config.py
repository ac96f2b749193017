"""Gin support: gin bindings as a layer of overrides, and gin files that repeat a run.

Gin bindings configure gin's own configurables (`create_trainer.trainer_cls = @MyTrainer`). To set
fields of the experiment, bind arguments of the configurable `params` in the scope of their block::

    trainer/params.train_steps = 100
    task/train_data/params.global_batch_size = 64
    trainer/optimizer_config/optimizer/params.type = 'adamw'

All of them are one override, whose values are checked in the same way as YAML. `operative_config`
writes every field of a resolved config in this form, below gin's other bindings. Gin's own
`operative_config_str` would omit all arguments that were passed explicitly.
"""

import contextlib

# Import `importlib.util`, because gin uses it without importing it.
import importlib
import importlib.util
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gin
from absl import logging
from gin import config_parser

from official_lite.common import errors, files
from official_lite.config import epochs
from official_lite.modeling import hyperparams
from official_lite.modeling.hyperparams import params_dict

_BLOCK = "params"
_FULL_NAME = f"official_lite.{_BLOCK}"

_NO_LINE_LIMIT = 10_000

# Named constants for infinity, because gin has no literal for it.
_CONSTANTS = {"official_lite.inf": math.inf, "official_lite.minus_inf": -math.inf}


class CodeInGinError(errors.ConfigValueError):
    """A gin statement that can run code, where only fields of the experiment may be bound."""


@gin.configurable(_BLOCK, module="official_lite")
def _bound_values(**values: Any) -> dict[str, Any]:
    """Return the values bound in the current gin scope."""
    return values


def parse_gin(
    gin_files: Sequence[str] | None, gin_params: Sequence[str] | None, *, safe: bool = False
) -> None:
    """Parse gin files and bindings, in order. Gin files can import modules and call functions.

    Args:
        gin_files: The paths of gin files.
        gin_params: Single bindings.
        safe: Whether to reject everything that can run code: imports, includes and references.

    Raises:
        errors.ConfigValueError: If a statement can't be parsed, refers to a missing object, or is
            rejected.
    """
    gin_files = [files.expand_home(path) for path in gin_files or []]
    if safe:
        refuse_code(gin_files, gin_params)
    with _parsing():
        gin.parse_config_files_and_bindings(gin_files, gin_params, finalize_config=False)


def refuse_code(gin_files: Sequence[str] | None, gin_params: Sequence[str] | None) -> None:
    """Reject gin files and bindings that can run code, without running or applying them.

    Args:
        gin_files: The paths of gin files.
        gin_params: Single bindings.

    Raises:
        CodeInGinError: If a statement can run code.
        errors.ConfigValueError: If a statement can't be parsed.
    """
    with _parsing():
        for source, text in _texts(gin_files or [], gin_params or []):
            _refuse_code(source, text)


@contextlib.contextmanager
def _parsing() -> Iterator[None]:
    """Convert the errors that gin raises to a `ConfigValueError`."""
    try:
        yield
    except errors.ConfigError:
        raise
    except (OSError, SyntaxError, ValueError, ImportError, AttributeError, KeyError) as error:
        # Gin raises a `KeyError` if a name is ambiguous.
        raise errors.ConfigValueError(f"Can't parse the gin config: {error}") from error


def apply_bindings(params: hyperparams.Config) -> hyperparams.Config:
    """Override the config with gin's `params` bindings.

    Raises:
        errors.ConfigError: As for any other override, for example if a field is unknown or a type
            is wrong.
    """
    given: dict[str, Any] = {}
    for binding in _own_bindings():
        blocks = binding.scope.split("/") if binding.scope else []
        with gin.config_scope(binding.scope):
            # Read the value through the configurable, so that macros are resolved.
            value = _bound_values()[binding.arg_name]
        given[".".join([*blocks, binding.arg_name])] = value
    given = _without_outdated(params, given)
    epochs.refuse_both(params, given, "gin")
    params_dict.override_by_paths(params, given.items())
    return params


def _without_outdated(params: hyperparams.Config, given: Mapping[str, Any]) -> dict[str, Any]:
    """Drop bindings that another binding makes ineffective, and warn about each.

    Gin keeps the bindings of all files. If the last file selects another optimizer, for example,
    the fields of the previous optimizer are still bound.
    """
    outdated = {path: why for path in given if (why := _overruled_by(params, path, given))}
    for path, why in outdated.items():
        logging.warning(
            "Gin's binding of `%s` has no effect, because `%s` is bound to %r. Remove one of the "
            "two bindings.",
            path,
            why,
            given[why],
        )
    return {path: value for path, value in given.items() if path not in outdated}


def _overruled_by(params: hyperparams.Config, path: str, given: Mapping[str, Any]) -> str:
    """Return the path of a binding that makes the binding of `path` ineffective, or ""."""
    names = path.split(".")
    for depth in range(1, len(names)):
        parent, name = ".".join(names[:depth]), names[depth]
        if parent in given and not isinstance(given[parent], Mapping):
            return parent
        block = hyperparams.get_by_path(params, parent)
        is_choice = isinstance(block, hyperparams.OneOfConfig) and name in block and name != "type"
        if is_choice and given.get(selector := f"{parent}.type", name) != name:
            return selector
    return ""


def operative_config(params: hyperparams.Config) -> str:
    """Return the text of a gin file that repeats the run if passed as `--gin_file`.

    Raises:
        errors.ConfigValueError: If a value can't be written in gin, or reads back differently.
    """
    selector = _selector()
    lines = ["# All fields of the experiment. Pass this file as --gin_file to repeat the run.", ""]
    for path, value in hyperparams.flatten(params).items():
        *blocks, name = path.split(".")
        scope = "/".join([*blocks, selector])
        lines.append(f"{scope}.{name} = {_literal(path, value)}")
    return f"{_other_bindings()}\n{chr(10).join(lines)}\n"


def _selector() -> str:
    """Return gin's name for `params`, qualified if a user's configurable has the same name."""
    try:
        gin.get_configurable(_BLOCK)
    except KeyError:
        return _FULL_NAME
    return _BLOCK


def _is_own(selector: str) -> bool:
    return selector in (_BLOCK, _FULL_NAME)


def find_other_bindings() -> list[str]:
    """Return gin's bindings other than config fields and macros, such as arguments of trainers."""
    statements = config_parser.ConfigParser(gin.config_str(), _Delegate())
    return [
        f"{statement.selector}.{statement.arg_name}"
        for statement in statements
        if isinstance(statement, config_parser.BindingStatement)
        and statement.arg_name
        and not _is_own(statement.selector)
        and statement.selector.rpartition(".")[-1] != "macro"
    ]


def bindings() -> str:
    """Return all of gin's bindings as the text of a gin file."""
    text = gin.config_str(max_line_length=_NO_LINE_LIMIT)
    return re.sub(r"# =+", "# " + "=" * 78, text)


class _Delegate(config_parser.ParserDelegate):
    """A parser delegate that returns references and macros as text."""

    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> str:
        return f"@{scoped_configurable_name}{'()' if evaluate else ''}"

    def macro(self, macro_name: str) -> str:
        return f"%{macro_name}"


class _SafeDelegate(_Delegate):
    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> str:
        raise CodeInGinError(
            f"`@{scoped_configurable_name}` can run code, and --safe_config was given. Bind a "
            "value instead of a reference."
        )


def _own_bindings() -> Iterator[config_parser.BindingStatement]:
    for statement in config_parser.ConfigParser(gin.config_str(), _Delegate()):
        if isinstance(statement, config_parser.BindingStatement) and _is_own(statement.selector):
            yield statement


def _other_bindings() -> str:
    """Return gin's config without experiment fields, which `operative_config` writes in full."""
    sections = re.split(r"^(?=# Parameters for )", bindings(), flags=re.MULTILINE)
    titles = [re.match(r"# Parameters for (?:.*/)?(.*):", section) for section in sections]
    return "".join(
        section
        for section, title in zip(sections, titles, strict=True)
        if title is None or not _is_own(title[1])
    )


def _texts(gin_files: Sequence[str], gin_params: Sequence[str]) -> Iterator[tuple[str, str]]:
    for path in map(files.expand_home, gin_files):
        yield path, files.read_text(path)
    for text in gin_params:
        yield "--gin_params", text


def _refuse_code(source: str, text: str) -> None:
    refused = (config_parser.ImportStatement, config_parser.IncludeStatement)
    for statement in config_parser.ConfigParser(text, _SafeDelegate()):
        # A macro (`rate = 0.1`) has no argument name.
        if isinstance(statement, config_parser.BindingStatement) and statement.arg_name:
            if not _is_own(statement.selector):
                raise CodeInGinError(
                    f"{source} line {statement.location.line_num}: `{statement.selector}."
                    f"{statement.arg_name}` is an argument of a function, and --safe_config was "
                    "given. Bind fields of the experiment, as in `trainer/params.train_steps = 1`."
                )
        if isinstance(statement, refused):
            raise CodeInGinError(
                f"{source} line {statement.location.line_num}: `import` and `include` can run "
                "code, and --safe_config was given. Remove the statement."
            )


def _literal(path: str, value: Any) -> str:
    try:
        # Write infinity as `1e999` only for this comparison. Gin can parse `1e999`, but can't
        # serialize the parsed value, so the gin file uses named constants.
        is_same = gin.config.parse_value(_text(value, {math.inf: "1e999"})) == value
    except (SyntaxError, ValueError):
        is_same = False
    if not is_same:
        raise errors.ConfigValueError(
            f"`{path}` is {value!r}, which can't be written as gin. Set another value."
        )
    return _text(value, {constant: f"%{name}" for name, constant in _CONSTANTS.items()})


def _text(value: Any, constants: Mapping[float, str]) -> str:
    """Return the `repr` of a value, with infinities replaced as specified by `constants`."""
    if isinstance(value, float) and math.isinf(value):
        return constants.get(value) or f"-{constants[-value]}"
    if isinstance(value, dict):
        pairs = [f"{key!r}: {_text(one, constants)}" for key, one in value.items()]
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(_text(one, constants) for one in value)}]"
    if isinstance(value, tuple):
        return f"({''.join(f'{_text(one, constants)}, ' for one in value)})"
    return repr(value)


for _name, _value in _CONSTANTS.items():
    gin.constant(_name, _value)

# Use `importlib.util`, so that linters do not report its import as unused.
_ = importlib.util


# Importing these modules registers the objects that a gin file may refer to. This also imports
# TensorFlow, so the modules are imported only if there are gin files or bindings to parse.
_CONFIGURABLES = ("official_lite.core.train_lib",)


def parse_gin_flags(flags_obj: Any) -> None:
    """Parse the gin files and bindings of the flags; call this before `parse_configuration`.

    Raises:
        errors.ConfigValueError: See `parse_gin`.
    """
    if not flags_obj.gin_file and not flags_obj.gin_params:
        return
    for module in _CONFIGURABLES:
        importlib.import_module(module)
    safe = "safe_config" in flags_obj and flags_obj.safe_config
    parse_gin(flags_obj.gin_file, flags_obj.gin_params, safe=safe)
