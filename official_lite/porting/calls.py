"""Helpers that take calls apart and build expressions."""

from collections.abc import Sequence
from typing import cast

import libcst as cst

__all__ = ["called_method", "expression", "keyword_of", "positional", "without_last_comma"]


def called_method(call: cst.Call) -> str:
    """Return the name after the last dot of the called expression, or "" without a dot."""
    return call.func.attr.value if isinstance(call.func, cst.Attribute) else ""


def keyword_of(arg: cst.Arg) -> str:
    """Return the keyword of an argument, or "" for a positional argument."""
    return arg.keyword.value if arg.keyword else ""


def positional(call: cst.Call, count: int) -> list[cst.BaseExpression] | None:
    """Return the arguments of a call that has exactly `count`, all positional; otherwise None."""
    plain = [arg.value for arg in call.args if not arg.keyword and not arg.star]
    return plain if len(plain) == len(call.args) == count else None


def expression(template: str, **parts: cst.BaseExpression) -> cst.BaseExpression:
    """Parse `template` and replace the names in it by the expressions in `parts`."""
    parsed = cst.parse_expression(template)
    return cast(cst.BaseExpression, parsed.visit(_Fill(parts)))


def without_last_comma(args: Sequence[cst.Arg]) -> list[cst.Arg]:
    """Return the arguments without a trailing comma, unless a line break follows the comma."""
    kept = list(args)
    if kept and isinstance(kept[-1].comma, cst.Comma):
        after = kept[-1].comma.whitespace_after
        if not isinstance(after, cst.ParenthesizedWhitespace):
            kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return kept


class _Fill(cst.CSTTransformer):
    def __init__(self, parts: dict[str, cst.BaseExpression]) -> None:
        super().__init__()
        self._parts = parts

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        return self._parts.get(original_node.value, updated_node)
