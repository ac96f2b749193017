import dataclasses

import pytest

from official_lite.common import errors
from official_lite.modeling import hyperparams


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
def test_set_by_path(path, text, value):
    config = Experiment()
    hyperparams.set_by_path(config, path, text)
    assert eval(f"config.{path}", {"config": config}) == value


def test_set_by_path_appends_a_config():
    config = Experiment()
    hyperparams.set_by_path(config, "routines[1].weight", "2")
    assert config.routines == (Routine(), Routine(weight=2.0))


@pytest.mark.parametrize(
    ("path", "text", "kind", "message"),
    [
        ("train_step", "5", errors.UnknownKeyError, "Did you mean `train_steps`"),
        ("routines[0].wight", "5", errors.UnknownKeyError, r"`routines\[0\]\.wight` .*`weight`"),
        ("train_steps", "1e6", errors.ConfigTypeError, "Write 1000000"),
        ("train_steps", "010", errors.ConfigValueError, "decimal or octal"),
        ("routines[5].weight", "1", errors.ConfigValueError, "the list has 1 elements"),
        ("train_steps.x", "5", errors.ConfigTypeError, "`train_steps` of Experiment: expected int"),
        ("train_steps[0]", "5", errors.ConfigTypeError, "values for single list elements"),
        ("a..b", "5", errors.ConfigValueError, "is not a path"),
    ],
)
def test_set_by_path_explains_failures(path, text, kind, message):
    config = Experiment()
    with pytest.raises(kind, match=message):
        hyperparams.set_by_path(config, path, text)
    assert config == Experiment()


def test_set_by_path_respects_the_lock():
    config = Experiment()
    config.lock()
    with pytest.raises(errors.LockedConfigError):
        hyperparams.set_by_path(config, "train_steps", "5")


def test_flatten_lists_the_leaves_in_order():
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


def test_diff_shows_each_path_that_differs():
    old = Experiment()
    new = Experiment(train_steps=5, choice=Choice(type="b"))
    assert hyperparams.diff(old.as_dict(), new) == [
        "choice.a: 1 -> (absent)",
        "choice.b: (absent) -> 2",
        "choice.type: 'a' -> 'b'",
        "train_steps: 0 -> 5",
    ]
    assert hyperparams.diff({"a": (1, 2)}, {"a": [1, 2]}) == []


def test_texts_are_found_and_rewritten_however_deep():
    config = hyperparams.Config({"a": "x", "b": ["x", {"c": ("x", 1)}], "d": {"e": "y", "f": 2}})
    config.lock()
    assert sorted(hyperparams.texts(config)) == ["x", "x", "x", "y"]
    rewritten = hyperparams.map_texts(config, str.upper)
    assert rewritten.as_dict() == {"a": "X", "b": ["X", {"c": ("X", 1)}], "d": {"e": "Y", "f": 2}}
    assert config.a == "x"


def test_override_by_path_takes_values_as_they_are():
    config = hyperparams.Config({"a": {"b": [{"c": ""}]}})
    hyperparams.override_by_path(config, "a.b[0].c", "1")
    assert config.a.b[0].c == "1"
