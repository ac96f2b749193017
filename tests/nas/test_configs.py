import pytest

from official_lite import nas
from official_lite.common import errors


@pytest.mark.parametrize(
    "wrong",
    [
        {"darts": {"order": "third"}},
        {"enas": {"samples": 0}},
        {"gumbel": {"temperature": 0.0}},
        {"spos": {"rank_batches": 0}},
        {"penalty": {"resource": "watts"}},
        {"idle_paths": "sleep"},
        {"reward_direction": "up"},
        {"arch_learning_rate": -1.0},
    ],
)
def test_invalid_one_shot_config_is_refused(wrong) -> None:
    config = nas.OneShotConfig(wrong)
    with pytest.raises(errors.ConfigValueError):
        config.validate()


@pytest.mark.parametrize("arch", ["/tmp/search", {"conv": "conv3", "depth": 2, "inputs": [0, 1]}])
def test_architecture_is_a_path_or_a_mapping(arch) -> None:
    config = nas.ArchTaskConfig()
    config.override({"arch": arch})
    config.validate()
    assert config.as_dict()["arch"] == arch


def test_a_choice_is_a_path_of_the_config() -> None:
    config = nas.ArchTaskConfig(arch={"conv": "conv3"})
    config.override({"arch": {"conv": "skip"}})
    assert config.arch.as_dict() == {"conv": "skip"}


def test_empty_mapping_is_refused() -> None:
    with pytest.raises(errors.ConfigValueError, match="empty mapping"):
        nas.ArchTaskConfig(arch={}).validate()


def test_trainer_takes_all_settings_by_path() -> None:
    config = nas.OneShotTrainerConfig()
    config.override({"name": "darts", "one_shot": {"darts": {"order": "second"}}})
    config.validate()
    assert config.one_shot.darts.order == "second"
