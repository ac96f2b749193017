"""Untyped parameter trees: overrides, paths and restrictions."""

import dataclasses

import pytest

from official_lite.common import errors
from official_lite.modeling import hyperparams
from official_lite.modeling.hyperparams import ParamsDict, params_dict


@dataclasses.dataclass
class Routine(hyperparams.Config):
    weight: float = 1.0
    name: str = ""


@dataclasses.dataclass
class Choice(hyperparams.OneOfConfig):
    type: str = "a"
    a: int = 1
    b: int = 2


@dataclasses.dataclass
class Experiment(hyperparams.Config):
    train_steps: int = 0
    labels: list[str] = dataclasses.field(default_factory=list)
    limit: int | None = 5
    routines: tuple[Routine, ...] = (Routine(),)
    choice: Choice = dataclasses.field(default_factory=Choice)
    extra: hyperparams.Config | None = None


def _check(restriction, **values) -> None:
    hyperparams.ParamsDict(values, [restriction]).validate()


# The invalid action, the error, and the name that its message must contain.
REFUSALS = [
    (lambda: _override("a:10"), errors.ConfigValueError, "position 0"),
    (lambda: _override("nonsense"), errors.ConfigValueError, "`name=value`"),
    (lambda: _override("a=1,nonsense"), errors.ConfigValueError, "position 4"),
    (lambda: _override("a: [1\nb: 2"), errors.ConfigValueError, "override:2"),
    (lambda: _override("{a: 1, a: 2}"), errors.ConfigValueError, "'a'"),
    (lambda: _override(5), errors.ConfigValueError, "int"),
    (lambda: _override("no/such.yaml"), hyperparams.ConfigFileError, "no/such.yaml"),
    (lambda: _override("b.c: 10"), errors.UnknownKeyError, "`b.c=value`"),
    (lambda: ParamsDict().override([1]), errors.ConfigTypeError, "list"),
    (lambda: _override({"b": {"cc": 2}}), errors.UnknownKeyError, "`b.cc`"),
    (lambda: _set("train_step", "5"), errors.UnknownKeyError, "`train_steps`"),
    (lambda: _set("routines[0].wight", "5"), errors.UnknownKeyError, "`routines[0].wight`"),
    (lambda: _set("train_steps", "1e6"), errors.ConfigTypeError, "1000000"),
    (lambda: _set("train_steps", "010"), errors.ConfigValueError, "octal"),
    (lambda: _set("routines[5].weight", "1"), errors.ConfigValueError, "`routines[5]`"),
    (lambda: _set("train_steps.x", "5"), errors.ConfigTypeError, "`train_steps`"),
    (lambda: _set("train_steps[0]", "5"), errors.ConfigTypeError, "`train_steps`"),
    (lambda: _set("a..b", "5"), errors.ConfigValueError, "'a..b'"),
    (lambda: _check("train_step > 0", train_steps=1), errors.UnknownKeyError, "`train_steps`"),
    (lambda: _check("a.b >= c", a={"b": 1}, c=2), KeyError, "the values 1 and 2"),
    (lambda: _check("a < 3", a=None), hyperparams.RestrictionError, "None and 3"),
    (lambda: _check(_is_even, a=3), hyperparams.RestrictionError, "`_is_even`"),
    *(
        (lambda rule=rule: _check(rule, a=0, b=1, c=2), errors.ConfigValueError, "restriction")
        for rule in ("a", "a < b < c", "a = 1", "a < 1x")
    ),
]


def _override(override) -> None:
    params = ParamsDict({"a": 1, "b": {"c": 1}})
    hyperparams.override_params_dict(params, override, is_strict=True)


def _set(path: str, text: str) -> None:
    config = Experiment()
    try:
        hyperparams.set_by_path(config, path, text)
    finally:
        assert config == Experiment(), "a refused value changes nothing"


def _is_even(params) -> bool:
    return params.a % 2 == 0


@pytest.mark.parametrize(("act", "error", "named"), REFUSALS)
def test_error_for_an_invalid_override_or_restriction_names_its_cause(act, error, named) -> None:
    with pytest.raises(error) as caught:
        act()
    assert named in str(caught.value)


