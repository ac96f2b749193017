import libcst as cst

from official_lite.porting import syntax
from official_lite.porting.syntax import Bindings, LocalNames, dotted_name


def test_names_are_resolved_through_imports_and_aliases() -> None:
    module = cst.parse_module(
        "import tensorflow as tf, os.path\nfrom a.b import c as d\nlayers = tf.keras.layers\n"
    )
    bindings = Bindings()
    module.visit(bindings)
    names = ["tf.nn", "os.path.join", "d.e", "layers.Dense", "unknown.x"]
    resolved = [bindings.qualified_name(cst.parse_expression(name)) for name in names]
    assert resolved == [
        "tensorflow.nn",
        "os.path.join",
        "a.b.c.e",
        "tensorflow.keras.layers.Dense",
        None,
    ]


def test_what_a_function_binds_is_local_to_it() -> None:
    module = cst.parse_module(
        "def f(a, *, b=1):\n  c, d = a\n  for e in c:\n    pass\n  self.g = 1\n"
    )
    function = cst.ensure_type(module.body[0], cst.FunctionDef)
    names = LocalNames()
    names.enter(function)
    assert [name in names for name in "abcdeg"] == [True] * 5 + [False]
    names.leave()
    assert "a" not in names


def test_only_a_chain_of_attributes_has_a_dotted_name() -> None:
    assert dotted_name(cst.parse_expression("a.b.c")) == "a.b.c"
    assert dotted_name(cst.parse_expression("a().b")) is None


def _call(text: str) -> cst.Call:
    return cst.ensure_type(cst.parse_expression(text), cst.Call)


def test_parts_of_a_call() -> None:
    assert syntax.called_method(_call("a.b.c(1)")) == "c"
    assert syntax.called_method(_call("c(1)")) == ""
    assert [syntax.keyword_of(arg) for arg in _call("f(1, x=2)").args] == ["", "x"]
    assert syntax.positional(_call("f(1, x=2)"), 1) is None
    assert syntax.positional(_call("f(*a)"), 1) is None


def test_expression_of_a_template() -> None:
    filled = syntax.expression("f(a, b)", a=cst.parse_expression("x + 1"), b=cst.Name("y"))
    assert cst.Module([]).code_for_node(filled) == "f(x + 1, y)"


def test_comma_behind_the_last_argument_stays_only_at_the_end_of_a_line() -> None:
    short, long = _call("f(1, 2)"), _call("f(\n    1,\n    2,\n)")
    codes = [
        cst.Module([]).code_for_node(call.with_changes(args=syntax.without_last_comma(args)))
        for call, args in ((short, short.args[:1]), (long, long.args))
    ]
    assert codes == ["f(1)", "f(\n    1,\n    2,\n)"]
