"""Typed configs: what their fields accept, how they are changed, and what they refuse."""

from __future__ import annotations

import copy
import dataclasses
import enum
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Dict, List, Literal, Optional, Tuple, Union  # noqa: UP035  # as in ported configs

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from official_lite.common import errors
from official_lite.modeling import hyperparams
from official_lite.modeling.hyperparams import field_checks, yaml_io


@dataclasses.dataclass
class TrainerConfig(hyperparams.Config):
    train_steps: int = 0
    learning_rate: float = 0.1


@dataclasses.dataclass
class TaskConfig(hyperparams.Config):
    name: str | None = None
    model: hyperparams.Config | None = None


@dataclasses.dataclass
class DigitsTaskConfig(TaskConfig):
    sizes: tuple[int, ...] = (1,)
    strategy: str = ""


@dataclasses.dataclass
class ExperimentConfig(hyperparams.Config):
    task: TaskConfig = dataclasses.field(default_factory=TaskConfig)
    trainer: TrainerConfig = dataclasses.field(default_factory=TrainerConfig)
    routines: list[TrainerConfig] = dataclasses.field(default_factory=list)
    stages: StagesConfig = dataclasses.field(default_factory=lambda: StagesConfig())


@dataclasses.dataclass
class Leaf(hyperparams.Config):
    x: int = 1


@dataclasses.dataclass
class WiderLeaf(Leaf):
    y: int = 2


@dataclasses.dataclass
class Everything(hyperparams.Config):
    flag: bool = False
    count: int = 0
    rate: float = 0.5
    name: str = ""
    maybe: Optional[int] = None  # noqa: UP045  # as in ported configs
    implicit: int = None
    anything: Any = None
    number: Union[float, int] = 0  # noqa: UP007  # as in ported configs
    path: Union[Sequence[str], str, hyperparams.Config] = ""  # noqa: UP007  # as in ported configs
    names: List[str] = dataclasses.field(default_factory=list)  # noqa: UP006  # as in ported configs
    maybe_names: list[str] | None = None
    grid: list[list[float]] = dataclasses.field(default_factory=list)
    sizes: Tuple[int, ...] = ()  # noqa: UP006  # as in ported configs
    texts: Tuple[str] = ("a",)  # noqa: UP006  # as in ported configs
    pair: tuple[int, float] = (1, 2.0)
    steps: Sequence[int] = (1, 2)
    weights: Dict[str, float] = None  # noqa: UP006  # as in ported configs
    slices: Mapping[str, int] | None = None
    color: Literal["red", "blue"] = "red"
    near: Annotated[int, "a note"] = 0
    leaf: Leaf = dataclasses.field(default_factory=Leaf)
    leaves: list[Leaf] = dataclasses.field(default_factory=list)
    maybe_leaf: Leaf | None = None
    model: hyperparams.Config = None
    bare: list = dataclasses.field(default_factory=list)


class Color(enum.StrEnum):
    BLUE = "blue"


@dataclasses.dataclass
class PluginsConfig(hyperparams.Config):
    hooks: list[str | hyperparams.PluginConfig] = dataclasses.field(default_factory=list)
    overrides: hyperparams.FreeConfig = dataclasses.field(default_factory=hyperparams.FreeConfig)


def _plugins(*hooks) -> PluginsConfig:
    return PluginsConfig({"hooks": list(hooks)})


@dataclasses.dataclass
class Linear(hyperparams.Config):
    warmup_steps: int = 0


@dataclasses.dataclass
class Polynomial(hyperparams.Config):
    power: float = 1.0


@dataclasses.dataclass
class Warmup(hyperparams.OneOfConfig):
    linear: Linear = dataclasses.field(default_factory=Linear)
    polynomial: Polynomial = dataclasses.field(
        default_factory=lambda: Polynomial(restrictions=["power > 5"])
    )
    steps: int = 3


@dataclasses.dataclass
class Optimization(hyperparams.Config):
    warmup: Warmup = dataclasses.field(default_factory=Warmup)


@dataclasses.dataclass
class StagesConfig(hyperparams.Config):
    ALIASES: ClassVar = {"startup": "initialize", "startup_class_path": "initialize"}
    CLEARS: ClassVar = {"steps": "epochs"}

    initialize: str = ""
    steps: int = 0
    epochs: float | None = None


@dataclasses.dataclass
class RunConfig(hyperparams.Config):
    stages: StagesConfig = dataclasses.field(default_factory=StagesConfig)


