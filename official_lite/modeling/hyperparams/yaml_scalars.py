"""Which value a plain, unquoted text stands for: the same rules in YAML, CSV and `--set`.

YAML 1.1 has surprises that cost experiments: `off` is false, `010` is 8, `12:30` is 750, `1e-3` is
text. Here null, true, false, decimal integers and decimal floats have a meaning, and all else is
text.
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
    """The value of a plain text; `where` opens the message of an error.

    Raises:
      ConfigValueError: an integer with a leading zero (decimal or octal?) or beyond 64 bits.
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
    """Whether `text`, unquoted, stands for itself."""
    return text not in _WORDS and not any(
        pattern.fullmatch(text) for pattern in (_INTEGER, _LEADING_ZERO, _FLOAT)
    )


def _bounded_int(text: str, where: str) -> int:
    # Python refuses to parse thousands of digits, so the length is asked first.
    value = int(text) if len(text) <= 20 else INT64_MAX + 1
    if not INT64_MIN <= value <= INT64_MAX:
        raise errors.ConfigValueError(
            f"{where}: the integer {text[:30]} does not fit into 64 bits. "
            "Write it with an exponent if a float is meant."
        )
    return value
