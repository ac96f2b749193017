import pytest
from absl import logging

from official_lite import orbit
from official_lite.common import errors
from official_lite.orbit.hooks import hook_list


class EveryStep(orbit.Hook):
    def after_step(self):
        pass


def test_unstated_interval_means_every_step_and_one_warning(monkeypatch):
    warnings = []
    monkeypatch.setattr(logging, "warning", lambda text, *args: warnings.append(text % args))
    every = hook_list.HookList([EveryStep(), orbit.Hook()])
    assert [every.next_step(step) for step in (0, 1)] == [1, 2]
    assert len(warnings) == 1
    assert "EveryStep" in warnings[0]
    assert "slower" in warnings[0]


def test_stated_interval_needs_no_warning(monkeypatch):
    monkeypatch.setattr(logging, "warning", lambda *args: pytest.fail("no warning is due"))
    hook = EveryStep()
    hook.every_n_steps = 100
    assert hook_list.HookList([hook]).next_step(150) == 200


def test_hook_without_step_methods_cuts_no_loop():
    assert hook_list.HookList([orbit.Hook()], steps_per_epoch=5).next_step(0) == float("inf")


def test_hooks_run_in_list_order():
    order = []

    class Named(orbit.Hook):
        every_n_steps = 2

        def __init__(self, name):
            self.name = name

        def before_step(self):
            order.append(f"before {self.name}")

        def after_step(self):
            order.append(f"after {self.name}")

    listed = hook_list.HookList([Named("a"), Named("b")])
    listed.before_steps(until=2)
    listed.after_steps(2)
    listed.after_steps(3)
    assert order == ["before a", "before b", "after a", "after b"]


def test_hooks_know_who_runs_them(make_trainer, make_controller):
    trainer, hook = make_trainer(), orbit.Hook()
    controller = make_controller(trainer, hooks=[hook])
    assert hook.controller is controller
    assert hook.trainer is trainer


def test_other_objects_are_refused():
    with pytest.raises(errors.ConfigTypeError, match="holds a str"):
        hook_list.HookList(["not a hook"])
