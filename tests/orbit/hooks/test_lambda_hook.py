import pytest

from official_lite.orbit import hooks

NOTIFY = """
import pathlib

def to_file(hook, success):
    path = pathlib.Path(hook.controller.model_dir, "notes.txt")
    path.write_text(f"done at step {hook.controller.step}: {success}")
"""


def test_lambda_hook_functions_receive_the_hook_and_the_arguments_of_their_event(
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


def test_on_exception_function_receives_the_error_that_ended_training(
    make_trainer, make_controller
):
    received = []

    def fail(hook):
        raise ArithmeticError("bad step")

    hook = hooks.LambdaHook(
        after_step=fail,
        every_n_steps=1,
        on_exception=lambda hook, error: received.append(str(error)),
    )
    with pytest.raises(ArithmeticError):
        make_controller(make_trainer(), hooks=[hook]).train(2)
    assert received == ["bad step"]


def test_lambda_hook_imports_a_function_by_its_path(make_trainer, make_controller, tmp_path):
    (tmp_path / "notify.py").write_text(NOTIFY)
    hook = hooks.LambdaHook(after_train=f"{tmp_path}/notify.py:to_file")
    make_controller(make_trainer(), hooks=[hook], model_dir=tmp_path).train(3)
    assert (tmp_path / "notes.txt").read_text() == "done at step 3: True"
