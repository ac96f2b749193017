import math

import pytest

from official_lite import orbit
from official_lite.common import errors
from official_lite.orbit import hooks
from official_lite.orbit.hooks import hook as hook_module


class EveryStep(orbit.Hook):
    def after_step(self):
        pass


@pytest.mark.parametrize(
    ("build", "next_steps", "num_warnings"),
    [
        # Without an interval, a hook with a step method is called at every step.
        (EveryStep, [1, 151], 1),
        (lambda: hooks.LambdaHook(after_step=lambda hook: None), [1, 151], 1),
        (lambda: hooks.LambdaHook(after_step=lambda hook: None, every_n_steps=7), [7, 154], 0),
        (lambda: hooks.LambdaHook(before_train=lambda hook: None), [math.inf, math.inf], 0),
        (orbit.Hook, [math.inf, math.inf], 0),
    ],
)
def test_train_loop_pauses_only_at_steps_where_a_hook_runs(build, next_steps, num_warnings, caplog):
    listed = hook_module.HookList([build(), orbit.Hook()], steps_per_epoch=5)
    assert [listed.next_step(step) for step in (0, 150)] == next_steps
    assert caplog.text.count("several times slower") == num_warnings


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


def test_first_error_of_several_hooks_is_raised_and_later_errors_are_logged(caplog):
    def fail_with(message):
        def after_step(hook):
            raise ValueError(message)

        return hooks.LambdaHook(every_n_steps=1, after_step=after_step)

    listed = hook_module.HookList([fail_with("one"), fail_with("two"), fail_with("three")])
    with pytest.raises(ValueError, match="one"):
        listed.after_steps(1)
    logged = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert logged == ["two", "three"]


def test_hook_list_with_an_object_that_is_not_a_hook_raises():
    with pytest.raises(errors.ConfigTypeError, match="contains a str"):
        hook_module.HookList(["not a hook"])


ARGUMENTS = {"after_eval": 1, "on_checkpoint": 1, "on_exception": 1, "after_train": 1}
EVENTS = {
    **dict.fromkeys(["before_train", "before_step", "after_step", "after_epoch"], 0),
    **ARGUMENTS,
}


@pytest.mark.parametrize("as_lambda", [False, True])
def test_hook_event_methods_may_omit_their_argument(as_lambda):
    calls = []
    functions = dict.fromkeys(ARGUMENTS, lambda hook: calls.append(hook))
    hook = hooks.LambdaHook(**functions) if as_lambda else type("Short", (orbit.Hook,), functions)()
    for event in ARGUMENTS:
        hook_module.HookList([hook]).dispatch(event, "argument")
    assert calls == [hook] * len(ARGUMENTS)


@pytest.mark.parametrize("as_lambda", [False, True])
def test_event_method_with_wrong_arguments_raises_when_the_hook_list_is_created(as_lambda):
    def method(self, one, two):
        pass

    for event in EVENTS:
        if as_lambda:
            hook = hooks.LambdaHook(**{event: method})
        else:
            hook = type("Long", (orbit.Hook,), {event: method})()
        with pytest.raises(errors.ConfigTypeError, match=rf"{event} takes"):
            hook_module.HookList([hook])


def test_type_error_inside_an_event_method_is_raised_unchanged():
    class Failing(orbit.Hook):
        def after_train(self, success):
            raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        hook_module.HookList([Failing()]).dispatch("after_train", True)


@pytest.mark.parametrize(
    ("model_dir", "directory", "expected"),
    [
        ("/runs/digits", "profile", "/runs/digits/profile"),
        (None, "/tmp/profile", "/tmp/profile"),
        (None, "gs://bucket/profile", "gs://bucket/profile"),
    ],
)
def test_relative_output_directory_of_a_hook_is_inside_the_model_directory(
    make_trainer, make_controller, model_dir, directory, expected
):
    hook = orbit.Hook()
    make_controller(make_trainer(), hooks=[hook], model_dir=model_dir)
    assert hook_module.output_directory(hook, directory) == expected
