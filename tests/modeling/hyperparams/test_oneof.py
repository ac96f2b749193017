import dataclasses

import pytest

from official_lite.common import errors
from official_lite.modeling import hyperparams


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


def test_get_and_export_only_what_is_selected():
    warmup = Warmup({"type": "linear", "linear": {"warmup_steps": 5}})
    assert warmup.get() == Linear(warmup_steps=5)
    assert warmup.as_dict() == {"type": "linear", "linear": {"warmup_steps": 5}}
    assert Warmup(type="steps").get() == 3


@pytest.mark.parametrize("nothing", [None, ""])
def test_nothing_may_be_selected(nothing):
    assert Warmup(type=nothing).get() is None
    assert Warmup(type=nothing).as_dict() == {"type": nothing}


@pytest.mark.parametrize(
    "change",
    [
        lambda: Warmup(type="liner"),
        lambda: Warmup({"type": "liner"}),
        lambda: setattr(Warmup(), "type", "liner"),
        lambda: Optimization().override({"warmup": {"type": "liner"}}),
        lambda: hyperparams.set_by_path(Optimization(), "warmup.type", "liner"),
    ],
)
def test_unknown_type_fails_at_once(change):
    with pytest.raises(ValueError, match=r"no alternative 'liner'\. Did you mean `linear`"):
        change()


def test_type_does_not_select_itself():
    with pytest.raises(errors.ConfigValueError, match="no alternative 'type'"):
        Warmup(type="type")


@pytest.mark.parametrize("selected", [None, "polynomial"])
def test_override_of_what_is_not_selected_is_refused(selected):
    config = Optimization(warmup=Warmup(type=selected))
    with pytest.raises(
        errors.ConfigValueError,
        match=r"no effect, because `warmup\.type`.* Set `warmup\.type` to 'linear'",
    ):
        config.override({"warmup": {"linear": {"warmup_steps": 5}}})


def test_type_and_branch_come_in_any_order():
    config = Optimization()
    override = "warmup.linear.warmup_steps=5,warmup.type=linear"
    hyperparams.override_params_dict(config, override, is_strict=True)
    assert config.warmup.get() == Linear(warmup_steps=5)


def test_loose_override_adds_an_alternative():
    warmup = Warmup()
    warmup.override({"type": "mine", "mine": {"x": 1}}, is_strict=False)
    assert warmup.get().x == 1


def test_restrictions_of_what_is_not_selected_do_not_count():
    Optimization(warmup=Warmup(type="linear")).validate()
    with pytest.raises(KeyError, match=r"`warmup\.polynomial`"):
        Optimization(warmup=Warmup(type="polynomial")).validate()


def test_lock_holds_for_all_alternatives():
    config = Optimization()
    config.lock()
    with pytest.raises(errors.LockedConfigError):
        config.warmup.linear.warmup_steps = 1
