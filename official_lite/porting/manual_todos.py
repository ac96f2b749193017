"""Detection of the places in a ported module that require manual work."""

import ast
import dataclasses
from collections.abc import Iterator

from official_lite.porting import idioms, keras_changes
from official_lite.porting.symbol_map import (
    LITE,
    dotted_name,
    imported_names,
    missing_in_keras,
    module_file,
    parents,
    top_level_names,
)

_OF_KERAS_2 = ("tf_keras", "tensorflow.python.keras", "tensorflow.compat.v1.keras")
_PACKAGES_OF_KERAS_2 = ("tensorflow_addons", "tensorflow_model_optimization", "tf_slim")

# Read-only properties of layers and models.
_PROPERTIES = frozenset(
    (
        *("compute_dtype", "dtype", "input", "layers", "losses", "metrics", "output"),
        *("non_trainable_variables", "non_trainable_weights", "trainable_variables"),
        *("trainable_weights", "variable_dtype", "variables", "weights"),
    )
)


@dataclasses.dataclass(frozen=True, order=True)
class Remaining:
    """A place that requires manual work.

    Attributes:
        path: The file.
        line: The line number after the port.
        what: The problem and a possible replacement.
    """

    path: str
    line: int
    what: str


def find(source: str, own_names: frozenset[str] = frozenset()) -> list[tuple[int, str]]:
    """Return the lines that require manual work with a description, in order.

    Args:
        source: Source text of a module.
        own_names: Names below `official` that the project itself contains: its modules, and the
            members of its packages.
    """
    tree = ast.parse(source)
    finder = _Finder(tree, own_names)
    finder.visit(tree)
    return sorted(set(finder.found))


