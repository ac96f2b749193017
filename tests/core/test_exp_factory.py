import pytest

from official_lite.common import errors, plugins
from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(exp_factory, "_REGISTERED_CONFIGS", {})


def make_config() -> cfg.ExperimentConfig:
    return cfg.ExperimentConfig()


def test_get_exp_config_returns_a_new_config_at_every_call():
    exp_factory.register_config_factory("vision/digits")(make_config)
    first, second = (exp_factory.get_exp_config("vision/digits") for _ in range(2))
    first.trainer.train_steps = 7
    assert second.trainer.train_steps == 0
    assert exp_factory.list_experiments() == ["vision/digits"]


def test_get_config_factory_returns_the_registered_factory():
    exp_factory.register_config_factory("vision/digits")(make_config)
    assert exp_factory.get_config_factory("vision/digits") is make_config


def test_unregistered_config_factory_is_found_by_its_file_and_name(tmp_path):
    (tmp_path / "my_configs.py").write_text(
        "from official_lite.core import config_definitions as cfg\n"
        "def small(): return cfg.ExperimentConfig(trainer=cfg.TrainerConfig(train_steps=3))\n"
    )
    assert exp_factory.get_exp_config(f"{tmp_path}/my_configs.py:small").trainer.train_steps == 3


def test_error_for_an_unknown_experiment_suggests_the_nearest_name():
    exp_factory.register_config_factory("vision/digits")(make_config)
    with pytest.raises(LookupError, match=r"no experiment .*Did you mean `vision/digits`"):
        exp_factory.get_exp_config("vision/digit")
    with pytest.raises(LookupError, match="`vision/digits`"):
        exp_factory.get_exp_config("vision")


def test_error_for_a_config_factory_that_returns_none_names_the_experiment():
    exp_factory.register_config_factory("forgetful")(lambda: None)
    with pytest.raises(errors.ConfigTypeError, match="'forgetful' returned None"):
        exp_factory.get_exp_config("forgetful")


def test_error_for_a_config_factory_with_a_required_argument_names_the_argument():
    def sized(batch_size):
        return cfg.ExperimentConfig()

    exp_factory.register_config_factory("sized")(sized)
    with pytest.raises(errors.ConfigTypeError, match=r"`sized\(\)`, but .*'batch_size'.*fields"):
        exp_factory.get_exp_config("sized")


def test_get_origin_returns_the_module_or_file_that_registered_an_experiment(tmp_path):
    exp_factory.register_config_factory("vision/digits")(make_config)
    assert exp_factory.get_origin("vision/digits") == __name__
    (tmp_path / "my_configs.py").write_text(
        "from official_lite.core import config_definitions as cfg, exp_factory\n"
        "@exp_factory.register_config_factory('vision/mine')\n"
        "def mine(): return cfg.ExperimentConfig()\n"
    )
    plugins.load_module(str(tmp_path / "my_configs.py"))
    assert exp_factory.get_origin("vision/mine") == str(tmp_path / "my_configs.py")


def test_error_for_an_unknown_experiment_lists_failed_imports(monkeypatch):
    exp_factory.register_config_factory("vision/digits")(make_config)
    sentence = "The entry point `acme = acme.configs` of acme 1.0 can't be imported."
    monkeypatch.setattr(plugins, "import_group", lambda group: (sentence,))
    with pytest.raises(errors.UnknownNameError, match=r"no experiment 'acme/sine'.*`acme = acme"):
        exp_factory.get_exp_config("acme/sine")
    assert exp_factory.get_exp_config("vision/digits") == make_config()
