"""Rewriting of imports and of all names that depend on them."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

import libcst as cst

from official_lite.porting import keras_changes
from official_lite.porting.symbol_map import Destinations
from official_lite.porting.syntax import Bindings, NamesTransformer, dotted_name

_Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement


def rename(module: cst.Module, destinations: Destinations) -> cst.Module:
    """Rename a module's names, and add `import keras` if it has become necessary."""
    bindings = Bindings()
    module.visit(bindings)
    renamer = _Renamer(bindings, destinations)
    renamed = module.visit(renamer)
    return with_imports(renamed, ["keras"]) if renamer.needs_keras else renamed


def with_imports(module: cst.Module, names: Iterable[str]) -> cst.Module:
    """Add missing imports: `keras` before TensorFlow, others before the first import.

    Args:
        module: The module.
        names: Names of modules. A name with a dot is imported from its package.
    """
    names = list(names)
    if not names:
        return module
    bindings = Bindings()
    module.visit(bindings)
    body = list(module.body)
    for name in names:
        if bindings.imported.get(name.rpartition(".")[2]) != name:
            _insert_import(body, name, 0 if module.get_docstring() is None else 1)
    return module.with_changes(body=body)


def _insert_import(body: list[_Statement], name: str, top: int) -> None:
    imports = [index for index, one in enumerate(body) if _is_import(one)]
    of_tensorflow = [index for index in imports if _is_import(body[index], "tensorflow")]
    package, _, member = name.rpartition(".")
    text = f"from {package} import {member}" if package else f"import {name}"
    new = cst.ensure_type(cst.parse_statement(text), cst.SimpleStatementLine)
    if not imports:
        body.insert(top, new)
        return
    at = (of_tensorflow if of_tensorflow and name == "keras" else imports)[0]
    after = cst.ensure_type(body[at], cst.SimpleStatementLine)
    body[at : at + 1] = [
        new.with_changes(leading_lines=after.leading_lines),
        after.with_changes(leading_lines=()),
    ]


class _NewImport(NamedTuple):
    """An import, `import module` or `from module import name`, with an optional alias."""

    module: str
    name: str = ""
    alias: str = ""

    def text(self) -> str:
        ending = f" as {self.alias}" if self.alias and self.alias != self.local else ""
        if self.name:
            return f"from {self.module} import {self.name}{ending}"
        return f"import {self.module}{ending}"

    @property
    def local(self) -> str:
        """The name that the import binds unless it has an alias."""
        return self.name or self.module


