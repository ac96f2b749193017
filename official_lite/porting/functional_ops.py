"""Rewriting of TensorFlow calls on symbolic Keras tensors to `keras.ops`.

In Keras 3, TensorFlow functions do not accept symbolic tensors, which are derived from
`keras.Input`. The tensors are followed through assignments, and into functions and methods of the
same module that are called with them.
"""

from collections.abc import Iterator

import libcst as cst

from official_lite.porting import idioms, keras_changes
from official_lite.porting.names import with_imports
from official_lite.porting.syntax import (
    COMMA,
    Bindings,
    called_method,
    dotted_name,
    keyword_of,
    without_last_comma,
)

# Methods that add a loss or a metric, given as a symbolic tensor, to a functional model.
_ENDPOINTS = ("add_loss", "add_metric")
# Functions that accept symbolic tensors, because they do not compute with them.
_HARMLESS = ("tensorflow.nest.", "tensorflow.TensorShape", "tensorflow.function")

_INPUTS = ("keras.Input", "keras.layers.Input")
# Properties of a symbolic tensor that are known without its values.
_STATIC_ATTRIBUTES = frozenset({"dtype", "name", "ndim", "shape"})
_STATIC_FUNCTIONS = frozenset({"hasattr", "isinstance", "len", "type"})
_FILLS = frozenset({"append", "extend", "insert", "setdefault", "update"})
# Arguments of `keras.ops` that may be symbolic. Others, such as `newshape`, must be known when the
# model is built.
_TENSORS = frozenset({"condition", "variable", "x", "x1", "x2", "xs"})

_Key = tuple[str, str]


def rewrite(module: cst.Module) -> cst.Module:
    """Replace TensorFlow calls on symbolic tensors by `keras.ops` where an equivalent exists.

    The remaining calls work once `official_lite.keras2` is imported, so its import is added.
    """
    # A module without `Input(` creates no symbolic tensors, so skip the slow search for them.
    if "Input(" not in module.code:
        return module
    rewriter = _Rewriter(module)
    rewritten = module.visit(rewriter)
    needed = {"keras": rewriter.has_changed, "official_lite.keras2": rewriter.needs_keras2}
    return with_imports(rewritten, [name for name, needs in needed.items() if needs])


class SymbolicTensors:
    """The names of symbolic tensors in each function of a module."""

    def __init__(self, module: cst.Module, bindings: Bindings) -> None:
        self._bindings = bindings
        collector = _Functions()
        module.visit(collector)
        self._functions = collector.functions
        self._keys = {function: key for key, function in self._functions.items()}
        self._parameters: dict[_Key, set[str]] = {key: set() for key in self._functions}
        self._names: dict[cst.FunctionDef, set[str]] = {}
        self._follow()

    def names_in(self, function: cst.FunctionDef | None) -> set[str]:
        """Return the names of symbolic tensors in a function; an empty set at module level."""
        return self._names.get(function, set()) if function else set()

    def is_symbolic(self, node: cst.CSTNode, names: set[str]) -> bool:
        """Return whether an expression contains a symbolic tensor, given the symbolic names."""
        if isinstance(node, cst.Name):
            return node.value in names
        if isinstance(node, cst.Attribute):
            return node.attr.value not in _STATIC_ATTRIBUTES and self.is_symbolic(node.value, names)
        if isinstance(node, cst.Arg):
            return self.is_symbolic(node.value, names)
        if isinstance(node, cst.Call):
            if self._bindings.qualified_name(node.func) in _INPUTS:
                return True
            if dotted_name(node.func) in _STATIC_FUNCTIONS:
                return False
        if isinstance(node, cst.Lambda):
            return False
        return any(self.is_symbolic(child, names) for child in node.children)

    def _follow(self) -> None:
        waiting = list(self._functions)
        while waiting:
            key = waiting.pop()
            function = self._functions[key]
            names = self._names_made_in(function, self._parameters[key])
            self._names[function] = names
            for callee, parameter in self._handed_on(key, names):
                if parameter not in self._parameters[callee]:
                    self._parameters[callee].add(parameter)
                    waiting.append(callee)

    def _names_made_in(self, function: cst.FunctionDef, parameters: set[str]) -> set[str]:
        names = set(parameters)
        while True:
            collector = _Made(self, names)
            function.body.visit(collector)
            if collector.names == names:
                return names
            names = collector.names

    def _handed_on(self, key: _Key, names: set[str]) -> Iterator[tuple[_Key, str]]:
        """Yield the callee and its parameter for each symbolic tensor that a call passes."""
        calls = _Calls()
        self._functions[key].body.visit(calls)
        for call in calls.found:
            callee = self._callee(key, call)
            if callee is None:
                continue
            function = self._functions[callee]
            parameters = [p.name.value for p in function.params.params]
            by_keyword = {*parameters, *(p.name.value for p in function.params.kwonly_params)}
            if callee[0]:
                parameters = parameters[1:]
            for index, arg in enumerate(call.args):
                if arg.star or not self.is_symbolic(arg.value, names):
                    continue
                keyword = keyword_of(arg)
                if keyword in by_keyword:
                    yield callee, keyword
                elif not keyword and index < len(parameters):
                    yield callee, parameters[index]

    def _callee(self, key: _Key, call: cst.Call) -> _Key | None:
        name = dotted_name(call.func) or ""
        method = (key[0], name.removeprefix("self."))
        candidate = method if name.startswith("self.") else ("", name)
        return candidate if candidate in self._functions else None


