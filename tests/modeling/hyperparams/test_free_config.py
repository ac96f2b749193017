import dataclasses

import pytest

from official_lite.common import errors
from official_lite.modeling import hyperparams


@dataclasses.dataclass
class Trainer(hyperparams.Config):
    hooks: list[str | hyperparams.PluginConfig] = dataclasses.field(default_factory=list)
    overrides: hyperparams.FreeConfig = dataclasses.field(default_factory=hyperparams.FreeConfig)


def _trainer(*hooks) -> Trainer:
    return Trainer({"hooks": list(hooks)})


def test_arguments_may_be_nested_in_any_way():
    entry = {"name": "a", "sizes": [[1, 2], [3]], "files": {"x": [{"y": [[1.5]]}]}}
    trainer = _trainer("timer", entry)
    trainer.validate()
    assert trainer.as_dict()["hooks"] == ["timer", entry]


def test_config_with_plugins_survives_its_file(tmp_path):
    trainer = _trainer("timer", {"name": "a", "sizes": [[1, 2], [3]]})
    hyperparams.save_params_dict_to_yaml(trainer, tmp_path / "a.yaml")
    assert Trainer.from_yaml(tmp_path / "a.yaml") == trainer


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (5, r"`hooks\[1\]` of Trainer: expected str"),
        (["a"], r"`hooks\[1\]` of Trainer: expected str"),
        ({"patience": 3}, r"`hooks\[1\]` of Trainer: `name` is missing"),
        ({"name": 5}, r"`hooks\[1\]` of Trainer: `name` is 5"),
    ],
)
def test_entry_that_is_no_plugin_is_refused_with_its_place(entry, message):
    with pytest.raises(errors.ConfigError, match=message):
        _trainer("timer", entry)


@pytest.mark.parametrize(
    "name", ["lock", "get", "as_dict", "override", "validate", "replace", "keys", "items", "copy"]
)
def test_argument_may_be_named_like_a_method(name):
    entry = {"name": "a", name: True, "nested": {name: [1]}}
    trainer = _trainer(entry, {"name": "b"})
    trainer.override({"hooks": [entry], "overrides": {name: 3}})
    trainer.validate()
    copied = trainer.replace()
    copied.lock()
    assert copied == trainer
    assert copied.as_dict() == {"hooks": [entry], "overrides": {name: 3}}
    assert copied.hooks[0].get(name) is True
    assert hyperparams.get_by_path(copied, f"overrides.{name}") == 3


def test_entry_appended_behind_our_back_is_found():
    trainer = Trainer()
    trainer.hooks.append(hyperparams.PluginConfig())
    with pytest.raises(errors.ConfigValueError, match="`name` is missing"):
        trainer.validate()


def test_named_override_leaves_no_argument_of_another_class():
    trainer = _trainer({"name": "a", "patience": 3})
    trainer.override({"hooks": [{"name": "b"}]})
    assert trainer.as_dict()["hooks"] == [{"name": "b"}]


def test_single_argument_can_be_set_by_its_path():
    trainer = _trainer("timer", {"name": "a", "patience": 3})
    hyperparams.set_by_path(trainer, "hooks[1].patience", "5")
    hyperparams.set_by_path(trainer, "hooks[1].metric", "accuracy")
    assert trainer.hooks[1].as_dict() == {"name": "a", "patience": 5, "metric": "accuracy"}


def test_free_config_takes_new_keys_at_any_time():
    trainer = Trainer({"overrides": {"a.b": 1, "c": {"d": [[1]]}}})
    trainer.override({"overrides": {"c": {"e": 2}}})
    assert trainer.as_dict()["overrides"] == {"a.b": 1, "c": {"d": [[1]], "e": 2}}


def test_lock_reaches_the_arguments():
    trainer = _trainer({"name": "a", "patience": 3})
    trainer.lock()
    with pytest.raises(errors.LockedConfigError):
        trainer.hooks[0].patience = 4