class _Finder(ast.NodeVisitor):
    def __init__(self, tree: ast.Module, own_names: frozenset[str]) -> None:
        self.found: list[tuple[int, str]] = []
        self._own_names = own_names
        self._own_packages = {parent for name in own_names for parent in parents(name)}
        self._imported: dict[str, str] = {}
        for bound, full in imported_names(tree):
            # `import a.b` binds only the name `a`.
            top, dot, _ = bound.partition(".")
            self._imported[top] = top if dot else full
        self._locals: list[set[str]] = []
        self._in_keras_class = [False]
        self._has_habits = [False]

    def _tell(self, node: ast.stmt | ast.expr, what: str) -> None:
        self.found.append((node.lineno, what))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._look_at_name(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            if node.module and not node.level:
                ending = "" if alias.name == "*" else f".{alias.name}"
                self._look_at_name(node, node.module + ending)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        chain = dotted_name(node)
        name = self._qualified(node)
        advice = None if name.startswith("official_lite.") else self._advice_for(node.attr)
        if advice:
            self._tell(node, f"`{node.attr}` was removed: {advice}")
        if name:
            self._look_at_name(node, name)
        elif chain is None:
            self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        bases = [self._qualified(base) for base in node.bases]
        has_habits = any(base.startswith("official_lite.keras2.") for base in bases)
        self._in_keras_class.append(has_habits or any(b.startswith("keras.") for b in bases))
        self._has_habits.append(has_habits)
        self.generic_visit(node)
        self._has_habits.pop()
        self._in_keras_class.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if advice := self._advice_for(node.name):
            self._tell(node, f"Keras 3 never calls `{node.name}`: {advice}")
        self._visit_inside(node)

    def _advice_for(self, member: str) -> str | None:
        if self._has_habits[-1] and member in keras_changes.OF_KERAS_2_HABITS:
            return None
        return keras_changes.GONE_METHODS.get(member)

    def _visit_inside(self, node: ast.AST) -> None:
        self._locals.append(set(_bound_in(node)))
        self.generic_visit(node)
        self._locals.pop()

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_inside

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Attribute) and dotted_name(target.value) == "self":
                self._look_at_attribute(node, target.attr, node.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = self._qualified(node.func)
        if name == "" and dotted_name(node.func) == "isinstance" and len(node.args) == 2:
            kinds = [kind for kind in ast.walk(node.args[1]) if isinstance(kind, ast.expr)]
            names = map(self._qualified, kinds)
            if "tensorflow.TensorShape" in names and not self._has_habits[-1]:
                self._tell(node, "in Keras 3, shapes are tuples, not `tf.TensorShape`")
        for keyword in node.keywords:
            self._look_at_argument(node, name, keyword)
        self.generic_visit(node)

    def _look_at_name(self, node: ast.stmt | ast.expr, name: str) -> None:
        if name.startswith("official."):
            if not self._is_own(name):
                self._tell(
                    node,
                    f"`{name}` is not part of official_lite: copy it with `--alongside "
                    "DIRECTORY`, or replace it",
                )
        elif name.startswith("official_lite."):
            if missing := _missing_in_lite(name):
                self._tell(node, f"official_lite has no `{missing}`")
        elif name.startswith("keras."):
            if missing := missing_in_keras(name):
                self._tell(node, _gone_from_keras(missing, name))
        elif _begins(name, _OF_KERAS_2):
            self._tell(node, f"`{name}` belongs to Keras 2: use `keras`")
        elif _begins(name, _PACKAGES_OF_KERAS_2):
            self._tell(node, f"`{name}` depends on Keras 2: use another package")

    def _look_at_attribute(self, node: ast.Assign, name: str, value: ast.expr) -> None:
        if not self._in_keras_class[-1]:
            return
        if name in _PROPERTIES:
            self._tell(node, f"`self.{name}` is a property in Keras: use another name")
        is_variable = (
            isinstance(value, ast.Call) and self._qualified(value.func) == "tensorflow.Variable"
        )
        if is_variable and not self._has_habits[-1]:
            self._tell(node, "Keras doesn't track a `tf.Variable`: use `self.add_weight`")

    def _look_at_argument(self, node: ast.Call, name: str, keyword: ast.keyword) -> None:
        argument = keyword.arg or ""
        if argument == "name" and idioms.takes_layer_name(_called(node.func), name):
            if any("/" in text for text in _texts(keyword.value)):
                self._tell(
                    keyword.value, "in Keras 3, names of layers and weights can't contain a slash"
                )
        beginning, advice = keras_changes.GONE_ARGUMENTS.get(argument, ("", ""))
        if advice and name.startswith(beginning):
            self._tell(keyword.value, f"Keras 3 has no argument `{argument}`: {advice}")

    def _is_own(self, name: str) -> bool:
        *_, package = ("", *(one for one in (*parents(name), name) if one in self._own_packages))
        member = name.removeprefix(f"{package}.").partition(".")[0]
        # A package with a star import may have any member.
        listed = {f"{package}.{member}", f"{package}.*"}
        return bool(package) and (name == package or not listed.isdisjoint(self._own_names))

    def _qualified(self, node: ast.expr) -> str:
        root, dot, rest = (dotted_name(node) or "").partition(".")
        if root not in self._imported or any(root in names for names in self._locals):
            return ""
        return f"{self._imported[root]}{dot}{rest}"


def _bound_in(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.arg):
            yield inner.arg
        elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            yield inner.id


def _missing_in_lite(name: str) -> str | None:
    """Return the prefix of a dotted name that `official_lite` lacks; None if it has the name."""
    module, rest = name, ""
    while (file := module_file(LITE, module)) is None:
        module, _, last = module.rpartition(".")
        rest = last
    names = top_level_names(file)
    # A module with `__getattr__` may have names that are not in its source text.
    if not rest or rest in names or "__getattr__" in names or rest.startswith("__"):
        return None
    return f"{module}.{rest}"


def _gone_from_keras(missing: str, name: str) -> str:
    for known in (name, missing):
        if known in keras_changes.ADVICE:
            return f"`{known}` was removed: {keras_changes.ADVICE[known]}"
    return f"Keras 3 has no `{missing}`"


def _begins(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def _called(func: ast.expr) -> str:
    if name := dotted_name(func):
        return "add_weight" if name.endswith(".add_weight") else name
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Call):
        return f"super.{func.attr}" if dotted_name(func.value.func) == "super" else ""
    return ""


def _texts(value: ast.expr) -> Iterator[str]:
    for node in ast.walk(value):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
