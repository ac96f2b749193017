"""Detection of names that refer to symbolic tensors, which are derived from `keras.Input`.

In Keras 3, TensorFlow functions do not accept symbolic tensors. The tensors are followed through
assignments, and into functions and methods of the same module that are called with them.
"""

from collections.abc import Iterator

import libcst as cst

from official_lite.porting.bindings import Bindings, dotted_name
from official_lite.porting.calls import called_method, keyword_of

__all__ = ["SymbolicTensors"]

_INPUTS = ("keras.Input", "keras.layers.Input")
# Properties of a symbolic tensor that are known without its values.
_STATIC_ATTRIBUTES = frozenset({"dtype", "name", "ndim", "shape"})
_STATIC_FUNCTIONS = frozenset({"hasattr", "isinstance", "len", "type"})
_FILLS = frozenset({"append", "extend", "insert", "setdefault", "update"})

_Key = tuple[str, str]


class SymbolicTensors:
    """Determines which names are symbolic in each function of a module."""

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
        """Return the symbolic names in a function; at module level there are none."""
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
        """Yield the parameters of the module's functions that receive symbolic tensors."""
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
    """A visitor that adds the names which are assigned from symbolic ones."""

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
