"""Gin support: gin bindings as a layer of overrides, and gin files that repeat a run.

Gin bindings configure gin's own configurables (`create_trainer.trainer_cls = @MyTrainer`). To set
fields of the experiment, bind arguments of the configurable `params` in the scope of their block::

    trainer/params.train_steps = 100
    task/train_data/params.global_batch_size = 64
    trainer/optimizer_config/optimizer/params.type = 'adamw'

These values are checked in the same way as YAML. `operative_config` writes every field of a
resolved config in this form, below gin's other bindings. Gin's own `operative_config_str` would
omit all arguments that were passed explicitly.
"""

# Gin uses `importlib.util` without importing it.
import importlib
import importlib.util
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gin
from gin import config_parser

from official_lite.common import errors, files
from official_lite.config import mutually_exclusive
from official_lite.modeling import hyperparams

__all__ = [
    "apply_bindings",
    "bindings",
    "find_other_bindings",
    "operative_config",
    "parse_gin",
    "parse_gin_flags",
]


_BLOCK = "params"

_NO_LINE_LIMIT = 10_000

# Gin has no literal for infinity.
_CONSTANTS = {"official_lite.inf": math.inf, "official_lite.minus_inf": -math.inf}


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
    try:
        if safe:
            for source, text in _texts(gin_files or [], gin_params or []):
                _refuse_code(source, text)
        gin.parse_config_files_and_bindings(gin_files, gin_params, finalize_config=False)
    except errors.ConfigError:
        raise
    except (OSError, SyntaxError, ValueError, ImportError, AttributeError) as error:
        raise errors.ConfigValueError(f"Gin: {error}") from error


def apply_bindings(params: hyperparams.Config) -> hyperparams.Config:
    """Override the config with gin's `params` bindings.

    Raises:
        errors.ConfigError: As for any other override, for example if a field is unknown or a type
            is wrong.
    """
    given: set[str] = set()
    for binding in _own_bindings():
        blocks = binding.scope.split("/") if binding.scope else []
        path = ".".join([*blocks, binding.arg_name])
        with gin.config_scope(binding.scope):
            # Read the value through the configurable, so that macros are resolved.
            value = _bound_values()[binding.arg_name]
        mutually_exclusive.refuse_both(params, path, value, given, "gin")
        hyperparams.override_params_dict(params, _nested(path, value), is_strict=True)
        given.add(path)
    return params


def operative_config(params: hyperparams.Config) -> str:
    """Return the text of a gin file that repeats the run if passed as `--gin_file`.

    Raises:
        errors.ConfigValueError: If a value can't be written in gin, or reads back differently.
    """
    lines = ["# All fields of the experiment. Pass this file as --gin_file to repeat the run.", ""]
    for path, value in hyperparams.flatten(params).items():
        *blocks, name = path.split(".")
        scope = "/".join([*blocks, _BLOCK])
        if not _is_stood_in_for(params, blocks, name):
            lines.append(f"{scope}.{name} = {_literal(path, value)}")
    return f"{_other_bindings()}\n{chr(10).join(lines)}\n"


def _is_stood_in_for(params: hyperparams.Config, blocks: Sequence[str], name: str) -> bool:
    """Return whether a mutually exclusive field is set, which binding this field would reset."""
    block = hyperparams.get_by_path(params, ".".join(blocks)) if blocks else params
    rival = getattr(block, "CLEARS", {}).get(name)
    return rival is not None and getattr(block, rival) is not None


def find_other_bindings() -> list[str]:
    """Return gin's bindings other than config fields and macros, such as arguments of trainers."""
    statements = config_parser.ConfigParser(gin.config_str(), _Delegate())
    return [
        f"{statement.selector}.{statement.arg_name}"
        for statement in statements
        if isinstance(statement, config_parser.BindingStatement)
        and statement.arg_name
        and statement.selector.rpartition(".")[-1] not in (_BLOCK, "macro")
    ]


def bindings() -> str:
    """Return all of gin's bindings as the text of a gin file."""
    text = gin.config_str(max_line_length=_NO_LINE_LIMIT)
    return re.sub(r"# =+", "# " + "=" * 78, text)


class _Delegate(config_parser.ParserDelegate):
    """Parser delegate that keeps references and macros as text."""

    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> str:
        return f"@{scoped_configurable_name}{'()' if evaluate else ''}"

    def macro(self, macro_name: str) -> str:
        return f"%{macro_name}"


class _SafeDelegate(_Delegate):
    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> str:
        raise errors.ConfigValueError(
            f"`@{scoped_configurable_name}` can run code, and --safe_config was given."
        )


def _own_bindings() -> Iterator[config_parser.BindingStatement]:
    for statement in config_parser.ConfigParser(gin.config_str(), _Delegate()):
        if isinstance(statement, config_parser.BindingStatement):
            if statement.selector.rpartition(".")[-1] == _BLOCK:
                yield statement


def _other_bindings() -> str:
    """Return gin's config without the sections of experiment fields, which are written in full."""
    sections = bindings().split("\n# Parameters for ")
    kept = [s for s in sections if s.partition(":")[0].rpartition("/")[-1] != _BLOCK]
    return "\n# Parameters for ".join(kept)


def _texts(gin_files: Sequence[str], gin_params: Sequence[str]) -> Iterator[tuple[str, str]]:
    for path in gin_files:
        yield path, files.read_text(path)
    for text in gin_params:
        yield "--gin_params", text


def _refuse_code(source: str, text: str) -> None:
    refused = (config_parser.ImportStatement, config_parser.IncludeStatement)
    for statement in config_parser.ConfigParser(text, _SafeDelegate()):
        # A macro (`rate = 0.1`) has no argument name.
        if isinstance(statement, config_parser.BindingStatement) and statement.arg_name:
            if statement.selector.rpartition(".")[-1] != _BLOCK:
                raise errors.ConfigValueError(
                    f"{source} line {statement.location.line_num}: `{statement.selector}."
                    f"{statement.arg_name}` is an argument of a function, and --safe_config was "
                    "given. Bind fields of the experiment, as in `trainer/params.train_steps = 1`."
                )
        if isinstance(statement, refused):
            raise errors.ConfigValueError(
                f"{source} line {statement.location.line_num}: `import` and `include` can run "
                "code, and --safe_config was given."
            )


def _nested(path: str, value: Any) -> dict[str, Any]:
    for name in reversed(path.split(".")):
        value = {name: value}
    return dict(value)


def _literal(path: str, value: Any) -> str:
    try:
        # Constants are compared by a literal that gin would lose when it writes its config.
        is_same = gin.config.parse_value(_text(value, {math.inf: "1e999"})) == value
    except (SyntaxError, ValueError):
        is_same = False
    if not is_same:
        raise errors.ConfigValueError(f"`{path}` is {value!r}, which can't be written as gin.")
    return _text(value, {constant: f"%{name}" for name, constant in _CONSTANTS.items()})


def _text(value: Any, constants: Mapping[float, str]) -> str:
    """Return the `repr` of a value, with the text of the constants in it."""
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

# Use the import above, so that linters do not report it as unused.
_ = importlib.util


# Importing these modules registers the objects that a gin file may refer to. It also imports
# TensorFlow, so it is done only if there is any gin to parse.
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
