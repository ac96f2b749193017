import pytest

from official_lite.common import errors
from official_lite.orbit import hooks
from official_lite.orbit.hooks import hook as hook_module

NOTIFY = """
import pathlib

def to_file(hook, success):
    path = pathlib.Path(hook.controller.model_dir, "notes.txt")
    path.write_text(f"done at step {hook.controller.step}: {success}")
"""


def test_each_function_is_called_with_the_hook_and_what_the_event_brings(
    make_trainer, make_controller, make_manager
):
    calls = []

    def log(name):
        return lambda hook, *args: calls.append((name, hook.controller.step, *args))

    events = ["before_train", "before_step", "after_step", "after_epoch"]
    trainer = make_trainer()
    hook = hooks.LambdaHook(
        **{event: log(event) for event in events},
        after_train=log("after_train"),
        after_eval=lambda hook, logs: calls.append(("after_eval", sorted(logs))),
        on_checkpoint=lambda hook, path: calls.append(("on_checkpoint", path[-2:])),
        every_n_steps=2,
    )
    controller = make_controller(
        trainer, hooks=[hook], checkpoint_manager=make_manager(trainer, 3), steps_per_epoch=3
    )
    controller.train_and_evaluate(3)
    assert calls == [
        ("before_train", 0),
        ("before_step", 0),
        ("after_step", 2),
        ("after_eval", ["accuracy"]),
        ("after_epoch", 3),
        ("on_checkpoint", "-3"),
        ("after_train", 3, True),
    ]


def test_failure_is_told(make_trainer, make_controller):
    told = []

    def fail(hook):
        raise ArithmeticError("bad step")

    hook = hooks.LambdaHook(
        after_step=fail, every_n_steps=1, on_exception=lambda hook, error: told.append(str(error))
    )
    with pytest.raises(ArithmeticError):
        make_controller(make_trainer(), hooks=[hook]).train(2)
    assert told == ["bad step"]


def test_function_of_a_file_notifies(make_trainer, make_controller, tmp_path):
    (tmp_path / "notify.py").write_text(NOTIFY)
    hook = hooks.LambdaHook(after_train=f"{tmp_path}/notify.py:to_file")
    make_controller(make_trainer(), hooks=[hook], model_dir=tmp_path).train(3)
    assert (tmp_path / "notes.txt").read_text() == "done at step 3: True"


def test_events_without_a_function_cut_no_loop():
    hook = hooks.LambdaHook(before_train=lambda hook: None)
    assert hook_module.HookList([hook], steps_per_epoch=5).next_step(0) == float("inf")


def test_function_of_steps_gets_the_stated_interval():
    hook = hooks.LambdaHook(after_step=lambda hook: None, every_n_steps=7)
    assert hook_module.HookList([hook]).next_step(0) == 7


def test_unstated_interval_means_every_step_and_a_warning(log_lines):
    hook = hooks.LambdaHook(after_step=lambda hook: None)
    assert hook_module.HookList([hook]).next_step(0) == 1
    assert "LambdaHook" in log_lines[0]


def test_what_is_no_function_is_refused():
    with pytest.raises(errors.ConfigTypeError, match=r"`after_train` of LambdaHook is 3"):
        hooks.LambdaHook(after_train=3)


def test_function_that_does_not_exist_is_refused():
    with pytest.raises(errors.UnknownNameError, match="Did you mean `dumps`"):
        hooks.LambdaHook(after_train="json:dump_s")
