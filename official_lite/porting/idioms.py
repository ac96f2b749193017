"""Rewriting of Keras 2 idioms that differ in Keras 3.

The names in the module have already been translated to those of Keras 3.
"""

import re
from collections.abc import Callable, Collection, Sequence

import libcst as cst
from libcst import matchers

from official_lite.porting import keras_changes
from official_lite.porting.names import with_imports
from official_lite.porting.syntax import (
    COMMA,
    Bindings,
    NamesTransformer,
    called_method,
    dotted_name,
    expression,
    keyword_of,
    positional,
    without_last_comma,
)

# Matches the name `shape`, and names that end in `_shape`.
_SHAPE = re.compile(r"(^|_)shape$")
_MODEL = re.compile(r"(^|_)model$")
_OPTIMIZER = re.compile(r"(^|_)(opt|optimizer)$")
# In Keras 3, layers and metrics have a method `reset_state` instead.
_RESET = "reset_states"

# Arguments of `add_weight` in the order of Keras 2. In Keras 3, `shape` comes first.
_ADD_WEIGHT = ("name", "shape", "dtype", "initializer")
_SYNCHRONIZED = "keras.layers.experimental.SyncBatchNormalization"
_SYNCHRONIZED_CLASS = "functools.partial(keras.layers.BatchNormalization, synchronized=True)"
_INPUTS = ("keras.Input", "keras.layers.Input")
# The `=` of a keyword argument, without spaces around it.
_EQUAL = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
_COMPILED = ("compiled_loss", "compiled_metrics")
# Suffixes of class names for which the argument `name` may contain a slash.
_NO_LAYERS = re.compile(r"(Config|Data|Dataset|Experiment|Metric|Params|Spec|Task)$")
_CLASS = re.compile(r"^_?[A-Z]|_(class|cls|layer)$")

_SHARED_ARGUMENTS: dict[str, str | None] = {"experimental_autocast": "autocast"}


def rewrite(module: cst.Module) -> cst.Module:
    """Rewrite a module to Keras 3 idioms."""
    bindings = Bindings()
    module.visit(bindings)
    name_givers = _NameGivers(bindings)
    module.visit(name_givers)
    idioms = _Idioms(bindings, name_givers)
    rewritten = module.visit(idioms)
    needed = {"keras": idioms.needs_keras, "functools": idioms.needs_functools}
    return with_imports(rewritten, [name for name, needs in needed.items() if needs])


