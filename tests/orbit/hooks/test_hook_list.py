import pytest
from absl import logging

from official_lite import orbit
from official_lite.common import errors
from official_lite.orbit import hooks
from official_lite.orbit.hooks import hook as hook_module


class EveryStep(orbit.Hook):
    def after_step(self):
        pass


def test_unstated_interval_means_every_step_and_one_warning(monkeypatch):
    warnings = []
    monkeypatch.setattr(logging, "warning", lambda text, *args: warnings.append(text % args))
    every = hook_module.HookList([EveryStep(), orbit.Hook()])
    assert [every.next_step(step) for step in (0, 1)] == [1, 2]
    assert len(warnings) == 1
    assert "EveryStep" in warnings[0]
    assert "slower" in warnings[0]


def test_stated_interval_needs_no_warning(monkeypatch):
    monkeypatch.setattr(logging, "warning", lambda *args: pytest.fail("no warning is due"))
    hook = EveryStep()
    hook.every_n_steps = 100
    assert hook_module.HookList([hook]).next_step(150) == 200


def test_hook_without_step_methods_cuts_no_loop():
    assert hook_module.HookList([orbit.Hook()], steps_per_epoch=5).next_step(0) == float("inf")


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

    listed = hook_module.HookList([Named("a"), Named("b")])
    listed.before_steps(until=2)
    listed.after_steps(2)
    listed.after_steps(3)
    assert order == ["before a", "before b", "after a", "after b"]


def test_first_error_of_several_hooks_is_raised_and_the_others_are_logged(caplog):
    def fail_with(message):
        def after_step(hook):
            raise ValueError(message)

        return hooks.LambdaHook(every_n_steps=1, after_step=after_step)

    listed = hook_module.HookList([fail_with("one"), fail_with("two"), fail_with("three")])
    with pytest.raises(ValueError, match="one"):
        listed.after_steps(1)
    logged = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert logged == ["two", "three"]


def test_hooks_know_who_runs_them(make_trainer, make_controller):
    trainer, hook = make_trainer(), orbit.Hook()
    controller = make_controller(trainer, hooks=[hook])
    assert hook.controller is controller
    assert hook.trainer is trainer


def test_other_objects_are_refused():
    with pytest.raises(errors.ConfigTypeError, match="contains a str"):
        hook_module.HookList(["not a hook"])


ARGUMENTS = {"after_eval": 1, "on_checkpoint": 1, "on_exception": 1, "after_train": 1}
EVENTS = {
    **dict.fromkeys(["before_train", "before_step", "after_step", "after_epoch"], 0),
    **ARGUMENTS,
}


@pytest.mark.parametrize("event", ARGUMENTS)
@pytest.mark.parametrize("as_lambda", [False, True])
def test_argument_of_an_event_may_be_left_out(event, as_lambda):
    calls = []
    if as_lambda:
        hook = hooks.LambdaHook(**{event: lambda hook: calls.append(hook)})
    else:
        hook = type("Short", (orbit.Hook,), {event: lambda self: calls.append(self)})()
    hook_module.HookList([hook]).dispatch(event, "argument")
    assert calls == [hook]


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("as_lambda", [False, True])
def test_method_with_other_arguments_is_refused_before_the_first_step(event, as_lambda):
    def method(self, one, two):
        pass

    if as_lambda:
        hook = hooks.LambdaHook(**{event: method})
    else:
        hook = type("Long", (orbit.Hook,), {event: method})()
    with pytest.raises(errors.ConfigTypeError, match=rf"{event} takes \(one, two\); expected"):
        hook_module.HookList([hook])


def test_error_inside_a_method_is_not_taken_for_another_signature():
    class Failing(orbit.Hook):
        def after_train(self, success):
            raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        hook_module.HookList([Failing()]).dispatch("after_train", True)


def test_every_method_of_a_hook_is_checked():
    methods = {n for c in (orbit.Hook, orbit.GraphHook) for n in vars(c) if callable(getattr(c, n))}
    assert {n for n in methods if not n.startswith("_")} - {"build_trigger"} == set(
        hook_module._ARGUMENTS
    )
