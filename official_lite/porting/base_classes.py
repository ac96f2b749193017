"""Base classes for subclasses that rely on what Keras 3 does not have.

`official_lite.keras2` has them; see there for what they offer. The names in the module have already
been translated to those of Keras 3.
"""

import libcst as cst

from official_lite.porting.bindings import Bindings, dotted_name
from official_lite.porting.calls import called_method, keyword_of
from official_lite.porting.names import with_imports

__all__ = ["rewrite"]

_COUNTERPARTS = {
    "keras.layers.Layer": "keras2.Layer",
    "keras.Layer": "keras2.Layer",
    "keras.Model": "keras2.Model",
    "keras.models.Model": "keras2.Model",
    "keras.layers.MultiHeadAttention": "keras2.MultiHeadAttention",
}
_MIXIN = "keras2.Keras2Habits"

# Members that Keras 2 has and Keras 3 does not.
_GONE = frozenset({"_activity_regularizer", "_compute_dtype", "add_metric"})
_OF_WEIGHTS = frozenset({"aggregation", "synchronization", "partitioner", "use_resource"})


def rewrite(module: cst.Module) -> cst.Module:
    """Replace the base classes of the subclasses that rely on Keras 2."""
    if "class " not in module.code:
        return module
    bindings = Bindings()
    module.visit(bindings)
    classes = _Classes(bindings)
    module.visit(classes)
    rewriter = _Rewriter(bindings, classes.with_needs())
    rewritten = module.visit(rewriter)
    return with_imports(rewritten, ["official_lite.keras2"]) if rewriter.has_changed else rewritten


class _Classes(cst.CSTVisitor):
    """Finds the classes of a module that rely on Keras 2."""

    def __init__(self, bindings: Bindings) -> None:
        super().__init__()
        self._bindings = bindings
        self._bases: dict[str, list[str]] = {}
        self._needs: set[str] = set()

    def with_needs(self) -> set[str]:
        """Return the names of the classes, and of the classes of the module that they extend."""
        found, waiting = set(self._needs), list(self._needs)
        while waiting:
            for base in self._bases.get(waiting.pop(), ()):
                if base in self._bases and base not in found:
                    found.add(base)
                    waiting.append(base)
        return found

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        name = node.name.value
        self._bases[name] = [dotted_name(base.value) or "" for base in node.bases]
        signs = _Signs(self._bindings)
        node.body.visit(signs)
        is_gins = any(self._is_gins(decorator) for decorator in node.decorators)
        attends = any(base.endswith("MultiHeadAttention") for base in self._bases[name])
        if signs.found or is_gins or attends:
            self._needs.add(name)
        return True

    def _is_gins(self, decorator: cst.Decorator) -> bool:
        called = decorator.decorator
        function = called.func if isinstance(called, cst.Call) else called
        return (self._bindings.qualified_name(function) or "").startswith("gin.")


class _Signs(cst.CSTVisitor):
    """Looks in the body of a class for what Keras 3 does not have."""

    def __init__(self, bindings: Bindings) -> None:
        super().__init__()
        self._bindings = bindings
        self.found = False

    def visit_Attribute(self, node: cst.Attribute) -> None:
        self.found |= node.attr.value in _GONE and dotted_name(node.value) == "self"

    def visit_Call(self, node: cst.Call) -> None:
        method, args = called_method(node), node.args
        if method == "add_weight":
            self.found |= any(keyword_of(arg) in _OF_WEIGHTS for arg in args)
        elif method == "__init__":
            of_super = isinstance(node.func, cst.Attribute) and isinstance(
                node.func.value, cst.Call
            )
            self.found |= of_super and bool(args) and dotted_name(args[0].value) == "self"
        elif dotted_name(node.func) == "isinstance" and len(args) == 2:
            kind = self._bindings.qualified_name(args[1].value)
            self.found |= kind == "tensorflow.TensorShape"


class _Rewriter(cst.CSTTransformer):
    def __init__(self, bindings: Bindings, classes: set[str]) -> None:
        super().__init__()
        self._bindings = bindings
        self._classes = classes
        self.has_changed = False

    def leave_ClassDef(
        self, original_node: cst.ClassDef, updated_node: cst.ClassDef
    ) -> cst.ClassDef:
        if original_node.name.value not in self._classes:
            return updated_node
        bases = list(updated_node.bases)
        for index, base in enumerate(bases):
            name = self._bindings.qualified_name(base.value) or ""
            if counterpart := _COUNTERPARTS.get(name):
                bases[index] = base.with_changes(value=cst.parse_expression(counterpart))
            elif name.startswith("keras.layers."):
                bases.insert(index, cst.Arg(cst.parse_expression(_MIXIN)))
            else:
                continue
            self.has_changed = True
            return updated_node.with_changes(bases=bases)
        return updated_node