def test_params_dict_accepts_new_keys_only_in_its_constructor_and_in_non_strict_overrides():
    params = ParamsDict({"a": {"b": 1}})
    params.override({"a": {"c": 2}}, is_strict=False)
    assert params.as_dict() == {"a": {"b": 1, "c": 2}}
    with pytest.raises(KeyError, match="Known: `a`"):
        params.x = 1


def test_reading_an_unknown_key_raises_attribute_error():
    params = ParamsDict({"train_steps": 1})
    assert not hasattr(params, "steps")
    assert params.get("steps", 5) == 5
    with pytest.raises(AttributeError, match="Did you mean `train_steps`"):
        _ = params.train_step


def test_params_dict_shares_no_nested_values_with_its_input_or_with_as_dict():
    values = {"a": [{"b": 1}]}
    params = ParamsDict(values)
    values["a"][0]["b"] = params.as_dict()["a"][0]["b"] = 2
    assert params.a == [{"b": 1}]
    assert "_locked" not in params


def test_override_can_replace_a_scalar_with_a_dict_and_a_dict_with_a_scalar():
    params = ParamsDict({"a": 1, "b": {"c": 2}})
    params.override({"a": {"x": 1}, "b": 3})
    assert params.as_dict() == {"a": {"x": 1}, "b": 3}


def test_lock_of_a_params_dict_applies_to_nested_parameters():
    params = ParamsDict({"a": {"b": {"c": 1}}})
    params.lock()
    for change in (
        lambda: setattr(params.a.b, "c", 2),
        lambda: params.override({"a": {"b": {"c": 2}}}),
        lambda: delattr(params.a, "b"),
    ):
        with pytest.raises(errors.LockedConfigError, match="is locked"):
            change()
    unlocked = params_dict.copy_value(params)
    unlocked.a.b.c = 2
    assert params.a.b.c == 1


def test_deleted_key_is_missing_from_params_dict():
    params = ParamsDict({"a": 1})
    del params.a
    assert "a" not in params
    with pytest.raises(AttributeError, match="no key 'a' to delete"):
        del params.a


@pytest.mark.parametrize(
    "override",
    [
        "a=5,b.c=x",
        "{a: 5, b: {c: x}}",
        "a: 5\nb:\n  c: x\n",
        " a = 5 , b.c = x",
        '{"a": 5, "b": {"c": "x"}}',
    ],
)
def test_override_is_parsed_from_assignments_yaml_or_json(override):
    params = ParamsDict({"a": 1, "b": {"c": "", "d": 2}})
    hyperparams.override_params_dict(params, override, is_strict=True)
    assert params.as_dict() == {"a": 5, "b": {"c": "x", "d": 2}}


@pytest.mark.parametrize("name", ["exp.yaml", "exp.yml", "exp.json", "exp.txt"])
def test_config_override_is_read_from_a_yaml_json_or_text_file(tmp_path, name):
    path = tmp_path / name
    path.write_text('{"a": 5}')
    for override in (path, str(path)):
        params = hyperparams.override_params_dict(ParamsDict({"a": 1}), override, is_strict=True)
        assert params.a == 5


@pytest.mark.parametrize("override", [None, "", {}, "# nothing"])
def test_empty_override_does_not_change_a_params_dict(override):
    params = hyperparams.override_params_dict(ParamsDict({"a": 1}), override, is_strict=True)
    assert params.as_dict() == {"a": 1}


def test_assignment_whose_value_ends_in_yaml_is_not_read_as_a_file():
    params = hyperparams.override_params_dict(ParamsDict({"a": ""}), "a=x.yaml", is_strict=True)
    assert params.a == "x.yaml"


def test_list_elements_of_a_params_dict_are_overridden_by_index():
    params = ParamsDict({"a": [1, 2, 3], "b": [{"c": 1}]})
    hyperparams.override_params_dict(params, "a[1]=5,a[3]=6,b[0]={c: 2}", is_strict=True)
    assert params.as_dict() == {"a": [1, 5, 3, 6], "b": [{"c": 2}]}


