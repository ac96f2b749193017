import pytest

from official_lite.common import errors
from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(exp_factory, "_REGISTERED_CONFIGS", {})


def make_config() -> cfg.ExperimentConfig:
    return cfg.ExperimentConfig()


def test_every_call_makes_a_fresh_config():
    exp_factory.register_config_factory("vision/digits")(make_config)
    first, second = (exp_factory.get_exp_config("vision/digits") for _ in range(2))
    first.trainer.train_steps = 7
    assert second.trainer.train_steps == 0
    assert exp_factory.list_experiments() == ["vision/digits"]


def test_an_unregistered_factory_is_named_by_its_file(tmp_path):
    (tmp_path / "my_configs.py").write_text(
        "from official_lite.core import config_definitions as cfg\n"
        "def small(): return cfg.ExperimentConfig(trainer=cfg.TrainerConfig(train_steps=3))\n"
    )
    assert exp_factory.get_exp_config(f"{tmp_path}/my_configs.py:small").trainer.train_steps == 3


def test_an_unknown_experiment_is_answered_with_the_nearest():
    exp_factory.register_config_factory("vision/digits")(make_config)
    with pytest.raises(LookupError, match=r"no experiment .*Did you mean `vision/digits`"):
        exp_factory.get_exp_config("vision/digit")
    with pytest.raises(LookupError, match="`vision/digits`"):
        exp_factory.get_exp_config("vision")


def test_a_factory_that_forgets_to_return_is_named():
    exp_factory.register_config_factory("forgetful")(lambda: None)
    with pytest.raises(errors.ConfigTypeError, match="'forgetful' returned None"):
        exp_factory.get_exp_config("forgetful")