@dataclasses.dataclass
class PortedConfig(hyperparams.Lenient, DigitsTaskConfig):
    size: int = 3
    rate: float = 0.1
    block: TrainerConfig = dataclasses.field(default_factory=TrainerConfig)
    shape: list[int] = dataclasses.field(default_factory=lambda: [1, 2])
    patterns: list[str] | None = None


@dataclasses.dataclass
class LevelsConfig(hyperparams.Lenient, hyperparams.Config):
    all: float | None = None


@dataclasses.dataclass
class LossConfig(hyperparams.Lenient, hyperparams.Config):
    weights: LevelsConfig = dataclasses.field(default_factory=lambda: {"all": None, "3": 0.5})


@dataclasses.dataclass
class CheckedConfig(hyperparams.Config):
    value: float | None = None
    word: str = ""
    patterns: list[str] = dataclasses.field(default_factory=list)

    def validate_fields(self) -> None:
        if self.value is not None:
            field_checks.require_positive(self, "value")


def _assigned(config: hyperparams.Config, field: str, value: object) -> None:
    setattr(config, field, value)


WAYS_IN: dict[str, Callable[[str, object], object]] = {
    "construction": lambda field, value: Everything(**{field: value}),
    "dict": lambda field, value: Everything({field: value}),
    "assignment": lambda field, value: _assigned(Everything(), field, value),
    "override": lambda field, value: Everything().override({field: value}),
    "replace": lambda field, value: Everything().replace(**{field: value}),
}


@pytest.mark.parametrize("way", WAYS_IN)
@pytest.mark.parametrize(
    ("field", "value", "place"), [("count", True, "`count`"), ("leaves", [{"x": 1.5}], r"\[0\].x")]
)
def test_every_way_to_set_a_config_field_refuses_a_value_of_the_wrong_type(
    way, field, value, place
) -> None:
    with pytest.raises(errors.ConfigTypeError, match=place):
        WAYS_IN[way](field, value)


# The field, a value of the wrong type, and the location or remedy that the message must name.
WRONG_TYPES = [
    ("count", "abc", "int"),
    ("count", 3.5, "int"),
    ("count", 1e6, "1000000"),
    ("count", "1_000", "1000"),
    ("count", None, "null"),
    ("count", [1], "int"),
    ("rate", "0.1", "0.1"),
    ("rate", [0.1], "float"),
    ("rate", False, "float"),
    ("flag", 1, "true or false"),
    ("flag", "yes", "true or false"),
    ("name", 5, "'5'"),
    ("maybe", "None", "null"),
    ("names", "a", "list[str]"),
    ("names", "a", "Write [a]."),
    ("names", True, "(bool). Write a list: […]."),
    ("maybe_names", "None", "Write null."),
    ("names", [1], "`names[0]`"),
    ("grid", [[1], ["x"]], "`grid[1][0]`"),
    ("sizes", [1, 2.5], "`sizes[1]`"),
    ("weights", {"a": "x"}, "`weights.a`"),
    ("leaf", 5, "Leaf"),
    ("leaf", {"x": "a"}, "`leaf.x`"),
    ("leaf", hyperparams.OneOfConfig(), "OneOfConfig"),
    ("anything", {1, 2}, "set"),
    ("path", 5, "str | Config"),
]


@pytest.mark.parametrize(("field", "value", "named"), WRONG_TYPES)
def test_config_type_error_names_the_expected_type_the_nested_field_or_the_remedy(
    field, value, named
) -> None:
    with pytest.raises(errors.ConfigTypeError) as caught:
        Everything(**{field: value})
    assert named in str(caught.value)


