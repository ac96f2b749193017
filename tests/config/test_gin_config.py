import copy
import dataclasses
import itertools
import operator
import pathlib
from typing import Any

import gin
import pytest
from absl import flags as absl_flags

from official_lite.common import errors, flags
from official_lite.config import epochs, gin_config
from official_lite.core import config_definitions as cfg
from official_lite.modeling import hyperparams


def _bound(*bindings: str) -> cfg.ExperimentConfig:
    gin_config.parse_gin([], bindings)
    params = cfg.ExperimentConfig()
    gin_config.apply_bindings(params)
    return params


def test_gin_binding_or_macro_sets_a_field_at_any_depth() -> None:
    params = _bound(
        "steps = 7",
        "trainer/params.train_steps = %steps",
        "trainer/optimizer_config/optimizer/params.type = 'sgd'",
    )
    assert params.trainer.train_steps == 7
    assert params.trainer.optimizer_config.optimizer.type == "sgd"


@pytest.mark.parametrize(
    ("binding", "error"),
    [
        ("trainer/params.trian_steps = 7", errors.UnknownKeyError),
        ("trainer/params.train_steps = 'many'", errors.ConfigTypeError),
        ("trainr/params.train_steps = 7", errors.UnknownKeyError),
        ("NoSuchThing.x = 7", errors.ConfigValueError),
        ("trainer/params.train_steps = = 7", errors.ConfigValueError),
    ],
)
def test_invalid_gin_binding_raises(binding: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        _bound(binding)


def test_missing_gin_file_raises_a_config_error() -> None:
    with pytest.raises(errors.ConfigValueError, match="nowhere"):
        gin_config.parse_gin(["/nowhere.gin"], [])


def test_exported_gin_file_reproduces_the_config(tmp_path: pathlib.Path) -> None:
    params = _bound("trainer/params.train_steps = 7", "half = 0.5")
    params.override({"trainer": {"loss_upper_bound": float("inf")}, "task": {"name": "a 'b'\n"}})
    hooks = ["timer", {"name": "stop", "metrics": [["a"], {"b": 1}]}]
    hooks.append({"name": "bound", "limits": {"low": -float("inf"), "all": [float("inf"), 1.5]}})
    phases = [{"name": "a", "overrides": {"runtime.seed": 1}}]
    params.override({"trainer": {"hooks": hooks}, "phases": phases, "workspace": "/w"})
    file = tmp_path / "operative.gin"
    file.write_text(gin_config.operative_config(params))
    gin.clear_config()
    gin_config.parse_gin([str(file)], [])
    again = gin_config.apply_bindings(cfg.ExperimentConfig())
    assert again.as_dict() == params.as_dict()
    assert "half = 0.5" in gin_config.bindings()


def _choices(config: hyperparams.OneOfConfig) -> list[dict[str, Any]]:
    """Return overrides for each choice of a block, with values that differ from the defaults."""
    rows: list[dict[str, Any]] = [{"type": None}]
    for field in dataclasses.fields(config):
        if field.name != "type":
            block = getattr(config, field.name)
            values = {
                name: {bool: not value, int: 3, float: 0.25}[type(value)]
                for name in map(operator.attrgetter("name"), dataclasses.fields(block))
                if isinstance(value := getattr(block, name), bool | int | float)
            }
            values |= {
                ratio: [0.5] if ratio == "boundary_ratios" else 0.5
                for ratio in block.CLEARS.values()
            }
            for steps in block.CLEARS:
                values.pop(steps, None)
            rows.append({"type": field.name, field.name: values})
    return rows


def _of_schedules(optimizer: Any, learning_rate: Any, warmup: Any) -> dict[str, Any]:
    blocks = {"optimizer": optimizer, "learning_rate": learning_rate, "warmup": warmup}
    return {"trainer": {"train_steps": 100, "optimizer_config": blocks}}


_OPTIMIZATION = cfg.OptimizationConfig()
_BLOCKS = [
    _choices(_OPTIMIZATION.optimizer)[1:],
    _choices(_OPTIMIZATION.learning_rate),
    _choices(_OPTIMIZATION.warmup),
]


@pytest.mark.parametrize(
    ("rows", "clears"),
    [
        # Each choice of each block, in addition to the bindings of all earlier rows.
        (list(zip(*map(itertools.cycle, _BLOCKS), range(len(_BLOCKS[0])), strict=False)), False),
        pytest.param(list(itertools.product(*_BLOCKS)), True, marks=pytest.mark.slow),
    ],
    ids=["each", "all"],
)
def test_exported_gin_file_reproduces_every_optimizer_schedule_and_warmup(
    rows: list[tuple[Any, ...]], clears: bool
) -> None:
    registered = cfg.ExperimentConfig()
    for row in rows:
        given = registered.replace(**_of_schedules(*row[:3]))
        params = epochs.resolve(given)
        gin_config.parse_gin([], [gin_config.operative_config(params)])
        # `registered` still has the choices that the previous row selected.
        again = gin_config.apply_bindings(registered)
        assert again.as_dict() == params.as_dict()
        if clears:
            gin.clear_config()


def test_exported_gin_file_is_read_despite_a_user_function_named_params(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gin.config, "_REGISTRY", copy.deepcopy(gin.config._REGISTRY))

    @gin.configurable("params", module="mine")
    def params_of_the_user(size: int = 1) -> int:
        return size

    with pytest.raises(errors.ConfigValueError, match="Ambiguous selector"):
        gin_config.parse_gin([], ["trainer/params.train_steps = 3"])
    gin_config.parse_gin([], ["official_lite.params.workspace = '/w'", "mine.params.size = 3"])
    gin_config.parse_gin([], ["trainer/mine.params.size = 4"])
    params = gin_config.apply_bindings(cfg.ExperimentConfig())
    assert params.workspace == "/w"
    assert gin_config.find_other_bindings() == ["mine.params.size"] * 2
    text = gin_config.operative_config(params)
    assert text.count("workspace = '/w'") == 1
    gin.clear_config()
    gin_config.parse_gin([], [text])
    assert gin_config.apply_bindings(cfg.ExperimentConfig()).as_dict() == params.as_dict()
    assert params_of_the_user() == 3


def test_gin_binding_without_effect_raises_unless_another_binding_overrides_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    adam = "trainer/optimizer_config/optimizer/params.type = 'adam'"
    rate = "trainer/optimizer_config/optimizer/adam/params.beta_1 = 0.5"
    data = "task/validation_data/params.input_path = 'x'"
    params = _bound(rate, adam, data)
    assert params.trainer.optimizer_config.optimizer.adam.beta_1 == 0.5
    params = _bound(adam.replace("adam", "sgd"), "task/params.validation_data = None")
    assert params.trainer.optimizer_config.optimizer.type == "sgd"
    assert params.task.validation_data is None
    warned = [r.message for r in caplog.records if "has no effect" in r.message]
    assert len(warned) == 2
    gin.clear_config()
    with pytest.raises(errors.ConfigValueError, match="would have no effect"):
        _bound(rate)


def test_exported_gin_file_keeps_train_epochs_instead_of_derived_steps() -> None:
    params = cfg.ExperimentConfig(trainer=cfg.TrainerConfig(train_epochs=3))
    gin_config.parse_gin([], gin_config.operative_config(params).splitlines())
    assert gin_config.apply_bindings(cfg.ExperimentConfig()) == params


def test_exporting_a_value_that_gin_cannot_write_raises() -> None:
    params = cfg.ExperimentConfig(trainer=cfg.TrainerConfig(loss_upper_bound=float("nan")))
    with pytest.raises(errors.ConfigValueError, match="loss_upper_bound"):
        gin_config.operative_config(params)


@pytest.mark.parametrize("line", ["import os", "include 'other.gin'", "x = @os.system()"])
def test_safe_gin_parsing_rejects_code_and_accepts_plain_values(
    tmp_path: pathlib.Path, line: str
) -> None:
    file = tmp_path / "evil.gin"
    file.write_text(line + "\n")
    with pytest.raises(errors.ConfigValueError, match="--safe_config"):
        gin_config.parse_gin([str(file)], [], safe=True)
    file.write_text("trainer/params.train_steps = 9\n")
    gin_config.parse_gin([str(file)], [], safe=True)
    assert gin_config.apply_bindings(cfg.ExperimentConfig()).trainer.train_steps == 9


@pytest.fixture
def parsed() -> absl_flags.FlagValues:
    flags.define_flags()
    absl_flags.FLAGS.unparse_flags()
    yield absl_flags.FLAGS
    absl_flags.FLAGS.unparse_flags()
    absl_flags.FLAGS(["test"])
    absl_flags.FLAGS["gin_params"].value = None
    absl_flags.FLAGS["safe_config"].value = False


def test_gin_params_flag_can_refer_to_the_trainer_class_without_an_import(parsed) -> None:
    parsed(["test", "--gin_params=create_trainer.trainer_cls = @Trainer"])
    gin_config.parse_gin_flags(parsed)
    assert "create_trainer" in gin.config_str()


def test_safe_config_flag_rejects_a_gin_reference(parsed) -> None:
    parsed(["test", "--gin_params=create_trainer.trainer_cls = @Trainer", "--safe_config"])
    with pytest.raises(errors.ConfigValueError, match="--safe_config"):
        gin_config.parse_gin_flags(parsed)
