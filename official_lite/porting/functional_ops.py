"""Rewriting of TensorFlow calls on symbolic Keras tensors to `keras.ops`."""

import libcst as cst
from libcst import metadata

from official_lite.porting import keras_changes, layer_names
from official_lite.porting.bindings import Bindings, dotted_name
from official_lite.porting.calls import called_method, keyword_of, without_last_comma
from official_lite.porting.names import with_imports
from official_lite.porting.symbolic_tensors import SymbolicTensors

__all__ = ["leftover", "rewrite"]

# Methods of a functional model that add a symbolic tensor to what it computes.
_ENDPOINTS = ("add_loss", "add_metric")
# These functions only use the structure that contains the tensors.
_HARMLESS = ("tensorflow.nest.", "tensorflow.TensorShape", "tensorflow.function")


def rewrite(module: cst.Module) -> cst.Module:
    """Replace calls by `keras.ops` wherever an equivalent exists."""
    if not _may_be_functional(module):
        return module
    rewriter = _Rewriter(module)
    rewritten = module.visit(rewriter)
    needed = {"keras": rewriter.has_changed, "official_lite.keras2": rewriter.needs_keras2}
    return with_imports(rewritten, [name for name, needs in needed.items() if needs])


def leftover(module: cst.Module) -> list[tuple[int, str]]:
    """Return the line and function name of each remaining TensorFlow call on symbolic tensors."""
    if not _may_be_functional(module):
        return []
    finder = _Finder(module)
    module.visit(finder)
    if not finder.found:
        return []
    wrapper = metadata.MetadataWrapper(module, unsafe_skip_copy=True)
    positions = wrapper.resolve(metadata.PositionProvider)
    return [(positions[call].start.line, name) for call, name in finder.found]


def _may_be_functional(module: cst.Module) -> bool:
    # Following tensors is slow, and most modules contain none.
    return "Input(" in module.code


class _Places:
    """The enclosing functions of a visitor's position, and which names are symbolic there."""

    def __init__(self, module: cst.Module) -> None:
        self._bindings = Bindings()
        module.visit(self._bindings)
        self._tensors = SymbolicTensors(module, self._bindings)
        self._functions: list[cst.FunctionDef] = []

    def enter(self, function: cst.FunctionDef) -> None:
        self._functions.append(function)

    def leave(self) -> None:
        self._functions.pop()

    def called_on_symbolic(self, call: cst.Call) -> str:
        """Return the name of a TensorFlow function called with a symbolic tensor; otherwise ""."""
        name = self._bindings.qualified_name(call.func) or ""
        if not name.startswith("tensorflow.") or name.startswith(_HARMLESS):
            return ""
        return name if self.takes_symbolic(call) else ""

    def takes_symbolic(self, call: cst.Call) -> bool:
        """Return whether an argument of a call contains a symbolic tensor."""
        symbolic = self._tensors.names_in(self._functions[0] if self._functions else None)
        return any(self._tensors.is_symbolic(arg, symbolic) for arg in call.args)


class _Finder(cst.CSTVisitor):
    def __init__(self, module: cst.Module) -> None:
        super().__init__()
        self._places = _Places(module)
        self.found: list[tuple[cst.Call, str]] = []

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._places.enter(node)

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self._places.leave()

    def visit_Call(self, node: cst.Call) -> None:
        if name := self._places.called_on_symbolic(node):
            self.found.append((node, name))


class _Rewriter(cst.CSTTransformer):
    def __init__(self, module: cst.Module) -> None:
        super().__init__()
        self._places = _Places(module)
        self.has_changed = self.needs_keras2 = False

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._places.enter(node)

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef:
        self._places.leave()
        return updated_node

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        if called_method(updated_node) in _ENDPOINTS and self._places.takes_symbolic(original_node):
            self.needs_keras2 = True
            return _endpoint(updated_node)
        name = self._places.called_on_symbolic(original_node)
        if name == "tensorflow.identity" and (identity := _identity(updated_node)):
            self.has_changed = True
            return identity
        new, arguments = keras_changes.TF_TO_OPS.get(name.partition(".")[2], ("", {}))
        args = _renamed(updated_node, arguments) if new else None
        if args is None:
            return updated_node
        self.has_changed = True
        return updated_node.with_changes(
            func=cst.parse_expression(new if new.startswith("keras.") else f"keras.ops.{new}"),
            args=without_last_comma(args),
        )


def _endpoint(call: cst.Call) -> cst.Call:
    """Return `keras2.add_loss(model, x)` for `model.add_loss(x)`, which Keras 3 refuses."""
    method = cst.ensure_type(call.func, cst.Attribute)
    if dotted_name(method.value) == "keras2":
        return call
    model = cst.Arg(method.value, comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
    func = cst.Attribute(cst.Name("keras2"), method.attr)
    return call.with_changes(func=func, args=[model, *call.args])


def _identity(call: cst.Call) -> cst.Call | None:
    """Build the `Identity` layer that names a tensor; `keras.ops` has no equivalent."""
    tensors = [arg for arg in call.args if not arg.keyword]
    names = [arg for arg in call.args if keyword_of(arg) == "name"]
    if len(tensors) != 1 or len(tensors) + len(names) != len(call.args):
        return None
    layer = cst.Call(cst.parse_expression("keras.layers.Identity"), without_last_comma(names))
    return call.with_changes(
        func=layer_names.without_slash(layer, "keras.layers.Identity"),
        args=without_last_comma(tensors),
    )


def _renamed(call: cst.Call, arguments: dict[str, str]) -> list[cst.Arg] | None:
    """Return the renamed arguments without the op's `name`; None if one can't be renamed."""
    args = []
    for index, arg in enumerate(call.args):
        keyword = keyword_of(arg)
        if keyword == "name":
            continue
        if arg.star or (keyword and keyword not in arguments):
            return None
        if not keyword and index >= len(arguments):
            return None
        args.append(arg.with_changes(keyword=cst.Name(arguments[keyword])) if keyword else arg)
    return args
