"""Base classes that a port replaces or extends.

Subclasses of Keras' layers and models may rely on anything that Keras 2 has, which
`official_lite.keras2` provides. Subclasses of configs may rely on fields that accept any value. The
names in the module have already been translated to those of Keras 3 and `official_lite`.
"""

import re

import libcst as cst

from official_lite.porting.bindings import Bindings, LocalNames, dotted_name
from official_lite.porting.names import with_imports

__all__ = ["rewrite"]

_COUNTERPARTS = {
    "keras.layers.Layer": "keras2.Layer",
    "keras.Layer": "keras2.Layer",
}
_MODELS = ("keras.Model", "keras.models.Model", "keras.Sequential", "keras.models.Sequential")
# What takes other arguments in Keras 3, or is not public there.
_REPLACED = {
    "keras.__internal__.losses.LossFunctionWrapper": "keras2.LossFunctionWrapper",
    "keras.layers.MultiHeadAttention": "keras2.MultiHeadAttention",
    "keras.layers.DepthwiseConv2D": "keras2.DepthwiseConv2D",
    "keras.layers.SeparableConv2D": "keras2.SeparableConv2D",
    "keras.layers.Softmax": "keras2.Softmax",
}
# Visiting a module is slow.
_MAY_CHANGE = re.compile(
    r"\bclass \w+\(|MultiHeadAttention|Softmax|DepthwiseConv|SeparableConv|__internal__"
)
# The config classes, whose subclasses put None and numbers of other types into their fields.
_CONFIG = re.compile(
    r"official_lite\.(modeling\.hyperparams|core\.config_definitions|modeling\.multitask\.configs)"
    r"\.(\w+\.)?\w*(Config|Params|ParamsDict)$"
)
_DONE = ("official_lite.keras2.", "official_lite.modeling.hyperparams.Lenient")
_MIXIN = "keras2.Keras2Habits"


def rewrite(module: cst.Module) -> cst.Module:
    """Replace the base classes of layers and models, and the layers that have a counterpart."""
    if not _MAY_CHANGE.search(module.code):
        return module
    bindings = Bindings()
    module.visit(bindings)
    rewriter = _Rewriter(bindings)
    rewritten = module.visit(rewriter)
    return with_imports(rewritten, rewriter.needed)


class _Rewriter(cst.CSTTransformer):
    def __init__(self, bindings: Bindings) -> None:
        super().__init__()
        self._bindings = bindings
        self._locals = LocalNames()
        self.needed: list[str] = []

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._locals.enter(node)

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef:
        self._locals.leave()
        return updated_node

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        if not (counterpart := _REPLACED.get(self._name_of(original_node))):
            return updated_node
        self._need("official_lite.keras2")
        return cst.parse_expression(counterpart)

    def leave_ClassDef(
        self, original_node: cst.ClassDef, updated_node: cst.ClassDef
    ) -> cst.ClassDef:
        bases = list(updated_node.bases)
        names = [self._name_of(base.value) for base in original_node.bases]
        if any(name.startswith(_DONE) for name in names):
            return updated_node
        for index, name in enumerate(names):
            if counterpart := _COUNTERPARTS.get(name):
                bases[index] = bases[index].with_changes(value=cst.parse_expression(counterpart))
            elif name in _MODELS or (name.startswith("keras.layers.") and name not in _REPLACED):
                bases.insert(index, cst.Arg(cst.parse_expression(_MIXIN)))
            elif _CONFIG.match(name):
                self._need("official_lite.modeling.hyperparams")
                bases.insert(index, cst.Arg(cst.parse_expression("hyperparams.Lenient")))
                return updated_node.with_changes(bases=bases)
            else:
                continue
            self._need("official_lite.keras2")
            return updated_node.with_changes(bases=bases)
        return updated_node

    def _need(self, module: str) -> None:
        if module not in self.needed:
            self.needed.append(module)

    def _name_of(self, node: cst.BaseExpression) -> str:
        root = (dotted_name(node) or "").partition(".")[0]
        return "" if root in self._locals else self._bindings.qualified_name(node) or ""