class _Renamer(NamesTransformer):
    def __init__(self, bindings: Bindings, destinations: Destinations) -> None:
        super().__init__(bindings)
        self._translate = destinations.translate
        self.needs_keras = False

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        full = dotted_name(original_node)
        root = full.partition(".")[0] if full else ""
        qualified = self.imported_name(original_node)
        if not qualified:
            return updated_node
        new = self._translate(qualified) or qualified
        if new in keras_changes.STRINGS:
            return cst.SimpleString(f'"{keras_changes.STRINGS[new]}"')
        expression = self._in_terms_of(root, new) if new != qualified else None
        if expression in (None, full):
            return updated_node
        return _dotted(expression).with_changes(lpar=original_node.lpar, rpar=original_node.rpar)

    def _in_terms_of(self, root: str, new: str) -> str | None:
        """Return the expression for `new` in this module; None to keep the old expression.

        If the module keeps the name `root`, the expression starts with it.
        """
        stands_for = self._bindings.imported[root]
        begin = self._translate(stands_for) or stands_for
        keeps_its_name = root != stands_for or root == "orbit"
        if keeps_its_name and new.startswith(begin + "."):
            return root + new[len(begin) :]
        if new.partition(".")[0] == "keras":
            self.needs_keras = True
            return new
        # `import a.b.c` binds only `a`, so the module uses full names both before and after the
        # port.
        return new if root == stands_for else None

    def leave_SimpleStatementLine(
        self,
        original_node: cst.SimpleStatementLine,
        updated_node: cst.SimpleStatementLine,
    ) -> cst.SimpleStatementLine | cst.FlattenSentinel[cst.SimpleStatementLine]:
        if len(original_node.body) != 1:
            return updated_node
        statement = original_node.body[0]
        if isinstance(statement, cst.Assign) and (alias := self._alias_of_keras(statement)):
            return _replaced(original_node, statement, [], [_NewImport("keras", alias=alias)])
        if isinstance(statement, cst.Import):
            imports = sorted({self._port_import(alias) for alias in statement.names})
            old = [_of_import(alias) for alias in statement.names]
        elif isinstance(statement, cst.ImportFrom) and not statement.relative:
            module = dotted_name(statement.module) if statement.module else None
            if module is None or isinstance(statement.names, cst.ImportStar):
                return self._port_star(updated_node, statement, module)
            old = [_of_import_from(module, alias) for alias in statement.names]
            imports = [self._port_import_from(one) for one in old]
        else:
            return updated_node
        if set(imports) == set(old):
            return updated_node
        return _replaced(original_node, statement, old, imports)

    def _alias_of_keras(self, statement: cst.Assign) -> str:
        """Return the name that a statement such as `keras = tf.keras` binds to Keras, or ""."""
        qualified = self._bindings.qualified_name(statement.value)
        if qualified is None or self._translate(qualified) != "keras":
            return ""
        return dotted_name(statement.targets[0].target) or ""

    def _port_star(
        self, line: cst.SimpleStatementLine, statement: cst.ImportFrom, module: str | None
    ) -> cst.SimpleStatementLine:
        new = self._translate(module) if module else None
        if new is None:
            return line
        return line.with_changes(body=[statement.with_changes(module=_dotted(new))])

    def _port_import(self, alias: cst.ImportAlias) -> _NewImport:
        old = _of_import(alias)
        new = self._translate(old.module)
        if new is None:
            return old
        if new.startswith("official_lite.orbit"):
            return _NewImport("official_lite", "orbit", old.alias)
        if new.startswith("keras") and not old.alias and "." in old.module:
            # Keep `import tensorflow`, because `import tensorflow.keras` also binds `tensorflow`.
            self.needs_keras = True
            return _NewImport(old.module.partition(".")[0])
        return _NewImport(new, alias=old.alias)

    def _port_import_from(self, old: _NewImport) -> _NewImport:
        new = self._translate(f"{old.module}.{old.name}")
        if new is None:
            return old
        module, _, name = new.rpartition(".")
        local = old.alias or old.name
        return _NewImport(module, name, local) if module else _NewImport(name, alias=local)


def _of_import(alias: cst.ImportAlias) -> _NewImport:
    return _NewImport(dotted_name(alias.name) or "", alias=_alias_name(alias))


def _of_import_from(module: str, alias: cst.ImportAlias) -> _NewImport:
    return _NewImport(module, dotted_name(alias.name) or "", _alias_name(alias))


def _alias_name(alias: cst.ImportAlias) -> str:
    return (dotted_name(alias.asname.name) or "") if alias.asname else ""


def _replaced(
    line: cst.SimpleStatementLine,
    statement: cst.BaseSmallStatement,
    old: Sequence[_NewImport],
    new: Sequence[_NewImport],
) -> cst.SimpleStatementLine | cst.FlattenSentinel[cst.SimpleStatementLine]:
    modules = {one.module for one in new}
    only_the_module = isinstance(statement, cst.ImportFrom) and len(modules) == 1
    if only_the_module and all(_same_names(*pair) for pair in zip(old, new, strict=True)):
        moved = statement.with_changes(module=_dotted(modules.pop()))
        return line.with_changes(body=[moved])
    texts = list(dict.fromkeys(one.text() for one in new))
    parsed = [cst.ensure_type(cst.parse_statement(t), cst.SimpleStatementLine) for t in texts]
    # Move comments above the line to the first new statement, and a trailing comment to the last.
    parsed[0] = parsed[0].with_changes(leading_lines=line.leading_lines)
    parsed[-1] = parsed[-1].with_changes(trailing_whitespace=line.trailing_whitespace)
    return parsed[0] if len(parsed) == 1 else cst.FlattenSentinel(parsed)


def _same_names(old: _NewImport, new: _NewImport) -> bool:
    return (
        bool(new.name)
        and new.name == old.name
        and (new.alias or new.name) == (old.alias or old.name)
    )


def _dotted(name: str) -> cst.Attribute | cst.Name:
    return cast(cst.Attribute | cst.Name, cst.parse_expression(name))


def _is_import(statement: cst.CSTNode, package: str = "") -> bool:
    if not isinstance(statement, cst.SimpleStatementLine):
        return False
    first = statement.body[0]
    if isinstance(first, cst.Import):
        names = [dotted_name(alias.name) or "" for alias in first.names]
    elif isinstance(first, cst.ImportFrom) and first.module:
        names = [dotted_name(first.module) or ""]
    else:
        return False
    if "__future__" in names:
        return False
    return not package or any(name.partition(".")[0] == package for name in names)
