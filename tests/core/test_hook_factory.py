import pytest

from official_lite import orbit
from official_lite.common import errors, plugins
from official_lite.core import hook_factory
from official_lite.orbit import hooks


class InfoHook(orbit.Hook):
    def __init__(self, text="hello"):
        self.text = text


def test_registered_hook_is_created_with_the_arguments_of_the_config():
    hook_factory.register_hook("test/info")(InfoHook)
    factories = hook_factory.find_hooks(["test/info", {"name": "test/info", "text": "bye"}])
    assert [factory().text for factory in factories] == ["hello", "bye"]


def test_hook_is_found_by_its_place(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from official_lite import orbit\nclass Mine(orbit.Hook):\n    every_n_steps = 7\n"
    )
    (factory,) = hook_factory.find_hooks(["{workspace}/mine.py"], workspace=str(tmp_path))
    assert factory().every_n_steps == 7


def test_every_shipped_name_has_its_hook():
    shipped = {name: spec for name, spec in hook_factory._HOOKS.items() if isinstance(spec, str)}
    assert "early_stopping" in shipped
    for spec in shipped.values():
        assert issubclass(plugins.resolve(spec), orbit.Hook)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("early_stoping", "early_stopping"),
        ({"name": "early_stopping", "metrc": "loss"}, "`metric`"),
        ({"name": "early_stopping"}, "missing a required argument"),
        ({"metric": "loss"}, "must be a name"),
        (3, "must be a name"),
    ],
)
def test_wrong_entry_is_refused_before_anything_is_created(entry, message):
    with pytest.raises(errors.ConfigError, match=message):
        hook_factory.find_hooks([entry])


def test_shipped_hook_takes_the_arguments_of_its_class():
    entry = {"name": "early_stopping", "metric": "loss", "patience": 2}
    (factory,) = hook_factory.find_hooks([entry])
    assert isinstance(factory(), hooks.EarlyStopping)
