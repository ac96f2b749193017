"""Resolution of plain, unquoted text to a value, shared by YAML, CSV overrides and `--set`.

YAML 1.1 has surprising conversions that spoil experiments: `off` is false, `010` is 8, `12:30` is
750 and `1e-3` is text. Here only null, true, false, decimal integers and decimal floats are
converted; everything else is text.
"""

import re

from official_lite.common import errors

Scalar = str | int | float | bool | None

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


def resolve_scalar(text: str, where: str) -> Scalar:
    """Return the value of a plain text; `where` starts any error message.

    Raises:
      ConfigValueError: An integer has a leading zero (decimal or octal?) or exceeds 64 bits.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return _bounded_int(text, where)
    if _LEADING_ZERO.fullmatch(text):
        raise errors.ConfigValueError(
            f"{where}: {text} could be decimal or octal. "
            f"Write {text.lstrip('+-0') or '0'}, or '{text}' in quotes if it is text."
        )
    return float(text) if _FLOAT.fullmatch(text) else text


def is_plain_text(text: str) -> bool:
    """Return whether `text`, unquoted, resolves to itself."""
    return text not in _WORDS and not any(
        pattern.fullmatch(text) for pattern in (_INTEGER, _LEADING_ZERO, _FLOAT)
    )


def _bounded_int(text: str, where: str) -> int:
    # Python refuses to parse integers of thousands of digits, so check the length first.
    value = int(text) if len(text) <= 20 else INT64_MAX + 1
    if not INT64_MIN <= value <= INT64_MAX:
        raise errors.ConfigValueError(
            f"{where}: the integer {text[:30]} does not fit into 64 bits. "
            "Write it with an exponent if a float is meant."
        )
    return value