class _NameGivers(cst.CSTVisitor):
    """A visitor that finds the parameters and variables that become the name of a layer.

    Attributes:
        found: The functions and methods that pass their parameter `name` to a layer, without the
            prefix `self.`.
        variables: Pairs of the name of a function ("" at module level) and of a variable that the
            function passes to a layer as its name.
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


class _Idioms(NamesTransformer):
    def __init__(self, bindings: Bindings, name_givers: _NameGivers) -> None:
        super().__init__(bindings)
        self._name_givers = name_givers
        self._functions = [""]
        names = bindings.imported.items()
        self._tensorflow = next((name for name, full in names if full == "tensorflow"), "")
        self.needs_keras = self.needs_functools = False
        self._defines_reset = False
        self._called: set[cst.CSTNode] = set()
        self._compared_with_none: set[cst.CSTNode] = set()

    def visit_Module(self, node: cst.Module) -> None:
        definition = matchers.FunctionDef(name=matchers.Name(_RESET))
        self._defines_reset = bool(matchers.findall(node, definition))

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        super().visit_FunctionDef(node)
        self._functions.append(node.name.value)

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef:
        super().leave_FunctionDef(original_node, updated_node)
        self._functions.pop()
        if original_node.name.value == _RESET:
            return updated_node.with_changes(name=cst.Name("reset_state"))
        return updated_node

    def visit_Call(self, node: cst.Call) -> None:
        self._called.add(node.func)

    def visit_Comparison(self, node: cst.Comparison) -> None:
        # Keep a comparison of a rank with None: for an unknown shape, `len` would raise an error.
        if any(dotted_name(target.comparator) == "None" for target in node.comparisons):
            self._compared_with_none.add(node.left)

    def leave_Comparison(
        self, original_node: cst.Comparison, updated_node: cst.Comparison
    ) -> cst.Comparison:
        comparators = [target.comparator for target in updated_node.comparisons]
        left, *others = _comparable_with_shapes([updated_node.left, *comparators])
        comparisons = [
            target.with_changes(comparator=other)
            for target, other in zip(updated_node.comparisons, others, strict=True)
        ]
        return updated_node.with_changes(left=left, comparisons=comparisons)

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        name = updated_node.attr.value
        if self.imported_name(original_node) == _SYNCHRONIZED and original_node not in self._called:
            self.needs_keras = self.needs_functools = True
            return cst.parse_expression(_SYNCHRONIZED_CLASS)
        # Keras 3 models have no `reset_state`, so the user must change this call by hand.
        is_of_keras = not self._defines_reset and _MODEL.search(_last_name(updated_node.value))
        if name == _RESET and not is_of_keras:
            return updated_node.with_changes(attr=cst.Name("reset_state"))
        if name == "lr" and _OPTIMIZER.search(_last_name(updated_node.value)):
            return updated_node.with_changes(attr=cst.Name("learning_rate"))
        if name in ("rank", "ndims") and _is_shape(updated_node.value):
            if original_node not in self._compared_with_none:
                return expression("len(shape)", shape=updated_node.value)
        return updated_node

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        method = called_method(updated_node)
        if method == "read_value" and not updated_node.args:
            self.needs_keras = True
            variable = cst.ensure_type(updated_node.func, cst.Attribute).value
            return expression("keras.ops.convert_to_tensor(variable)", variable=variable)
        if method == "save" and (saved := _saved_model(updated_node, self._tensorflow)):
            return saved
        if method in _SHAPE_METHODS and not updated_node.args:
            shape = cst.ensure_type(updated_node.func, cst.Attribute).value
            template = _SHAPE_METHODS[method]
            return expression(template, shape=shape) if _is_shape(shape) else updated_node
        if method in _METHODS:
            return _METHODS[method](updated_node)
        if dotted_name(original_node.func) == "len" and len(original_node.args) == 1:
            listed = _listed_shape(original_node.args[0].value, updated_node.args[0].value)
            return expression("len(shape)", shape=listed) if listed else updated_node
        name = self.imported_name(original_node.func)
        if name.startswith("keras.backend.") and (new := _of_backend(name, updated_node)):
            self.needs_keras = True
            return new
        if name == _SYNCHRONIZED:
            self.needs_keras = True
            return _synchronized(updated_node)
        if name in _INPUTS:
            return _with_tuple_shape(updated_node)
        changed = _with_new_arguments(updated_node, name)
        if name.startswith("keras.layers."):
            changed = _with_lower_case_padding(changed)
        return without_slash(changed, name, self._name_givers.found)

    def leave_Subscript(
        self, original_node: cst.Subscript, updated_node: cst.Subscript
    ) -> cst.BaseExpression:
        # Index the shape directly instead of `list(shape)`, because reading one dimension needs no
        # list.
        listed = _listed_shape(original_node.value, updated_node.value)
        if listed is None or any(isinstance(e.slice, cst.Slice) for e in updated_node.slice):
            return updated_node
        return updated_node.with_changes(value=listed)

    def leave_Assign(self, original_node: cst.Assign, updated_node: cst.Assign) -> cst.Assign:
        target = dotted_name(updated_node.targets[0].target) or ""
        if (self._functions[-1], target) in self._name_givers.variables:
            return _without_slash_in_value(updated_node)
        return updated_node

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> cst.If | cst.RemovalSentinel:
        test = updated_node.test
        if isinstance(test, cst.Attribute) and test.attr.value in _COMPILED:
            # In Keras 3, `compiled_loss` and `compiled_metrics` are true even for an uncompiled
            # model.
            return updated_node.with_changes(test=test.with_changes(attr=cst.Name("compiled")))
        is_empty = isinstance(updated_node.body, cst.IndentedBlock) and not updated_node.body.body
        if is_empty and updated_node.orelse is None:
            return cst.RemoveFromParent()
        return updated_node

    def leave_SimpleStatementLine(
        self,
        original_node: cst.SimpleStatementLine,
        updated_node: cst.SimpleStatementLine,
    ) -> cst.SimpleStatementLine | cst.RemovalSentinel:
        if _unscales_gradients(original_node):
            return cst.RemoveFromParent()
        return updated_node


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


def _without_slash_in_value(assign: cst.Assign) -> cst.Assign:
    """Replace `/` by `_` in the assigned value, if it is a literal."""
    return assign.with_changes(value=_without_slash(assign.value))


def _without_slash_in_first(call: cst.Call) -> cst.Call:
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
    """Replace `/` by `_` in string literals and f-strings; return other values unchanged."""
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


def _comparable_with_shapes(values: Sequence[cst.BaseExpression]) -> list[cst.BaseExpression]:
    """Return a comparison's operands, with lists turned into tuples if an operand is `x.shape`.

    A `tf.TensorShape` may equal a list. The shapes in Keras 3 are tuples, which never equal a list.
    """
    if not any(map(_is_shape_of_tensor, values)):
        return list(values)
    return [
        cst.Tuple(
            [
                e.with_changes(comma=cst.Comma()) if len(value.elements) == 1 else e
                for e in value.elements
            ]
        )
        if isinstance(value, cst.List) and value.elements
        else value
        for value in values
    ]


def _is_shape_of_tensor(node: cst.BaseExpression) -> bool:
    while isinstance(node, cst.Subscript):
        node = node.value
    return isinstance(node, cst.Attribute) and node.attr.value == "shape"


def _assert_equal(call: cst.Call) -> cst.BaseExpression:
    values = _comparable_with_shapes([arg.value for arg in call.args])
    args = [arg.with_changes(value=v) for arg, v in zip(call.args, values, strict=True)]
    return call.with_changes(args=args)


def _with_lower_case_padding(call: cst.Call) -> cst.Call:
    """Convert the `padding` argument to lower case: Keras 3's pooling layers reject "SAME"."""
    args = [
        arg.with_deep_changes(arg.value, value=arg.value.value.lower())
        if keyword_of(arg) == "padding" and isinstance(arg.value, cst.SimpleString)
        else arg
        for arg in call.args
    ]
    return call.with_changes(args=args)


