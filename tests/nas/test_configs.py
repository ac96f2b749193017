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
def test_task_arch_accepts_a_path_or_a_mapping(arch) -> None:
    config = nas.ArchTaskConfig()
    config.override({"arch": arch})
    config.validate()
    assert config.as_dict()["arch"] == arch


def test_task_arch_accepts_an_override_of_a_choice_but_not_an_empty_arch() -> None:
    config = nas.ArchTaskConfig(arch={"conv": "conv3"})
    config.override({"arch": {"conv": "skip"}})
    assert config.arch.as_dict() == {"conv": "skip"}
    with pytest.raises(errors.ConfigValueError, match="`arch`"):
        nas.ArchTaskConfig(arch={}).validate()