def test_params_dict_round_trips_through_yaml(tmp_path):
    path = tmp_path / "params.yaml"
    hyperparams.save_params_dict_to_yaml(ParamsDict({"a": (1, 2), "b": {"c": "off"}}), path)
    assert path.read_text() == "a: [1, 2]\nb:\n  c: 'off'\n"
    read = hyperparams.read_yaml_to_params_dict(path)
    assert read.as_dict() == {"a": [1, 2], "b": {"c": "off"}}
    assert type(read.as_dict()) is dict


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
        lambda params: params.c == 2,
    ],
)
def test_params_dict_that_satisfies_its_restriction_is_valid(restriction):
    _check(restriction, a={"b": 1}, c=2, n=None, s="off", t=True)


def test_error_for_a_violated_restriction_names_the_path_of_the_nested_parameters():
    params = hyperparams.ParamsDict({"outer": {"inner": {"x": 1}}})
    params.outer.inner._restrictions.append("x == 2")
    with pytest.raises(hyperparams.RestrictionError, match=r"in `outer\.inner` of ParamsDict"):
        params.validate()


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("train_steps", "5", 5),
        ("labels", "[a, 'b c']", ["a", "b c"]),
        ("limit", "null", None),
        ("routines[0].weight", "1e-3", 1e-3),
        ("routines[0].name", "off", "off"),
        ("routines[0].name", "010", "010"),
        ("routines[0].name", "12", "12"),
        ("routines[0].name", "[not a list", "[not a list"),
        ("routines[0].name", "", ""),
        ("choice.a", "7", 7),
    ],
)
def test_set_by_path_parses_text_according_to_the_field_type(path, text, value):
    config = Experiment()
    hyperparams.set_by_path(config, path, text)
    assert eval(f"config.{path}", {"config": config}) == value


def test_set_by_path_with_the_index_after_the_last_element_appends_a_config():
    config = Experiment()
    hyperparams.set_by_path(config, "routines[1].weight", "2")
    assert config.routines == (Routine(), Routine(weight=2.0))


def test_set_by_path_on_a_locked_config_raises_locked_config_error():
    config = Experiment()
    config.lock()
    with pytest.raises(errors.LockedConfigError):
        hyperparams.set_by_path(config, "train_steps", "5")


def test_flatten_lists_the_leaves_in_field_order():
    config = Experiment(extra={"x": {"y": 1}, "z": {}, "w": {"not a name": 2}})
    assert list(hyperparams.flatten(config).items()) == [
        ("train_steps", 0),
        ("labels", []),
        ("limit", 5),
        ("routines", ({"weight": 1.0, "name": ""},)),
        ("choice.type", "a"),
        ("choice.a", 1),
        ("extra.x.y", 1),
        ("extra.z", {}),
        ("extra.w", {"not a name": 2}),
    ]


def test_diff_shows_each_config_path_whose_value_differs():
    old = Experiment()
    new = Experiment(train_steps=5, choice=Choice(type="b"))
    assert hyperparams.diff(old.as_dict(), new) == [
        "choice.a: 1 -> (absent)",
        "choice.b: (absent) -> 2",
        "choice.type: 'a' -> 'b'",
        "train_steps: 0 -> 5",
    ]
    assert hyperparams.diff({"a": (1, 2)}, {"a": [1, 2]}) == []


def test_config_strings_are_found_and_rewritten_at_any_depth():
    config = hyperparams.Config({"a": "x", "b": ["x", {"c": ("x", 1)}], "d": {"e": "y", "f": 2}})
    config.lock()
    assert sorted(hyperparams.texts(config)) == ["x", "x", "x", "y"]
    rewritten = hyperparams.map_texts(config, str.upper)
    assert rewritten.as_dict() == {"a": "X", "b": ["X", {"c": ("X", 1)}], "d": {"e": "Y", "f": 2}}
    assert config.a == "x"


def test_override_by_path_stores_a_string_without_parsing_it():
    config = hyperparams.Config({"a": {"b": [{"c": ""}]}})
    hyperparams.override_by_path(config, "a.b[0].c", "1")
    assert config.a.b[0].c == "1"