def _saved_model(call: cst.Call, tensorflow: str) -> cst.BaseExpression | None:
    """Rewrite `model.save(path, save_format="tf")` as `tf.saved_model.save(model, path)`."""
    by_name = {keyword_of(arg): arg for arg in call.args if arg.keyword}
    save_format = by_name.get("save_format")
    if save_format is None or not isinstance(save_format.value, cst.SimpleString):
        return None
    if save_format.value.evaluated_value != "tf" or not tensorflow:
        return None
    func = cst.ensure_type(call.func, cst.Attribute)
    # `tf.saved_model.save` has none of these arguments. A SavedModel always includes the optimizer,
    # if the model has one.
    left_out = ("save_format", "include_optimizer", "overwrite")
    args = [arg for arg in call.args if keyword_of(arg) not in left_out]
    model = cst.Arg(func.value, comma=COMMA)
    saved = cst.parse_expression(f"{tensorflow}.saved_model.save")
    return call.with_changes(func=saved, args=without_last_comma([model, *args]))


def _with_tuple_shape(call: cst.Call) -> cst.Call:
    """Rewrite `Input(shape=(n))`, which Keras 2 accepts, as `Input(shape=(n,))`."""
    args = []
    for index, arg in enumerate(call.args):
        value = arg.value
        is_shape = keyword_of(arg) == "shape" or (index == 0 and not arg.keyword)
        is_number = isinstance(value, cst.Integer) or (
            isinstance(value, cst.Name | cst.Attribute) and value.lpar and not _is_shape(value)
        )
        if is_shape and is_number:
            inner = value.with_changes(lpar=[], rpar=[])
            arg = arg.with_changes(value=cst.Tuple([cst.Element(inner, cst.Comma())]))
        args.append(arg)
    return call.with_changes(args=args)


def _unscales_gradients(line: cst.SimpleStatementLine) -> bool:
    """Return whether a line is `grads = optimizer.get_unscaled_gradients(grads)`."""
    if len(line.body) != 1 or not isinstance(line.body[0], cst.Assign):
        return False
    assign = line.body[0]
    if not isinstance(assign.value, cst.Call):
        return False
    if called_method(assign.value) != "get_unscaled_gradients":
        return False
    values = positional(assign.value, 1)
    return values is not None and values[0].deep_equals(assign.targets[0].target)


def _get_shape(call: cst.Call) -> cst.BaseExpression:
    if call.args or not isinstance(call.func, cst.Attribute):
        return call
    return call.func.with_changes(attr=cst.Name("shape"))


def _listed_shape(
    before: cst.BaseExpression, after: cst.BaseExpression
) -> cst.BaseExpression | None:
    """Return `shape` if `shape.as_list()` was rewritten as `list(shape)`; otherwise None."""
    if not isinstance(before, cst.Call) or called_method(before) != "as_list":
        return None
    if not isinstance(after, cst.Call) or dotted_name(after.func) != "list":
        return None
    return after.args[0].value


def _unscaled(call: cst.Call) -> cst.BaseExpression:
    """Replace `get_unscaled_gradients` by its argument; Keras 3 unscales in `apply_gradients`."""
    values = positional(call, 1)
    return values[0] if values else call


def _add_weight(call: cst.Call) -> cst.BaseExpression:
    args = []
    for index, arg in enumerate(call.args):
        if arg.keyword or arg.star:
            args.append(arg)
            continue
        first_is_name = isinstance(call.args[0].value, cst.SimpleString | cst.FormattedString)
        if not first_is_name or index >= len(_ADD_WEIGHT):
            return call
        args.append(arg.with_changes(keyword=cst.Name(_ADD_WEIGHT[index]), equal=_EQUAL))
    changed = _with_new_arguments(call.with_changes(args=args), "")
    return without_slash(changed, "add_weight")


