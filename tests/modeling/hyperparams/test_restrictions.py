import pytest

from official_lite.common import errors
from official_lite.modeling import hyperparams


def check(restriction, **values):
    hyperparams.ParamsDict(values, [restriction]).validate()


@pytest.mark.parametrize(
    "restriction",
    [
        "a.b<=c",
        "a.b != c",
        "c == 2",
        "c >= -1e-3",
        "n == None",
        "s == 'off'",
        "t == True",
        "a == a",
    ],
)
def test_rules_that_hold(restriction):
    check(restriction, a={"b": 1}, c=2, n=None, s="off", t=True)


def test_broken_rule_shows_the_values_and_is_a_key_error():
    with pytest.raises(KeyError, match=r"`a\.b >= c` is violated: the values are 1 and 2"):
        check("a.b >= c", a={"b": 1}, c=2)
    with pytest.raises(hyperparams.RestrictionError, match="the values are None and 3"):
        check("a < 3", a=None)


def test_functions_are_rules_too():
    def is_even(params):
        return params.a % 2 == 0

    check(is_even, a=2)
    with pytest.raises(hyperparams.RestrictionError, match="`is_even` is violated"):
        check(is_even, a=3)


def test_unknown_path_names_the_nearest_key():
    with pytest.raises(errors.UnknownKeyError, match="Did you mean `train_steps`"):
        check("train_step > 0", train_steps=1)


@pytest.mark.parametrize("restriction", ["a", "a < b < c", "a = 1", "a < 1x"])
def test_senseless_rules_are_refused(restriction):
    with pytest.raises(errors.ConfigValueError):
        check(restriction, a=0, b=1, c=2)


def test_broken_rule_of_a_nested_tree_names_its_place():
    params = hyperparams.ParamsDict({"outer": {"inner": {"x": 1}}})
    params.outer.inner._restrictions.append("x == 2")
    with pytest.raises(hyperparams.RestrictionError, match=r"in `outer\.inner` of ParamsDict"):
        params.validate()