class _Functions(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.functions: dict[_Key, cst.FunctionDef] = {}
        self._classes = [""]

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self._classes.append(node.name.value)

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:
        self._classes.pop()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        self.functions[self._classes[-1], node.name.value] = node
        return False


class _Calls(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[cst.Call] = []

    def visit_Call(self, node: cst.Call) -> None:
        self.found.append(node)


class _Made(cst.CSTVisitor):
    """A visitor that collects the names to which symbolic tensors are assigned."""

    def __init__(self, tensors: SymbolicTensors, names: set[str]) -> None:
        super().__init__()
        self._tensors = tensors
        self.names = set(names)

    def visit_Assign(self, node: cst.Assign) -> None:
        if self._tensors.is_symbolic(node.value, self.names):
            for target in node.targets:
                self._add(target.target)

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        if self._tensors.is_symbolic(node.value, self.names):
            self._add(node.target)

    def visit_For(self, node: cst.For) -> None:
        if self._tensors.is_symbolic(node.iter, self.names):
            self._add(node.target)

    def visit_Call(self, node: cst.Call) -> None:
        if called_method(node) not in _FILLS or not isinstance(node.func, cst.Attribute):
            return
        if any(self._tensors.is_symbolic(arg, self.names) for arg in node.args):
            self._add(node.func.value)

    def _add(self, target: cst.CSTNode) -> None:
        if isinstance(target, cst.Name):
            self.names.add(target.value)
        elif isinstance(target, cst.Subscript):
            self._add(target.value)
        elif isinstance(target, cst.Tuple | cst.List):
            for element in target.elements:
                self._add(element.value)


class _Rewriter(cst.CSTTransformer):
    def __init__(self, module: cst.Module) -> None:
        super().__init__()
        self._bindings = Bindings()
        module.visit(self._bindings)
        self._tensors = SymbolicTensors(module, self._bindings)
        self._functions: list[cst.FunctionDef] = []
        self.has_changed = self.needs_keras2 = False

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._functions.append(node)

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef:
        self._functions.pop()
        return updated_node

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        symbolic = self._tensors.names_in(self._functions[0] if self._functions else None)
        if not any(self._tensors.is_symbolic(arg, symbolic) for arg in original_node.args):
            return updated_node
        if called_method(updated_node) in _ENDPOINTS:
            self.needs_keras2 = True
            return _endpoint(updated_node)
        name = self._bindings.qualified_name(original_node.func) or ""
        if not name.startswith("tensorflow.") or name.startswith(_HARMLESS):
            return updated_node
        if name == "tensorflow.identity" and (identity := _identity(updated_node)):
            self.has_changed = True
            return identity
        new, arguments = keras_changes.TF_TO_OPS.get(name.partition(".")[2], ("", {}))
        args = self._renamed(updated_node, arguments, symbolic) if new else None
        # With one argument, `where` returns indices, and in `keras.ops` these have another form.
        if args is None or (new == "where" and len(args) == 1):
            self.needs_keras2 = True
            return updated_node
        self.has_changed = True
        return updated_node.with_changes(
            func=cst.parse_expression(f"keras.ops.{new}"), args=without_last_comma(args)
        )

    def _renamed(
        self, call: cst.Call, arguments: dict[str, str], symbolic: set[str]
    ) -> list[cst.Arg] | None:
        """Return the renamed arguments without the op's `name`; None if `keras.ops` rejects one."""
        args = []
        new_names = list(arguments.values())
        for index, arg in enumerate(call.args):
            keyword = keyword_of(arg)
            if keyword == "name":
                continue
            if arg.star or (keyword and keyword not in arguments):
                return None
            if not keyword and index >= len(arguments):
                return None
            new = arguments[keyword] if keyword else new_names[index]
            if new not in _TENSORS and self._tensors.is_symbolic(arg, symbolic):
                return None
            args.append(arg.with_changes(keyword=cst.Name(new)) if keyword else arg)
        return args


def _endpoint(call: cst.Call) -> cst.Call:
    """Rewrite `model.add_loss(x)`, which Keras 3 rejects, as `keras2.add_loss(model, x)`."""
    method = cst.ensure_type(call.func, cst.Attribute)
    if dotted_name(method.value) == "keras2":
        return call
    model = cst.Arg(method.value, comma=COMMA)
    func = cst.Attribute(cst.Name("keras2"), method.attr)
    return call.with_changes(func=func, args=[model, *call.args])


def _identity(call: cst.Call) -> cst.Call | None:
    """Rewrite `tf.identity(x, name)` as an `Identity` layer: `keras.ops` has no equivalent.

    The layer keeps the dtype of `x`, also under mixed precision.
    """
    tensors = [arg for arg in call.args if not arg.keyword]
    names = [arg for arg in call.args if keyword_of(arg) == "name"]
    if len(tensors) != 1 or len(tensors) + len(names) != len(call.args):
        return None
    uncast = cst.ensure_type(cst.parse_expression("f(autocast=False)"), cst.Call).args
    args = [*(name.with_changes(comma=COMMA) for name in names), *uncast]
    layer = cst.Call(cst.parse_expression("keras.layers.Identity"), args)
    return call.with_changes(
        func=idioms.without_slash(layer, "keras.layers.Identity"),
        args=without_last_comma(tensors),
    )