_METHODS: dict[str, Callable[[cst.Call], cst.BaseExpression]] = {
    "add_weight": _add_weight,
    "assertEqual": _assert_equal,
    "assertNotEqual": _assert_equal,
    "get_layer": _without_slash_in_first,
    "get_scaled_loss": lambda call: call.with_deep_changes(call.func, attr=cst.Name("scale_loss")),
    "get_shape": _get_shape,
    "get_unscaled_gradients": _unscaled,
}
# Maps methods of `tf.TensorShape` to the templates that replace their calls.
_SHAPE_METHODS = {"as_list": "list(shape)", "is_fully_defined": "(None not in shape)"}


def _is_shape(node: cst.BaseExpression) -> bool:
    return bool(_SHAPE.search(_last_name(node)))


def _last_name(node: cst.BaseExpression) -> str:
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


# Maps each `keras.backend` function to the number of its arguments and the template that replaces
# its calls. Functions that differ only in their name have already been renamed.
_BACKEND_TEMPLATES = {
    "keras.backend.cast_to_floatx": (1, "keras.ops.cast(a, keras.backend.floatx())"),
    "keras.backend.dtype": (1, "keras.backend.standardize_dtype(a.dtype)"),
    "keras.backend.flatten": (1, "keras.ops.reshape(a, [-1])"),
    "keras.backend.gather": (2, "keras.ops.take(a, b, axis=0)"),
    "keras.backend.int_shape": (1, "tuple(a.shape)"),
    # A constant is enough, because Keras 3 passes `training` to inner layers automatically.
    "keras.backend.learning_phase": (0, "False"),
    "keras.backend.ndim": (1, "len(a.shape)"),
    "keras.backend.relu": (1, "keras.ops.relu(a)"),
    "keras.backend.set_value": (2, "a.assign(b)"),
    "keras.backend.update": (2, "a.assign(b)"),
    "keras.backend.update_add": (2, "a.assign_add(b)"),
    "keras.backend.update_sub": (2, "a.assign_sub(b)"),
}


def _of_backend(name: str, call: cst.Call) -> cst.BaseExpression | None:
    count, template = _BACKEND_TEMPLATES.get(name, (0, ""))
    values = positional(call, count) if template else None
    if values is None:
        return None
    return expression(template, **dict(zip("ab", values, strict=False)))


def _synchronized(call: cst.Call) -> cst.Call:
    func = cst.parse_expression("keras.layers.BatchNormalization")
    added = cst.Arg(cst.Name("True"), keyword=cst.Name("synchronized"), equal=_EQUAL)
    return call.with_changes(func=func, args=_with_argument(call.args, added))


def _with_argument(args: Sequence[cst.Arg], added: cst.Arg) -> list[cst.Arg]:
    """Add a keyword argument, as the first argument if all others are keyword arguments, else last.

    Adding the argument at the front preserves the layout at the end of the call.
    """
    if not args:
        return [added]
    comma = args[0].comma
    if not isinstance(comma, cst.Comma) or len(args) == 1:
        comma = COMMA
    if any(not arg.keyword for arg in args):
        last = args[-1].with_changes(comma=COMMA)
        return [*args[:-1], last, added]
    return [added.with_changes(comma=comma), *args]


def _with_new_arguments(call: cst.Call, name: str) -> cst.Call:
    changes = dict(_SHARED_ARGUMENTS)
    for begin, renamed in keras_changes.RENAMED_ARGUMENTS.items():
        if name and (name == begin or (begin.endswith(".") and name.startswith(begin))):
            changes |= renamed
    changes |= {keyword_of(arg): None for arg in call.args if _has_no_effect(arg, name)}
    if not any(keyword_of(arg) in changes for arg in call.args):
        return call
    args = []
    for arg in call.args:
        new = changes.get(keyword_of(arg), keyword_of(arg))
        if new is None:
            continue
        args.append(arg.with_changes(keyword=cst.Name(new)) if arg.keyword else arg)
    return call.with_changes(args=without_last_comma(args))


def _has_no_effect(arg: cst.Arg, called: str) -> bool:
    """Return whether an argument that Keras 3 lacks has no effect anyway, as in `decay=0`."""
    beginning, _ = keras_changes.GONE_ARGUMENTS.get(keyword_of(arg), (None, ""))
    if not beginning or not called.startswith(beginning):
        return False
    if isinstance(arg.value, cst.Integer | cst.Float):
        return not arg.value.evaluated_value
    return dotted_name(arg.value) in ("None", "False")
