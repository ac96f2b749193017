import copy
import dataclasses
import pickle
import subprocess
import sys
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from official_lite.common import errors
from official_lite.modeling import hyperparams


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


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda c: c.override({"trainer": {"trian_steps": 1}}), "`trainer.trian_steps` of Exp"),
        (lambda c: setattr(c.trainer, "trian_steps", 1), "`trian_steps` of TrainerConfig"),
        (lambda c: TrainerConfig({"trian_steps": 1}), "`trian_steps` of TrainerConfig"),
        (lambda c: ExperimentConfig({"trainer": {"trian_steps": 1}}), "`trainer.trian_steps`"),
        (lambda c: c.replace(routines=[{"trian_steps": 1}]), r"`routines\[0\].trian_steps`"),
        (lambda c: TrainerConfig(default_params={"trian_steps": 1}), "`trian_steps`"),
    ],
)
def test_unknown_key_is_refused_with_path_and_nearest_name(change, path):
    with pytest.raises(errors.UnknownKeyError, match=f"{path}.*Did you mean `train_steps`"):
        change(ExperimentConfig())


def test_errors_of_a_file_name_the_line(tmp_path):
    path = tmp_path / "exp.yaml"
    path.write_text("task:\n  name: a\ntrainer:\n  trian_steps: 5\n")
    with pytest.raises(errors.UnknownKeyError, match=r"exp\.yaml:4\): .*`train_steps`"):
        hyperparams.override_params_dict(ExperimentConfig(), str(path), is_strict=True)
    path.write_text("trainer:\n  train_steps: 1e6\n")
    with pytest.raises(errors.ConfigTypeError, match=r"exp\.yaml:2\): .*Write 1000000"):
        ExperimentConfig.from_yaml(path)


def test_loose_override_adds_keys():
    config = TrainerConfig()
    config.override({"note": "x"}, is_strict=False)
    assert config.as_dict()["note"] == "x"


def test_notebook_shows_a_config_as_yaml():
    formatters = pytest.importorskip("IPython.core.formatters")
    display = formatters.DisplayFormatter().format
    shown, _ = display(hyperparams.Config({"a": {"b": 1}, "c": 2}))
    assert shown == {"text/plain": "a:\n  b: 1\nc: 2"}
    # A dataclass, whose `__repr__` IPython would otherwise prefer.
    assert "train_steps: 0\n" in display(TrainerConfig())[0]["text/plain"]


def test_bare_config_is_open_until_it_is_built():
    config = hyperparams.Config({"a": {"b": [{"c": 1}]}})
    assert config.a.b[0].c == 1
    assert config == hyperparams.Config({"a": {"b": [{"c": 1}]}})
    assert config != hyperparams.Config({"a": {}})
    assert repr(config) == "Config({'a': {'b': [{'c': 1}]}})"
    with pytest.raises(errors.UnknownKeyError, match="Did you mean"):
        config.override({"a": {"bb": 1}})


def test_undeclared_keys_hold_flat_lists():
    with pytest.raises(errors.ConfigTypeError, match="only supports single level"):
        hyperparams.Config({"a": [[1]]})


def test_lock_reaches_lists_and_children_and_replace_undoes_it():
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


def test_validate_reaches_nested_restrictions():
    trainer = TrainerConfig(restrictions=["train_steps > 0"])
    config = ExperimentConfig(routines=[trainer])
    with pytest.raises(
        KeyError, match=r"`train_steps > 0` in `routines\[0\]` .*values are 0 and 0"
    ):
        config.validate()
    config.routines[0].train_steps = 1
    config.validate()


def test_validate_finds_what_was_put_into_a_list():
    config = ExperimentConfig()
    config.routines.append("nonsense")
    with pytest.raises(errors.ConfigTypeError, match=r"`routines\[0\]`"):
        config.validate()


