"""Base classes that a port replaces or extends.

Subclasses of Keras' layers, models and optimizers may rely on anything that Keras 2 has, which
`official_lite.keras2` provides. Subclasses of configs may rely on fields that accept any value. The
names in the module have already been translated to those of Keras 3 and `official_lite`.
"""

import re

import libcst as cst
from libcst import matchers

from official_lite.porting import keras_changes
from official_lite.porting.names import with_imports
from official_lite.porting.syntax import Bindings, NamesTransformer, dotted_name, keyword_of

_PACKAGES = {
    "dataclasses": "dataclasses",
    "hyperparams": "official_lite.modeling.hyperparams",
    "keras2": "official_lite.keras2",
}
_MODELS = ("keras.Model", "keras.models.Model", "keras.Sequential", "keras.models.Sequential")
# The activation that layers get by the name "hard_sigmoid" in Keras 2.
_HARD_SIGMOID = "keras2.backend.hard_sigmoid"
# Classes and functions that are replaced wherever they are used. With Keras 3, they are not public,
# or their arguments, initial weights or other behavior differ.
_REPLACED = {
    "keras.__internal__.losses.LossFunctionWrapper": "keras2.LossFunctionWrapper",
    "keras.activations.hard_sigmoid": _HARD_SIGMOID,
    "keras.layers.EinsumDense": "keras2.EinsumDense",
    "keras.layers.MultiHeadAttention": "keras2.MultiHeadAttention",
    "keras.layers.DepthwiseConv2D": "keras2.DepthwiseConv2D",
    "keras.layers.SeparableConv2D": "keras2.SeparableConv2D",
    "keras.layers.Softmax": "keras2.Softmax",
    "tensorflow.train.Checkpoint": "keras2.Checkpoint",
    "tensorflow.compat.v2.train.Checkpoint": "keras2.Checkpoint",
    **{
        f"keras.backend.{name}": f"keras2.backend.{name}"
        for name in keras_changes.BACKEND_OF_TF_KERAS
    },
    **{
        f"keras.metrics.{name}": f"keras2.{name}"
        for name in ("BinaryIoU", "IoU", "MeanIoU", "OneHotIoU", "OneHotMeanIoU")
    },
}
# Classes that are replaced only as base classes: their direct instances work in Keras 3 as before.
_BASES = dict.fromkeys(("keras.Layer", "keras.layers.Layer"), "keras2.Layer") | {
    "keras.Loss": "keras2.Loss",
    "keras.losses.Loss": "keras2.Loss",
    **{f"keras.layers.{name}": f"keras2.{name}" for name in ("Conv2D", "Conv3D")},
}
# Optimizers that are replaced if they are base classes of a class that uses Keras 2 extension
# points.
_OPTIMIZERS = {f"keras.optimizers.{name}": f"keras2.{name}" for name in ("Adam", "Optimizer")}
# Modules that this pattern does not match are skipped, because visiting a syntax tree is slow.
_MAY_CHANGE = re.compile("|".join([r"\bclass \w+\(", *(n.split(".")[-1] for n in _REPLACED)]))
# Config classes. Their subclasses may assign None, or a number of another type, to a field.
_CONFIG = re.compile(
    r"official_lite\.(modeling\.hyperparams|core\.config_definitions|modeling\.multitask\.configs)"
    r"\.(\w+\.)?\w*(Config|Params|ParamsDict)$"
)
_DONE = ("official_lite.keras2.", "official_lite.modeling.hyperparams.Lenient")


def rewrite(module: cst.Module) -> cst.Module:
    """Replace base classes of layers, models and optimizers, and classes with a counterpart."""
    if not _MAY_CHANGE.search(module.code):
        return module
    bindings = Bindings()
    module.visit(bindings)
    rewriter = _Rewriter(bindings)
    rewritten = module.visit(rewriter)
    return with_imports(rewritten, rewriter.needed)


