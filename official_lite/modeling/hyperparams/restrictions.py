"""Rules that relate values of a config: `'task.stride <= model.window'`, or a function."""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from official_lite.common import errors, suggestions
from official_lite.modeling.hyperparams import overrides

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


class _Tree(Protocol):
    """A `ParamsDict`, whose module imports this one."""

    def as_dict(self) -> dict[str, Any]: ...


class RestrictionError(errors.ConfigValueError, KeyError):
    """Error for values that violate a restriction; also a `KeyError`, as in the Model Garden."""


def check(restriction: Restriction, config: _Tree, cursor: overrides.Cursor) -> None:
    """Raise if `config` violates `restriction`; `cursor` is its position in the whole tree.

    Raises:
      RestrictionError: The rule is violated, or the two values cannot be compared.
      UnknownKeyError: A path does not exist in the config.
      ConfigValueError: The restriction is malformed.
    """
    inside = f" in {cursor}" if cursor.path else ""
    if callable(restriction):
        if restriction(config) is False:
            name = getattr(restriction, "__name__", repr(restriction))
            raise RestrictionError(f"The restriction `{name}`{inside} is violated.")
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
            f"Found inconsistency between keys: the restriction `{restriction}`{inside} is "
            f"violated: the values are {left_value!r} and {right_value!r}."
        )


def _split(restriction: str) -> tuple[str, str, str]:
    parts = re.split(r"(==|!=|<=|>=|<|>)", restriction)
    if len(parts) != 3:
        raise errors.ConfigValueError(
            f"The restriction {restriction!r} is not of the form `a.b <= c.d` "
            f"with one of {' '.join(_OPERATORS)}."
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
                    f"A restriction uses `{text}`, but there is no {key!r}. "
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
            f"A restriction compares with {text!r}, which is not a number."
        ) from error