# The invalid change, the error, and the name that its message must contain.
REFUSALS: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: Everything(count=2**63), errors.ConfigValueError, "`count`"),
    (lambda: Everything(color="green"), errors.ConfigValueError, "`color`"),
    (lambda: Everything(pair=[1]), errors.ConfigValueError, "`pair`"),
    (lambda: Everything(anything=10**30), errors.ConfigValueError, "`anything`"),
    (lambda: hyperparams.Config({"a": [[1]]}), errors.ConfigTypeError, "`a`"),
    (lambda: TrainerConfig({"trian_steps": 1}), errors.UnknownKeyError, "`train_steps`"),
    (lambda: _assigned(TrainerConfig(), "trian_steps", 1), errors.UnknownKeyError, "`train_steps`"),
    (
        lambda: ExperimentConfig().override({"trainer": {"trian_steps": 1}}),
        errors.UnknownKeyError,
        "`trainer.trian_steps`",
    ),
    (
        lambda: ExperimentConfig().replace(routines=[{"trian_steps": 1}]),
        errors.UnknownKeyError,
        "`routines[0].trian_steps`",
    ),
    (lambda: StagesConfig(**{"step": 5}), errors.ConfigTypeError, "`steps`"),
    (lambda: TrainerConfig.from_args(1, 2, 3), errors.ConfigTypeError, "3 positional"),
    (lambda: hyperparams.bind("Bound"), ValueError, "expects a config class, got 'Bound'"),
    (lambda: hyperparams.bind(TrainerConfig)(5), ValueError, "a class or a function, got 5"),
    # Two mutually exclusive fields are both set.
    (lambda: StagesConfig(steps=5, epochs=3), errors.ConfigValueError, "`epochs` is 3"),
    (lambda: StagesConfig({"steps": 5, "epochs": 3}), errors.ConfigValueError, "`epochs` is 3"),
    (
        lambda: StagesConfig().override({"epochs": 3, "steps": 5}),
        errors.ConfigValueError,
        "`epochs` is 3",
    ),
    (lambda: StagesConfig().replace(steps=5, epochs=3), errors.ConfigValueError, "`epochs` is 3"),
    # Entries that name no plugin.
    (lambda: _plugins("timer", 5), errors.ConfigError, "`hooks[1]`"),
    (lambda: _plugins("timer", ["a"]), errors.ConfigError, "`hooks[1]`"),
    (lambda: _plugins("timer", {"patience": 3}), errors.ConfigError, "`name` is missing"),
    (lambda: _plugins("timer", {"name": 5}), errors.ConfigError, "`name` is 5"),
    # Alternatives that do not exist, or are not selected.
    (lambda: Warmup(type="liner"), ValueError, "`linear`"),
    (lambda: Warmup({"type": "liner"}), ValueError, "`linear`"),
    (lambda: _assigned(Warmup(), "type", "liner"), ValueError, "`linear`"),
    (
        lambda: hyperparams.set_by_path(Optimization(), "warmup.type", "liner"),
        ValueError,
        "`linear`",
    ),
    (lambda: Warmup(type="type"), errors.ConfigValueError, "'type'"),
    *(
        (
            lambda selected=selected: Optimization(warmup=Warmup(type=selected)).override(
                {"warmup": {"linear": {"warmup_steps": 5}}}
            ),
            errors.ConfigValueError,
            "`warmup.type`",
        )
        for selected in (None, "polynomial")
    ),
    # The checks of `field_checks`.
    *(
        (lambda check=check, bad=bad: check(CheckedConfig(value=bad), "value"), ValueError, "value")
        for check, bad in (
            (field_checks.require_not_negative, -1),
            (field_checks.require_positive, 0),
            (field_checks.require_positive_or_none, 0),
            (field_checks.require_positive_or_none, float("inf")),
        )
    ),
    (
        lambda: field_checks.require_one_of(CheckedConfig(word="tup"), "word", ["tpu", "off"]),
        errors.ConfigValueError,
        "`tpu`",
    ),
    (
        lambda: field_checks.require_subdirectories(CheckedConfig(word="../best"), "word"),
        errors.ConfigValueError,
        "'../best'",
    ),
    (
        lambda: field_checks.require_patterns(CheckedConfig(patterns=["a("]), "patterns"),
        errors.ConfigValueError,
        "'a('",
    ),
]


@pytest.mark.parametrize(("change", "error", "named"), REFUSALS)
def test_error_for_an_invalid_config_change_names_its_cause(change, error, named) -> None:
    with pytest.raises(error) as caught:
        change()
    assert named in str(caught.value)


def test_config_field_checks_accept_valid_values() -> None:
    field_checks.require_not_negative(CheckedConfig(value=0), "value")
    field_checks.require_positive(CheckedConfig(value=1), "value")
    field_checks.require_positive_or_none(CheckedConfig(), "value")
    field_checks.require_positive_or_none(CheckedConfig(value=0.5), "value")
    field_checks.require_one_of(CheckedConfig(word="TPU"), "word", ["tpu", "off"])
    field_checks.require_subdirectories(CheckedConfig(word="best"), "word")
    field_checks.require_patterns(CheckedConfig(patterns=["a|b"]), "patterns")