class _Rewriter(NamesTransformer):
    def __init__(self, bindings: Bindings) -> None:
        super().__init__(bindings)
        self.needed: list[str] = []
        # Whether each class that encloses the current node is a dataclass, outermost class first.
        self._fields: list[bool] = []

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.FlattenSentinel[cst.SimpleStatementLine]:
        """Import counterparts from `official_lite.keras2` instead of the classes they replace."""
        statement = original_node.body[0]
        if not isinstance(statement, cst.ImportFrom) or isinstance(statement.names, cst.ImportStar):
            return updated_node
        module = dotted_name(statement.module) if statement.module else None
        kept, moved = [], []
        for alias in statement.names:
            counterpart = _REPLACED.get(f"{module}.{dotted_name(alias.name)}", "")
            package, _, name = counterpart.rpartition(".")
            if name:
                package = package.replace("keras2", _PACKAGES["keras2"])
                ending = cst.Module([]).code_for_node(alias.asname) if alias.asname else ""
                line = cst.parse_statement(f"from {package} import {name}{ending}")
                moved.append(cst.ensure_type(line, cst.SimpleStatementLine))
            else:
                kept.append(alias)
        if not moved:
            return updated_node
        if kept:
            kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            rest = updated_node.with_changes(body=[statement.with_changes(names=kept)])
            return cst.FlattenSentinel([rest, *moved])
        first = moved[0].with_changes(leading_lines=updated_node.leading_lines)
        return cst.FlattenSentinel([first, *moved[1:]])

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        if not (counterpart := _REPLACED.get(self.imported_name(original_node))):
            return updated_node
        return self._from(counterpart)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        """Replace the name "hard_sigmoid" of an activation, which is another one in Keras 3."""
        name = self.imported_name(original_node.func)
        if not name.startswith(("keras.layers.", "keras.activations.get")):
            return updated_node
        args = [
            arg.with_changes(value=self._from(_HARD_SIGMOID)) if _is_hard_sigmoid(arg) else arg
            for arg in updated_node.args
        ]
        return updated_node.with_changes(args=args)

    def leave_AnnAssign(
        self, original_node: cst.AnnAssign, updated_node: cst.AnnAssign
    ) -> cst.AnnAssign:
        """Turn a config default into a `default_factory`: Python 3.11 rejects mutable defaults."""
        default = original_node.value
        if not (self._fields and self._fields[-1] and isinstance(default, cst.Call)):
            return updated_node
        if not default.func.deep_equals(original_node.annotation.annotation):
            return updated_node
        field = cst.ensure_type(
            self._from("dataclasses.field(default_factory=lambda: default)"), cst.Call
        )
        factory = cst.ensure_type(field.args[0].value, cst.Lambda)
        factory = factory.with_changes(body=updated_node.value)
        return updated_node.with_changes(
            value=field.with_changes(args=[field.args[0].with_changes(value=factory)])
        )

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        decorators = [one.decorator for one in node.decorators]
        callables = [one.func if isinstance(one, cst.Call) else one for one in decorators]
        self._fields.append("dataclasses.dataclass" in map(self.imported_name, callables))

    def leave_ClassDef(
        self, original_node: cst.ClassDef, updated_node: cst.ClassDef
    ) -> cst.ClassDef:
        self._fields.pop()
        bases = list(updated_node.bases)
        names = [self.imported_name(base.value) for base in original_node.bases]
        if any(name.startswith(_DONE) for name in names):
            return updated_node
        for index, name in enumerate(names):
            if name in _OPTIMIZERS and _has_extension_points(original_node):
                bases[index] = bases[index].with_changes(value=self._from(_OPTIMIZERS[name]))
            elif name in _BASES:
                bases[index] = bases[index].with_changes(value=self._from(_BASES[name]))
            elif name in _MODELS or (name.startswith("keras.layers.") and name not in _REPLACED):
                bases.insert(index, cst.Arg(self._from("keras2.Keras2Habits")))
            elif name.startswith("keras.optimizers.") and _updates_without_rate(original_node):
                bases.insert(index, cst.Arg(self._from("keras2.UpdateStep")))
            elif _CONFIG.match(name):
                bases.insert(index, cst.Arg(self._from("hyperparams.Lenient")))
            else:
                continue
            return updated_node.with_changes(bases=bases)
        return updated_node

    def _from(self, name: str) -> cst.BaseExpression:
        """Return the expression for a member of a package, and request an import of the package."""
        package = _PACKAGES[name.partition(".")[0]]
        if package not in self.needed:
            self.needed.append(package)
        return cst.parse_expression(name)


def _is_hard_sigmoid(arg: cst.Arg) -> bool:
    if not isinstance(arg.value, cst.SimpleString) or keyword_of(arg) == "name":
        return False
    return arg.value.evaluated_value == "hard_sigmoid"


def _has_extension_points(optimizer: cst.ClassDef) -> bool:
    names = matchers.findall(optimizer, matchers.Name())
    return any(
        cst.ensure_type(name, cst.Name).value in keras_changes.OF_KERAS_2_OPTIMIZERS
        for name in names
    )


def _updates_without_rate(optimizer: cst.ClassDef) -> bool:
    """Return whether a class overrides `update_step(self, gradient, variable)`."""
    return any(
        isinstance(member, cst.FunctionDef)
        and member.name.value == "update_step"
        and len(member.params.params) == 3
        for member in optimizer.body.body
    )
