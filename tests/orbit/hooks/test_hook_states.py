import math

import numpy as np
import pytest
from absl import logging

from official_lite import orbit
from official_lite.common import errors
from official_lite.core import train_lib
from official_lite.orbit.hooks import hook as hook_module


class Counter(orbit.Hook):
    every_n_steps = 1

    def __init__(self):
        self.seen = 0
        self.average = np.zeros(2)

    def after_step(self):
        self.seen += 1
        self.average = self.average + 0.5

    def state_dict(self):
        return {"seen": np.int64(self.seen), "average": self.average}

    def load_state_dict(self, state):
        self.seen, self.average = state["seen"], state["average"]


def test_hook_states_are_restored_after_a_restart(make_trainer, make_controller, make_manager):
    for last_step in (3, 7):
        trainer, hooks = make_trainer(), [orbit.Hook(), Counter(), Counter()]
        manager = make_manager(trainer, interval=100)
        make_controller(trainer, checkpoint_manager=manager, hooks=hooks).train(last_step)
    assert [hook.seen for hook in hooks[1:]] == [7, 7]
    assert hooks[1].average.tolist() == [3.5, 3.5]
    # NumPy numbers become Python numbers.
    assert type(hooks[1].seen) is int


def test_hook_added_at_a_restart_starts_with_its_initial_state(
    make_trainer, make_controller, make_manager
):
    for hooks in ([], [Counter()]):
        trainer = make_trainer()
        manager = make_manager(trainer, interval=100)
        make_controller(trainer, checkpoint_manager=manager, hooks=hooks).train(2 + 2 * len(hooks))
    assert hooks[0].seen == 2


def test_hook_is_reset_if_recovery_restores_a_checkpoint_from_before_the_hook_was_added(
    experiment, make_task, tmp_path
):
    outputs = []

    def spoil_once(output):
        # The first report, at step 12, precedes the first checkpoint with the hook.
        outputs.append(output)
        if len(outputs) == 1:
            output["training_loss"] = math.nan

    def start(train_steps, hooks, **arguments):
        params = experiment(trainer={"train_steps": train_steps, "recovery_max_trials": 1})
        where = ("train", params, str(tmp_path))
        train_lib.run_experiment(None, make_task(params), *where, hooks=hooks, **arguments)

    counter = Counter()
    start(8, [])
    start(12, [counter], train_actions=[spoil_once])
    assert (len(outputs), counter.seen) == (2, 4)


def test_hook_removed_at_a_restart_is_named_in_a_warning(
    make_trainer, make_controller, make_manager, monkeypatch
):
    warnings = []
    monkeypatch.setattr(logging, "warning", lambda text, *args: warnings.append(text % args))
    for hooks in ([Counter(), Counter()], [Counter()]):
        trainer = make_trainer()
        manager = make_manager(trainer, interval=100)
        make_controller(trainer, checkpoint_manager=manager, hooks=hooks).train(1)
    assert any("Counter_1" in warning for warning in warnings)


def test_hooks_without_a_state_do_not_change_the_checkpoint(
    make_trainer, make_controller, make_manager
):
    trainer = make_trainer()
    manager = make_manager(trainer)
    make_controller(trainer, checkpoint_manager=manager, hooks=[orbit.Hook()])
    assert not hasattr(manager.checkpoint, "hooks")


@pytest.mark.parametrize(
    "value", [object(), np.array([{}, None]), [np.zeros(2)], np.complex64(1), np.longdouble(1)]
)
def test_saving_an_unsupported_hook_state_value_raises_an_error(value):
    with pytest.raises(errors.ConfigTypeError, match="NumPy arrays"):
        hook_module.pack({"Hook": {"file": value}})


def test_hook_names_distinguish_the_states_of_hooks_of_the_same_class():
    def named(name, seen):
        hook = Counter()
        hook.name, hook.seen, hook.average = name, seen, np.full(1, float(seen))
        return hook

    saved = hook_module.HookStates([named("x", 1), named("a/b", 2)]).serialize()
    restored = [named("new", 0), named("a/b", 0), named("x", 0)]
    hook_module.HookStates(restored).deserialize(saved)
    assert [hook.seen for hook in restored] == [0, 2, 1]
    assert [hook.average.tolist() for hook in restored] == [[0.0], [2.0], [1.0]]


def test_duplicate_hook_state_name_raises():
    hooks = [Counter(), Counter(), Counter()]
    hooks[2].name = "Counter_1"
    with pytest.raises(errors.ConfigValueError, match="saved under the name `Counter_1`"):
        hook_module.HookStates(hooks)
