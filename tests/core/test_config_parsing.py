import dataclasses
import pathlib

import pytest

from official_lite.common import errors
from official_lite.core import config_definitions as cfg
from official_lite.core import config_parsing, exp_factory


@dataclasses.dataclass
class ToyConfig(cfg.TaskConfig):
    width: int = 4


@pytest.fixture(autouse=True)
def toy_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exp_factory, "_REGISTERED_CONFIGS", {})
    exp_factory.register_config_factory("toy")(
        lambda: cfg.ExperimentConfig(task=ToyConfig(), trainer=cfg.TrainerConfig(train_steps=1))
    )


def _parse(**options: object) -> cfg.ExperimentConfig:
    options = config_parsing.ParseConfigOptions(experiment="toy", **options)
    return config_parsing.parse_configuration(options, print_return=False)


def test_later_layers_win(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("trainer: {train_steps: 2, validation_steps: 2, max_to_keep: 2}")
    params = _parse(
        config_file=[str(file)],
        params_override="trainer.train_steps=3,trainer.validation_steps=3",
        set=["trainer.train_steps=4"],
    )
    trainer = params.trainer
    assert (trainer.train_steps, trainer.validation_steps, trainer.max_to_keep) == (4, 3, 2)


def test_tpu_of_a_file_stays_without_the_flag(tmp_path: pathlib.Path) -> None:
    assert _parse(params_override="runtime.tpu='my-tpu'").runtime.tpu == "my-tpu"
    assert _parse(tpu="other").runtime.tpu == "other"


def test_data_service_flag_turns_the_service_on() -> None:
    data = _parse(tf_data_service="grpc://host:1").task.train_data
    assert data.enable_tf_data_service
    assert data.tf_data_service_address == "grpc://host:1"


def test_result_is_locked_to_the_bottom() -> None:
    params = _parse()
    with pytest.raises(errors.LockedConfigError):
        params.trainer.optimizer_config.optimizer.type = "sgd"


def test_set_without_a_value_says_how() -> None:
    with pytest.raises(errors.ConfigValueError, match="path=value"):
        _parse(set=["trainer.train_steps"])


def test_params_yaml_is_a_fixed_point_with_the_tasks_own_fields(tmp_path: pathlib.Path) -> None:
    params = _parse(set=["task.width=7", "runtime.distribution_strategy=off"])
    config_parsing.serialize_config(params, str(tmp_path))
    again = _parse(config_file=[str(tmp_path / "params.yaml")])
    assert again.as_dict() == params.as_dict()
    assert isinstance(again.task, ToyConfig)
    assert again.task.width == 7


def test_dry_run_is_one_step_of_each_kind() -> None:
    class Flags:
        experiment, config_file, params_override, tpu, dry_run = "toy", None, None, None, True

        def __contains__(self, name: str) -> bool:
            return name == "dry_run"

    trainer = config_parsing.parse_configuration(Flags(), print_return=False).trainer
    assert (trainer.train_steps, trainer.validation_steps) == (1, 1)


def test_module_that_is_not_there_is_named() -> None:
    with pytest.raises(errors.UnknownNameError, match="no_such_package"):
        config_parsing.import_modules(["no_such_package.tasks"])


def test_file_can_be_imported_for_its_registrations(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from official_lite.core import exp_factory, config_definitions as cfg\n"
        "@exp_factory.register_config_factory('mine')\n"
        "def mine():\n    return cfg.ExperimentConfig()\n"
    )
    config_parsing.import_modules([str(file)])
    assert "mine" in exp_factory.list_experiments()
