"""Names, calls and expressions in the syntax tree of a module."""

from collections.abc import Iterator, Sequence
from typing import cast

import libcst as cst

COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


class Bindings(cst.CSTVisitor):
    """A visitor that collects a module's imports and aliases such as `layers = tf_keras.layers`.

    Imports are collected at any depth. Visit the module before calling `qualified_name`. Names
    bound by functions are not known here; `LocalNames` collects those.

    Attributes:
        imported: The dotted name that each imported name or alias refers to.
    """

    def __init__(self) -> None:
        super().__init__()
        self.imported: dict[str, str] = {}
        self._depth = 0

    def visit_Import(self, node: cst.Import) -> None:
        for alias in node.names:
            full = dotted_name(alias.name)
            if full is None:
                continue
            if alias.asname:
                self.imported[_as_name(alias)] = full
            else:
                top = full.partition(".")[0]
                self.imported[top] = top

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
        module = dotted_name(node.module) if node.module else None
        if node.relative or module is None or isinstance(node.names, cst.ImportStar):
            return
        for alias in node.names:
            self.imported[_as_name(alias)] = f"{module}.{dotted_name(alias.name)}"

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._depth += 1

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self._depth -= 1

    def visit_Assign(self, node: cst.Assign) -> None:
        target = node.targets[0].target
        full = dotted_name(node.value)
        if self._depth or not isinstance(target, cst.Name) or full is None or "." not in full:
            return
        root, _, rest = full.partition(".")
        if root in self.imported:
            self.imported[target.value] = f"{self.imported[root]}.{rest}"

    def qualified_name(self, node: cst.CSTNode) -> str | None:
        """Return the full name of an attribute chain that starts with an import or an alias.

        Returns None for any other expression.
        """
        full = dotted_name(node)
        if full is None:
            return None
        root, dot, rest = full.partition(".")
        return f"{self.imported[root]}{dot}{rest}" if root in self.imported else None


class LocalNames:
    """The names bound by the functions that enclose the current position of a visitor."""

    def __init__(self) -> None:
        self._bound: list[set[str]] = []

    def enter(self, function: cst.FunctionDef) -> None:
        """Add the names bound by a function that is being entered."""
        collector = _Bound()
        function.params.visit(collector)
        function.body.visit(collector)
        self._bound.append(collector.names)

    def leave(self) -> None:
        """Remove the names of the function that is being left."""
        self._bound.pop()

    def __contains__(self, name: str) -> bool:
        return any(name in names for names in self._bound)


class NamesTransformer(cst.CSTTransformer):
    """Base class of transformers that look up the full names of expressions.

    Args:
        bindings: The imports of the module, after they have visited it.
    """

    def __init__(self, bindings: Bindings) -> None:
        super().__init__()
        self._bindings = bindings
        self._locals = LocalNames()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._locals.enter(node)

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef:
        self._locals.leave()
        return updated_node

    def imported_name(self, node: cst.BaseExpression) -> str:
        """Return the full name of an expression, or "" if it is not imported or is local."""
        root = (dotted_name(node) or "").partition(".")[0]
        return "" if root in self._locals else self._bindings.qualified_name(node) or ""


class _Bound(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        self.names.add(node.name.value)
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        return False

    def visit_Param(self, node: cst.Param) -> None:
        self.names.add(node.name.value)

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
        self.names.update(_target_names(node.target))

    def visit_For(self, node: cst.For) -> None:
        self.names.update(_target_names(node.target))


def dotted_name(node: cst.CSTNode) -> str | None:
    """Return `a.b.c` for a chain of attributes, and None for anything else."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        base = dotted_name(node.value)
        return f"{base}.{node.attr.value}" if base else None
    return None


def _target_names(target: cst.BaseExpression) -> Iterator[str]:
    if isinstance(target, cst.Name):
        yield target.value
    elif isinstance(target, cst.Tuple | cst.List):
        for element in target.elements:
            yield from _target_names(element.value)


def _as_name(alias: cst.ImportAlias) -> str:
    if alias.asname and isinstance(alias.asname.name, cst.Name):
        return alias.asname.name.value
    return dotted_name(alias.name) or ""


def called_method(call: cst.Call) -> str:
    """Return the name after the last dot of the called expression, or "" without a dot."""
    return call.func.attr.value if isinstance(call.func, cst.Attribute) else ""


def keyword_of(arg: cst.Arg) -> str:
    """Return the keyword of an argument, or "" for a positional argument."""
    return arg.keyword.value if arg.keyword else ""


def positional(call: cst.Call, count: int) -> list[cst.BaseExpression] | None:
    """Return the arguments of a call if it has `count`, all positional; otherwise None."""
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
