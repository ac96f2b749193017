import libcst as cst

from official_lite.porting import calls


def _call(text: str) -> cst.Call:
    return cst.ensure_type(cst.parse_expression(text), cst.Call)


def test_parts_of_a_call() -> None:
    assert calls.called_method(_call("a.b.c(1)")) == "c"
    assert calls.called_method(_call("c(1)")) == ""
    assert [calls.keyword_of(arg) for arg in _call("f(1, x=2)").args] == ["", "x"]
    assert calls.positional(_call("f(1, x=2)"), 1) is None
    assert calls.positional(_call("f(*a)"), 1) is None


def test_expression_of_a_template() -> None:
    filled = calls.expression("f(a, b)", a=cst.parse_expression("x + 1"), b=cst.Name("y"))
    assert cst.Module([]).code_for_node(filled) == "f(x + 1, y)"


def test_comma_behind_the_last_argument_stays_only_at_the_end_of_a_line() -> None:
    short, long = _call("f(1, 2)"), _call("f(\n    1,\n    2,\n)")
    codes = [
        cst.Module([]).code_for_node(call.with_changes(args=calls.without_last_comma(args)))
        for call, args in ((short, short.args[:1]), (long, long.args))
    ]
    assert codes == ["f(1)", "f(\n    1,\n    2,\n)"]
