"""Removal of slashes from layer and weight names, where Keras 3 does not allow them."""

import re
from collections.abc import Collection

import libcst as cst

from official_lite.porting.syntax import Bindings, dotted_name, keyword_of

__all__ = [
    "NameGivers",
    "takes_layer_name",
    "without_slash",
    "without_slash_in_first",
    "without_slash_in_value",
]

# Suffixes of the classes whose `name` may contain a slash.
_NO_LAYERS = re.compile(r"(Config|Data|Dataset|Experiment|Metric|Params|Spec|Task)$")
_CLASS = re.compile(r"^_?[A-Z]|_(class|cls|layer)$")


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


class NameGivers(cst.CSTVisitor):
    """A visitor that finds the parameters and variables that become the name of a layer.

    Attributes:
        found: The functions and methods that pass on their `name`, without `self.`.
        variables: Pairs of a function, "" for the module, and a local variable that it passes on.
    """

    def __init__(self, bindings: Bindings) -> None:
        super().__init__()
        self._bindings = bindings
        self._functions: list[str] = []
        self.found: set[str] = set()
        self.variables: set[tuple[str, str]] = set()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._functions.append(node.name.value)

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self._functions.pop()

    def visit_Call(self, node: cst.Call) -> None:
        names = [arg.value for arg in node.args if keyword_of(arg) == "name"]
        if not names or not isinstance(names[0], cst.Name):
            return
        called = dotted_name(node.func) or _of_super(node.func)
        if not takes_layer_name(called, self._bindings.qualified_name(node.func) or ""):
            return
        function = self._functions[-1] if self._functions else ""
        self.variables.add((function, names[0].value))
        if function and names[0].value == "name":
            self.found.add(function)


def without_slash(call: cst.Call, qualified: str, name_givers: Collection[str] = ()) -> cst.Call:
    """Replace `/` by `_` in a literal `name` argument that names a layer or a weight.

    Args:
        call: The call.
        qualified: The full dotted name of the called function, if it is imported.
        name_givers: The functions and methods of the module that pass their `name` on to a layer.
    """
    if not any(keyword_of(arg) == "name" for arg in call.args):
        return call
    called = dotted_name(call.func) or _of_super(call.func)
    if called.removeprefix("self.") not in name_givers and not takes_layer_name(called, qualified):
        return call
    args = [
        arg.with_changes(value=_without_slash(arg.value)) if keyword_of(arg) == "name" else arg
        for arg in call.args
    ]
    return call.with_changes(args=args)


def without_slash_in_value(assign: cst.Assign) -> cst.Assign:
    """Replace `/` by `_` in the assigned value, if it is a literal."""
    return assign.with_changes(value=_without_slash(assign.value))


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