def test_override_keeps_the_concrete_class(tmp_path):
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
def test_yaml_round_trip_is_a_fixed_point(
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


def test_list_elements_can_be_overridden_by_index():
    config = ExperimentConfig(routines=[TrainerConfig(learning_rate=0.5), TrainerConfig()])
    override = "routines[0].train_steps=2,routines[2].train_steps=3"
    hyperparams.override_params_dict(config, override, is_strict=True)
    expected = [TrainerConfig(train_steps=2, learning_rate=0.5), TrainerConfig()]
    assert config.routines == [*expected, TrainerConfig(train_steps=3)]


def test_from_args_takes_the_fields_of_the_class_itself():
    assert DigitsTaskConfig.from_args([5], name="x") == DigitsTaskConfig(sizes=(5,), name="x")
    with pytest.raises(errors.ConfigTypeError, match="has 2 fields, but got 3 values"):
        TrainerConfig.from_args(1, 2, 3)


def test_from_json(tmp_path):
    path = tmp_path / "exp.json"
    path.write_text('{"train_steps": 5, "learning_rate": 1e-3}')
    assert TrainerConfig.from_json(path) == TrainerConfig(train_steps=5, learning_rate=1e-3)


def test_copies_and_pickles_are_equal():
    config = ExperimentConfig(routines=[TrainerConfig(train_steps=3)])
    for twin in (copy.deepcopy(config), pickle.loads(pickle.dumps(config)), config.replace()):
        assert twin == config
        assert twin.routines[0] is not config.routines[0]


def test_bound_builder_belongs_to_one_class():
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
    with pytest.raises(ValueError, match="expects a config class"):
        hyperparams.bind("Bound")
    with pytest.raises(ValueError, match="a class or a function, got 5"):
        hyperparams.bind(TrainerConfig)(5)


def test_keys_may_be_called_like_methods():
    config = hyperparams.Config({"copy": 1, "items": 2, "keys": 3})
    assert config.replace(copy=5).as_dict() == {"copy": 5, "items": 2, "keys": 3}


def test_annotation_that_can_not_be_resolved_is_named():
    @dataclasses.dataclass
    class Broken(hyperparams.Config):
        x: "NoSuchName" = None  # noqa: F821  # the point of the test

    with pytest.raises(errors.ConfigTypeError, match=r"annotation of Broken .*NoSuchName"):
        Broken()


def test_import_needs_no_tensorflow():
    code = "import sys, official_lite.modeling.hyperparams; print('tensorflow' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "False\n"


def test_a_class_can_check_its_own_fields_at_any_depth():
    @dataclasses.dataclass
    class Window(hyperparams.Config):
        low: int = 0
        high: int = 1

        def validate_fields(self):
            if self.low >= self.high:
                raise errors.ConfigValueError("`low` must be below `high`.")

    @dataclasses.dataclass
    class Model(hyperparams.Config):
        window: Window = dataclasses.field(default_factory=Window)

    Model().validate()
    with pytest.raises(errors.ConfigValueError, match=r"In `window`.*`low` must be below `high`"):
        Model({"window": {"low": 5}}).validate()


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


@pytest.mark.parametrize(
    "give",
    [
        lambda c: c.override({"stages": {"startup": "a:B"}}),
        lambda c: c.override({"stages": StagesConfig({"startup_class_path": "a:B"})}),
        lambda c: hyperparams.set_by_path(c, "stages.startup", "a:B"),
        lambda c: hyperparams.override_params_dict(c, "stages: {startup: 'a:B'}", is_strict=True),
    ],
)
def test_alias_is_the_field_wherever_values_come_in(give):
    config = RunConfig()
    give(config)
    assert config.as_dict()["stages"] == {"initialize": "a:B", "steps": 0, "epochs": None}


def test_alias_beside_its_field_is_refused(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("stages:\n  startup: a\n  initialize: b\n")
    with pytest.raises(errors.ConfigValueError, match=r"run\.yaml:3.*`startup` and `initialize`"):
        RunConfig.from_yaml(path)


def test_error_behind_an_alias_names_the_line(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("stages:\n  startup: 5\n")
    with pytest.raises(errors.ConfigTypeError, match=r"initialize.*run\.yaml:2"):
        RunConfig.from_yaml(path)


def test_of_two_rivals_the_later_one_counts(tmp_path):
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


@pytest.mark.parametrize(
    "give",
    [
        lambda: StagesConfig(steps=5, epochs=3),
        lambda: StagesConfig({"steps": 5, "epochs": 3}),
        lambda: StagesConfig().override({"epochs": 3, "steps": 5}),
        lambda: StagesConfig().replace(steps=5, epochs=3),
        lambda: hyperparams.override_params_dict(
            RunConfig(), "stages.steps=5,stages.epochs=3", is_strict=True
        ),
    ],
)
def test_both_rivals_at_once_are_refused(give):
    with pytest.raises(errors.ConfigValueError, match=r"`steps` is 5 and `epochs` is 3"):
        give()


def test_rivals_in_one_file_are_refused_with_the_line(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("stages:\n  steps: 5\n  epochs: 3\n")
    with pytest.raises(errors.ConfigValueError, match=r"run\.yaml:3"):
        RunConfig.from_yaml(path)


def test_rival_that_is_null_is_not_given():
    assert StagesConfig({"steps": 5, "epochs": None}).steps == 5
    assert StagesConfig(steps=0, epochs=3).epochs == 3


def test_argument_that_is_no_field_is_refused_with_the_nearest_name():
    with pytest.raises(errors.ConfigTypeError, match=r"StagesConfig has no field 'step'.*`steps`"):
        StagesConfig(step=5)


def test_constructor_of_its_own_takes_what_it_says():
    @dataclasses.dataclass(init=False)
    class Own(hyperparams.Config):
        size: int = 1

        def __init__(self, width=2, **others):
            super().__init__()
            self.size = width * len(others)

    assert Own(width=3, a=0, b=0).size == 6


@dataclasses.dataclass
class PortedConfig(hyperparams.Lenient, DigitsTaskConfig):
    size: int = 3
    rate: float = 0.1
    block: TrainerConfig = dataclasses.field(default_factory=TrainerConfig)
    shape: list[int] = dataclasses.field(default_factory=lambda: [1, 2])
    patterns: list[str] | None = None


@pytest.mark.parametrize(
    "values",
    [
        {"size": None, "sizes": (None, None, 3)},
        {"size": 2.5, "shape": None, "block": None},
        {"shape": [None, 2.5], "patterns": "all"},
    ],
)
def test_lenient_config_keeps_values_of_other_types(values, tmp_path) -> None:
    config = PortedConfig(**values)
    assert {name: getattr(config, name) for name in values} == values
    hyperparams.save_params_dict_to_yaml(config, str(tmp_path / "params.yaml"))
    read = PortedConfig.from_yaml(str(tmp_path / "params.yaml"))
    assert {name: getattr(read, name) for name in values} == values


def test_lenient_config_converts_what_fits_and_refuses_unknown_keys() -> None:
    config = PortedConfig(block={"train_steps": 5}, sizes=[1, 2])
    assert isinstance(config.block, TrainerConfig)
    assert config.sizes == (1, 2)
    with pytest.raises(errors.UnknownKeyError, match="size"):
        config.override({"sise": 1})
    with pytest.raises(errors.ConfigTypeError):
        TrainerConfig(train_steps=None)


@dataclasses.dataclass
class LevelsConfig(hyperparams.Lenient, hyperparams.Config):
    all: float | None = None


@dataclasses.dataclass
class LossConfig(hyperparams.Lenient, hyperparams.Config):
    weights: LevelsConfig = dataclasses.field(default_factory=lambda: {"all": None, "3": 0.5})


def test_lenient_config_is_built_with_keys_of_its_own_which_overrides_must_know() -> None:
    assert LevelsConfig({"4": 1.0}).as_dict() == {"all": None, "4": 1.0}
    config = LossConfig(weights={"3": 0.7, "5": 0.9})
    assert config.weights.as_dict() == {"all": None, "3": 0.7, "5": 0.9}
    config = LossConfig()
    config.override({"weights": {"3": 0.1}})
    assert isinstance(config.weights, LevelsConfig)
    assert config.weights.as_dict() == {"all": None, "3": 0.1}
    with pytest.raises(errors.UnknownKeyError, match="5"):
        config.override({"weights": {"5": 0.1}})


def test_code_may_assign_to_keys_of_its_own_in_a_lenient_config() -> None:
    config = LevelsConfig()
    config.other = False
    assert config.as_dict() == {"all": None, "other": False}
    with pytest.raises(errors.UnknownKeyError, match="othr"):
        config.override({"othr": True})


def test_lenient_config_can_be_changed_below_a_locked_one_but_not_once_locked_itself() -> None:
    config = LossConfig()
    config.lock()
    config.weights.override({"3": 0.2})
    assert config.weights.as_dict()["3"] == 0.2
    with pytest.raises(errors.LockedConfigError):
        config.weights = {"3": 0.3}
