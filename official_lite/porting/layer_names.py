"""Layer and weight names without slashes, which Keras 3 keeps for itself."""

import re

import libcst as cst

from official_lite.porting.bindings import dotted_name
from official_lite.porting.calls import keyword_of

__all__ = ["takes_layer_name", "without_slash", "without_slash_in_first"]

# Classes whose `name` may hold a slash, by the end of their names.
_NO_LAYERS = re.compile(r"(Config|Data|Dataset|Experiment|Metric|Params|Spec|Task)$")
_CLASS = re.compile(r"^_?[A-Z]")


def takes_layer_name(called: str, qualified: str) -> bool:
    """Whether the argument `name` of a call is that of a layer or a weight.

    Args:
        called: What is called as it stands there, such as `layers.Dense` or `super().__init__`.
        qualified: Its dotted name, if it is imported.
    """
    if called == "add_weight" or qualified == "add_weight" or called.endswith(".__init__"):
        return True
    if qualified.startswith(("tensorflow.", "keras.metrics.", "keras.optimizers.")):
        return False
    last = (qualified or called).rpartition(".")[2]
    return bool(_CLASS.search(last)) and not _NO_LAYERS.search(last)


def without_slash(call: cst.Call, qualified: str) -> cst.Call:
    """The call with `_` for each `/` in a literal `name`, if that is the name of a layer."""
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
    """The same for a call whose first argument is the name."""
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
    """A literal, whole or with values formatted into it; anything else stays."""
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