@pytest.mark.parametrize(
    ("text", "line", "named"),
    [
        ("task:\n  name: a\ntrainer:\n  trian_steps: 5\n", 4, "`train_steps`"),
        ("trainer:\n  train_steps: 1e6\n", 2, "1000000"),
        ("stages:\n  startup: a\n  initialize: b\n", 3, "`startup` and `initialize`"),
        ("stages:\n  startup: 5\n", 2, "initialize"),
        ("stages:\n  steps: 5\n  epochs: 3\n", 3, "`epochs` is 3"),
    ],
)
def test_error_in_a_config_file_names_the_file_and_line(tmp_path, text, line, named) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(errors.ConfigError) as caught:
        ExperimentConfig.from_yaml(path)
    assert f"run.yaml:{line}" in str(caught.value)
    assert named in str(caught.value)


def test_notebook_shows_a_config_as_yaml():
    formatters = pytest.importorskip("IPython.core.formatters")
    display = formatters.DisplayFormatter().format
    shown, _ = display(hyperparams.Config({"a": {"b": 1}, "c": 2}))
    assert shown == {"text/plain": "a:\n  b: 1\nc: 2"}
    # This config is a dataclass, whose `__repr__` IPython would otherwise prefer.
    assert "train_steps: 0\n" in display(TrainerConfig())[0]["text/plain"]


def test_config_without_fields_accepts_new_keys_only_in_its_constructor():
    config = hyperparams.Config({"a": {"b": [{"c": 1}]}})
    assert config.a.b[0].c == 1
    assert config == hyperparams.Config({"a": {"b": [{"c": 1}]}})
    assert config != hyperparams.Config({"a": {}})
    assert repr(config) == "Config({'a': {'b': [{'c': 1}]}})"
    with pytest.raises(errors.UnknownKeyError, match="Did you mean"):
        config.override({"a": {"bb": 1}})


def test_lock_applies_to_nested_configs_and_replace_returns_an_unlocked_copy():
    config = ExperimentConfig(routines=[TrainerConfig()])
    config.lock()
    for change in (
        lambda: setattr(config.trainer, "train_steps", 7),
        lambda: setattr(config.routines[0], "train_steps", 7),
        lambda: config.trainer.override({"train_steps": 7}),
        lambda: config.override({"trainer": {"train_steps": 7}}),
    ):
        with pytest.raises(errors.LockedConfigError):
            change()
    changed = config.replace(trainer={"train_steps": 7})
    changed.routines[0].train_steps = 8
    assert (config.trainer.train_steps, changed.trainer.train_steps) == (0, 7)


def test_validate_checks_restrictions_of_nested_configs():
    trainer = TrainerConfig(restrictions=["train_steps > 0"])
    config = ExperimentConfig(routines=[trainer])
    with pytest.raises(
        KeyError, match=r"values 0 and 0.0 violate .* `train_steps > 0` in `routines\[0\]`"
    ):
        config.validate()
    config.routines[0].train_steps = 1
    config.validate()


@dataclasses.dataclass
class GridConfig(hyperparams.Config):
    rows: list[list[CheckedConfig]] = dataclasses.field(default_factory=list)


def test_configs_in_nested_lists_are_locked_and_validated() -> None:
    config = GridConfig(rows=[[], [CheckedConfig(value=-1.0)]])
    with pytest.raises(errors.ConfigValueError, match=r"`rows\[1\]\[0\]`"):
        config.validate()
    config.lock()
    with pytest.raises(errors.LockedConfigError):
        config.rows[1][0].value = 1.0


def test_validate_checks_elements_that_were_appended_to_a_list():
    config = ExperimentConfig()
    config.routines.append("nonsense")
    with pytest.raises(errors.ConfigTypeError, match=r"`routines\[0\]`"):
        config.validate()


def test_yaml_round_trip_keeps_the_subclass_of_a_nested_config(tmp_path):
    path = tmp_path / "params.yaml"
    config = ExperimentConfig(
        task=DigitsTaskConfig(sizes=(3, 4), strategy="off", model={"d": 1e-3})
    )
    hyperparams.save_params_dict_to_yaml(config, path)
    reloaded = ExperimentConfig(task=DigitsTaskConfig(model={"d": 0.0}))
    hyperparams.override_params_dict(reloaded, str(path), is_strict=True)
    assert reloaded == config
    assert type(reloaded.task) is DigitsTaskConfig


