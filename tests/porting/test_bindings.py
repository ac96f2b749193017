import libcst as cst

from official_lite.porting.bindings import Bindings, LocalNames, dotted_name


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
