"""Removal of slashes from layer and weight names, where Keras 3 does not allow them."""

import re

import libcst as cst

from official_lite.porting.bindings import dotted_name
from official_lite.porting.calls import keyword_of

__all__ = ["takes_layer_name", "without_slash", "without_slash_in_first"]

# Suffixes of the classes whose `name` may contain a slash.
_NO_LAYERS = re.compile(r"(Config|Data|Dataset|Experiment|Metric|Params|Spec|Task)$")
_CLASS = re.compile(r"^_?[A-Z]")


def takes_layer_name(called: str, qualified: str) -> bool:
    """Return whether the argument `name` of a call names a layer or a weight.

    Args:
        called: The called expression as written, such as `layers.Dense` or `super().__init__`.
        qualified: Its full dotted name, if it is imported.
    """
    if called == "add_weight" or qualified == "add_weight" or called.endswith(".__init__"):
        return True
    if qualified.startswith(("tensorflow.", "keras.metrics.", "keras.optimizers.")):
        return False
    last = (qualified or called).rpartition(".")[2]
    return bool(_CLASS.search(last)) and not _NO_LAYERS.search(last)


def without_slash(call: cst.Call, qualified: str) -> cst.Call:
    """Replace `/` by `_` in a literal `name` argument that names a layer or a weight."""
    if not any(keyword_of(arg) == "name" for arg in call.args):
        return call
    called = dotted_name(call.func) or _of_super(call.func)
    if not takes_layer_name(called, qualified):
        return call
    args = [
        arg.with_changes(value=_without_slash(arg.value)) if keyword_of(arg) == "name" else arg
        for arg in call.args
    ]
    return call.with_changes(args=args)


def without_slash_in_first(call: cst.Call) -> cst.Call:
    """Replace `/` by `_` in the first argument, if it is a literal."""
    if not call.args:
        return call
    first = call.args[0]
    return call.with_changes(
        args=[first.with_changes(value=_without_slash(first.value)), *call.args[1:]]
    )


def _of_super(func: cst.BaseExpression) -> str:
    if isinstance(func, cst.Attribute) and isinstance(func.value, cst.Call):
        return f"super.{func.attr.value}" if dotted_name(func.value.func) == "super" else ""
    return ""


def _without_slash(value: cst.BaseExpression) -> cst.BaseExpression:
    """Replace slashes in a literal, which may be formatted; return other expressions unchanged."""
    if isinstance(value, cst.SimpleString):
        return value.with_changes(value=value.value.replace("/", "_"))
    if isinstance(value, cst.FormattedString):
        parts = [
            part.with_changes(value=part.value.replace("/", "_"))
            if isinstance(part, cst.FormattedStringText)
            else part
            for part in value.parts
        ]
        return value.with_changes(parts=parts)
    if isinstance(value, cst.BinaryOperation):
        if isinstance(value.operator, cst.Modulo | cst.Add):
            return value.with_changes(
                left=_without_slash(value.left),
                right=_without_slash(value.right)
                if isinstance(value.operator, cst.Add)
                else value.right,
            )
    if isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute):
        if value.func.attr.value == "format":
            inner = _without_slash(value.func.value)
            return value.with_changes(func=value.func.with_changes(value=inner))
    return value