@given(
    steps=st.integers(-(2**63), 2**63 - 1),
    rate=st.floats(allow_nan=False),
    name=st.none() | st.text(),
    sizes=st.lists(st.integers(0, 9)),
    strategy=st.sampled_from(["off", "1e-3", "010", "null", "12:30"]) | st.text(),
    model=st.none() | st.dictionaries(st.from_regex(r"[a-z]+", fullmatch=True), st.text()),
)
def test_yaml_round_trip_preserves_the_config_and_writes_identical_bytes(
    tmp_path_factory, steps, rate, name, sizes, strategy, model
):
    path = tmp_path_factory.mktemp("yaml") / "params.yaml"
    task = DigitsTaskConfig(name=name, sizes=sizes, strategy=strategy, model=model)
    trainer = TrainerConfig(train_steps=steps, learning_rate=rate)
    config = ExperimentConfig(task=task, trainer=trainer, routines=[trainer])
    hyperparams.save_params_dict_to_yaml(config, path)
    again = ExperimentConfig(task=DigitsTaskConfig())
    hyperparams.override_params_dict(again, path, is_strict=True)
    assert again == config
    hyperparams.save_params_dict_to_yaml(again, path.with_suffix(".again"))
    assert path.with_suffix(".again").read_bytes() == path.read_bytes()


def test_list_elements_of_a_config_are_overridden_by_index():
    config = ExperimentConfig(routines=[TrainerConfig(learning_rate=0.5), TrainerConfig()])
    override = "routines[0].train_steps=2,routines[2].train_steps=3"
    hyperparams.override_params_dict(config, override, is_strict=True)
    expected = [TrainerConfig(train_steps=2, learning_rate=0.5), TrainerConfig()]
    assert config.routines == [*expected, TrainerConfig(train_steps=3)]


def test_from_args_sets_only_fields_that_the_class_itself_declares() -> None:
    assert DigitsTaskConfig.from_args([5], name="x") == DigitsTaskConfig(sizes=(5,), name="x")


def test_config_is_built_from_a_json_file(tmp_path):
    path = tmp_path / "exp.json"
    path.write_text('{"train_steps": 5, "learning_rate": 1e-3}')
    assert TrainerConfig.from_json(path) == TrainerConfig(train_steps=5, learning_rate=1e-3)


def test_copied_and_pickled_configs_are_equal_to_the_original():
    config = ExperimentConfig(routines=[TrainerConfig(train_steps=3)])
    for twin in (copy.deepcopy(config), pickle.loads(pickle.dumps(config)), config.replace()):
        assert twin == config
        assert twin.routines[0] is not config.routines[0]


def test_bind_sets_the_builder_of_a_config_class_and_a_second_bind_raises():
    @dataclasses.dataclass
    class Bound(hyperparams.Config):
        pass

    @hyperparams.bind(Bound)
    def build(x):
        return x + 1

    assert Bound().BUILDER(1) == 2
    assert TrainerConfig().BUILDER is None
    with pytest.raises(ValueError, match=r"twice; .* is already bound to"):
        hyperparams.bind(Bound)(build)
    with pytest.raises(AttributeError, match="`BUILDER` is a property"):
        Bound().BUILDER = build


def test_unresolvable_annotation_is_named_in_the_error():
    @dataclasses.dataclass
    class Broken(hyperparams.Config):
        x: NoSuchName = None  # noqa: F821  # the point of the test

    with pytest.raises(errors.ConfigTypeError, match=r"annotation of Broken .*NoSuchName"):
        Broken()


def test_validate_fields_is_called_for_nested_configs() -> None:
    hyperparams.Config({"window": CheckedConfig(value=1)}).validate()
    with pytest.raises(errors.ConfigValueError, match=r"In `window`.*`value`"):
        hyperparams.Config({"window": CheckedConfig(value=0)}).validate()


@pytest.mark.parametrize(
    "give",
    [
        lambda c: c.override({"stages": {"startup": "a:B"}}),
        lambda c: c.override({"stages": StagesConfig({"startup_class_path": "a:B"})}),
        lambda c: hyperparams.set_by_path(c, "stages.startup", "a:B"),
        lambda c: hyperparams.override_params_dict(c, "stages: {startup: 'a:B'}", is_strict=True),
    ],
)
def test_field_alias_sets_its_field_in_every_kind_of_config_override(give):
    config = RunConfig()
    give(config)
    assert config.as_dict()["stages"] == {"initialize": "a:B", "steps": 0, "epochs": None}


def test_setting_a_field_resets_its_mutually_exclusive_field_to_the_default(tmp_path):
    config = StagesConfig(epochs=3)
    config.override({"steps": 5})
    assert (config.steps, config.epochs) == (5, None)
    config.override({"epochs": 2})
    assert (config.steps, config.epochs) == (0, 2)
    config.steps = 7
    assert (config.steps, config.epochs) == (7, None)
    config.epochs = 1
    assert (config.steps, config.epochs) == (0, 1)
    path = tmp_path / "stages.yaml"
    hyperparams.save_params_dict_to_yaml(config, path)
    assert StagesConfig.from_yaml(path) == config


def test_null_or_default_value_does_not_conflict_with_a_mutually_exclusive_field():
    assert StagesConfig({"steps": 5, "epochs": None}).steps == 5
    assert StagesConfig(steps=0, epochs=3).epochs == 3


def test_config_may_define_a_constructor_whose_arguments_are_not_fields():
    @dataclasses.dataclass(init=False)
    class Own(hyperparams.Config):
        size: int = 1

        def __init__(self, width=2, **others):
            super().__init__()
            self.size = width * len(others)

    assert Own(width=3, a=0, b=0).size == 6


@pytest.mark.parametrize(
    "values",
    [
        {"size": None, "sizes": (None, None, 3)},
        {"size": 2.5, "shape": None, "block": None},
        {"shape": [None, 2.5], "patterns": "all"},
    ],
)
def test_lenient_config_keeps_values_that_do_not_match_their_annotations(values, tmp_path) -> None:
    config = PortedConfig(**values)
    assert {name: getattr(config, name) for name in values} == values
    hyperparams.save_params_dict_to_yaml(config, str(tmp_path / "params.yaml"))
    read = PortedConfig.from_yaml(str(tmp_path / "params.yaml"))
    assert {name: getattr(read, name) for name in values} == values


def test_lenient_config_converts_values_to_field_types_and_rejects_unknown_keys() -> None:
    config = PortedConfig(block={"train_steps": 5}, sizes=[1, 2])
    assert isinstance(config.block, TrainerConfig)
    assert config.sizes == (1, 2)
    with pytest.raises(errors.UnknownKeyError, match="size"):
        config.override({"sise": 1})
    with pytest.raises(errors.ConfigTypeError):
        TrainerConfig(train_steps=None)


def test_lenient_config_accepts_new_keys_in_its_constructor_but_not_in_overrides() -> None:
    assert LevelsConfig({"4": 1.0}).as_dict() == {"all": None, "4": 1.0}
    config = LossConfig(weights={"3": 0.7, "5": 0.9})
    assert config.weights.as_dict() == {"all": None, "3": 0.7, "5": 0.9}
    config = LossConfig()
    config.override({"weights": {"3": 0.1}})
    assert isinstance(config.weights, LevelsConfig)
    assert config.weights.as_dict() == {"all": None, "3": 0.1}
    with pytest.raises(errors.UnknownKeyError, match="5"):
        config.override({"weights": {"5": 0.1}})


def test_new_keys_can_be_assigned_to_a_lenient_config() -> None:
    config = LevelsConfig()
    config.other = False
    assert config.as_dict() == {"all": None, "other": False}
    with pytest.raises(errors.UnknownKeyError, match="othr"):
        config.override({"othr": True})


def test_lenient_config_stays_unlocked_inside_a_locked_config() -> None:
    config = LossConfig()
    config.lock()
    config.weights.override({"3": 0.2})
    assert config.weights.as_dict()["3"] == 0.2
    with pytest.raises(errors.LockedConfigError):
        config.weights = {"3": 0.3}


@pytest.mark.parametrize(
    ("field", "value", "stored"),
    [
        ("rate", 1, 1.0),
        ("rate", np.float32(0.5), 0.5),
        ("count", np.int64(3), 3),
        ("rate", np.int32(3), 3.0),
        ("rate", np.longdouble(0.5), 0.5),
        ("flag", np.bool_(True), True),
        ("color", np.str_("red"), "red"),
        ("anything", [np.bool_(False), np.float16(0.5)], [False, 0.5]),
        ("name", Color.BLUE, "blue"),
        ("number", 1, 1),
        ("number", 1.5, 1.5),
        ("implicit", 4, 4),
        ("implicit", None, None),
        ("path", ["a", "b"], ["a", "b"]),
        ("path", "a", "a"),
        ("sizes", [1, 2], (1, 2)),
        ("texts", ["a", "b", "c"], ("a", "b", "c")),
        ("pair", [3, 4], (3, 4.0)),
        ("steps", [3], (3,)),
        ("grid", [[1, 2], []], [[1.0, 2.0], []]),
        ("bare", [[1], "a"], [[1], "a"]),
        ("anything", [1, ("a", None)], [1, ("a", None)]),
        ("color", "blue", "blue"),
        ("near", 2, 2),
    ],
)
def test_config_value_is_converted_to_the_annotated_type_of_its_field(field, value, stored):
    kept = getattr(Everything(**{field: value}), field)
    assert repr(kept) == repr(stored)
    assert type(kept) is type(stored)


def test_dict_assigned_to_a_config_field_becomes_a_config():
    config = Everything(path={"a": "x"}, model={"depth": {"x": 1}}, slices={"a": 1})
    assert config.path.a == "x"
    assert type(config.model.depth) is hyperparams.Config
    config.override({"slices": {"b": 2}})
    assert config.slices.as_dict() == {"a": 1, "b": 2}


def test_dict_overrides_are_merged_into_the_current_config_subclass():
    config = Everything(leaf=WiderLeaf(y=5), leaves=[WiderLeaf(), Leaf()])
    config.override({"leaf": {"x": 3}, "leaves": [{"y": 7}, {"x": 8}]})
    assert config.leaf == WiderLeaf(x=3, y=5)
    assert config.leaves == [WiderLeaf(y=7), Leaf(x=8)]


@dataclasses.dataclass
class DictsConfig(hyperparams.Config):
    free: dict = dataclasses.field(default_factory=dict)
    layers: list[dict] = dataclasses.field(default_factory=list)
    leaves: dict[str, Leaf] = dataclasses.field(default_factory=dict)
    lists: dict[str, list[int]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class LenientDictConfig(hyperparams.Lenient, hyperparams.Config):
    params: dict[str, Any] = dataclasses.field(default_factory=dict)


def test_path_into_a_dict_of_a_lenient_config_can_add_a_key() -> None:
    config = LenientDictConfig(params={"block": {"depth": 1}})
    hyperparams.override_params_dict(config, "params.block.width=2", is_strict=True)
    assert config.params.as_dict() == {"block": {"depth": 1, "width": 2}}


def _override_from_file(config: DictsConfig, values: Mapping[str, object], path) -> None:
    path.write_text(yaml_io.to_yaml(values))
    hyperparams.override_params_dict(config, path, is_strict=True)


@pytest.mark.parametrize(
    "override",
    [lambda config, values, _: config.override(values), _override_from_file],
    ids=["dict", "file"],
)
def test_override_of_one_value_inside_a_dict_field_keeps_the_others(override, tmp_path) -> None:
    config = DictsConfig(free={"sgd": {"rate": 1, "momentum": 2}}, leaves={"a": WiderLeaf(y=5)})
    values = {"free": {"sgd": {"rate": 3, "decay": {"steps": 4}}}, "leaves": {"a": {"x": 3}}}
    override(config, values, tmp_path / "override.yaml")
    expected = {"sgd": {"rate": 3, "momentum": 2, "decay": {"steps": 4}}}
    assert config.free.as_dict() == expected
    assert config.leaves.a == WiderLeaf(x=3, y=5)


def test_path_into_a_dict_field_changes_only_the_value_that_it_names() -> None:
    mixup = {"class_name": "MixUp", "config": {"alpha": 0.2, "seed": 3}}
    config = DictsConfig(layers=[{}, mixup], leaves={"a": WiderLeaf(y=5)}, lists={"a": [1, 2]})
    override = "layers[1].config.alpha=0.4,leaves.a.x=3,lists.a[1]=9"
    hyperparams.override_params_dict(config, override, is_strict=True)
    assert config.layers[1].as_dict() == {**mixup, "config": {"alpha": 0.4, "seed": 3}}
    assert config.leaves.a == WiderLeaf(x=3, y=5)
    assert config.lists.a == [1, 9]
    with pytest.raises(errors.UnknownKeyError, match=r"`leaves\.a\.z`"):
        config.override({"leaves": {"a": {"z": 1}}})


@pytest.mark.parametrize("length", [1, 2, 3])
def test_list_override_replaces_the_list_and_keeps_the_classes_of_its_elements(length):
    config = Everything(leaves=[Leaf(x=5), WiderLeaf(x=6, y=7)])
    config.override({"leaves": [{"x": 2}, {}, {}][:length]})
    # New elements have the classes of the old ones, so that a run's config file can be applied.
    assert config.leaves == [Leaf(x=2), WiderLeaf(), Leaf()][:length]
    hyperparams.override_params_dict(config, "leaves[0].x=3", is_strict=True)
    assert config.leaves[0] == Leaf(x=3), "an index changes only its element"


def test_configs_are_copied_and_unlocked_when_assigned():
    leaf = Leaf()
    leaf.lock()
    config = Everything(leaf=leaf, leaves=[leaf])
    config.leaf.x = config.leaves[0].x = 9
    assert leaf.x == 1


def test_params_dict_assigned_to_a_config_field_is_converted():
    config = Everything(leaf=WiderLeaf())
    config.leaf = hyperparams.ParamsDict({"y": 4})
    assert config.leaf == WiderLeaf(y=4)


def test_nested_plugin_arguments_survive_a_yaml_round_trip(tmp_path) -> None:
    entry = {"name": "a", "sizes": [[1, 2], [3]], "files": {"x": [{"y": [[1.5]]}]}}
    trainer = _plugins("timer", entry)
    trainer.validate()
    assert trainer.as_dict()["hooks"] == ["timer", entry]
    hyperparams.save_params_dict_to_yaml(trainer, tmp_path / "a.yaml")
    assert PluginsConfig.from_yaml(tmp_path / "a.yaml") == trainer


@pytest.mark.parametrize("name", ["lock", "get", "override", "replace", "keys"])
def test_plugin_argument_may_be_named_like_a_config_method(name):
    entry = {"name": "a", name: True, "nested": {name: [1]}}
    trainer = _plugins(entry, {"name": "b"})
    trainer.override({"hooks": [entry], "overrides": {name: 3}})
    trainer.validate()
    copied = trainer.replace()
    copied.lock()
    assert copied == trainer
    assert copied.as_dict() == {"hooks": [entry], "overrides": {name: 3}}
    assert copied.hooks[0].get(name) is True
    assert hyperparams.get_by_path(copied, f"overrides.{name}") == 3


def test_validate_refuses_a_plugin_without_a_name():
    trainer = PluginsConfig()
    trainer.hooks.append(hyperparams.PluginConfig())
    with pytest.raises(errors.ConfigValueError, match="`name` is missing"):
        trainer.validate()


def test_override_with_a_name_replaces_all_arguments_of_a_plugin():
    trainer = _plugins({"name": "a", "patience": 3})
    trainer.override({"hooks": [{"name": "b"}]})
    assert trainer.as_dict()["hooks"] == [{"name": "b"}]


def test_single_plugin_argument_is_set_by_its_path():
    trainer = _plugins("timer", {"name": "a", "patience": 3})
    hyperparams.set_by_path(trainer, "hooks[1].patience", "5")
    hyperparams.set_by_path(trainer, "hooks[1].metric", "accuracy")
    assert trainer.hooks[1].as_dict() == {"name": "a", "patience": 5, "metric": "accuracy"}


def test_free_config_accepts_new_keys_in_its_constructor_and_in_overrides():
    trainer = PluginsConfig({"overrides": {"a.b": 1, "c": {"d": [[1]]}}})
    trainer.override({"overrides": {"c": {"e": 2}}})
    assert trainer.as_dict()["overrides"] == {"a.b": 1, "c": {"d": [[1]], "e": 2}}


def test_one_of_config_returns_and_exports_only_the_selected_alternative():
    warmup = Warmup({"type": "linear", "linear": {"warmup_steps": 5}})
    assert warmup.get() == Linear(warmup_steps=5)
    assert warmup.as_dict() == {"type": "linear", "linear": {"warmup_steps": 5}}
    assert Warmup(type="steps").get() == 3


@pytest.mark.parametrize("nothing", [None, ""])
def test_selecting_no_alternative_in_a_one_of_config_is_allowed(nothing):
    assert Warmup(type=nothing).get() is None
    assert Warmup(type=nothing).as_dict() == {"type": nothing}


def test_one_of_config_override_may_set_an_alternative_before_selecting_it():
    config = Optimization()
    override = "warmup.linear.warmup_steps=5,warmup.type=linear"
    hyperparams.override_params_dict(config, override, is_strict=True)
    assert config.warmup.get() == Linear(warmup_steps=5)


def test_non_strict_override_adds_an_alternative_to_a_one_of_config():
    warmup = Warmup()
    warmup.override({"type": "mine", "mine": {"x": 1}}, is_strict=False)
    assert warmup.get().x == 1


def test_validate_checks_only_the_selected_alternative_of_a_one_of_config():
    Optimization(warmup=Warmup(type="linear")).validate()
    with pytest.raises(KeyError, match=r"`warmup\.polynomial`"):
        Optimization(warmup=Warmup(type="polynomial")).validate()


def test_lock_applies_to_unselected_alternatives_of_a_one_of_config():
    config = Optimization()
    config.lock()
    with pytest.raises(errors.LockedConfigError):
        config.warmup.linear.warmup_steps = 1
