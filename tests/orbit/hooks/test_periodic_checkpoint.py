import os

import pytest

from official_lite import orbit
from official_lite.orbit import hooks


def _steps(manager):
    return [int(path.rpartition("-")[2]) for path in manager.checkpoints]


@pytest.mark.parametrize("interval", [None, 5])
def test_checkpoints_are_saved_at_multiples_of_the_interval_and_at_the_end(
    make_trainer, make_controller, make_manager, interval
):
    saved = []

    class Listener(orbit.Hook):
        def on_checkpoint(self, path):
            saved.append(os.path.basename(path))

    trainer = make_trainer()
    manager = make_manager(trainer, interval)
    controller = make_controller(
        trainer, hooks=[hooks.PeriodicCheckpoint(10), Listener()], checkpoint_manager=manager
    )
    controller.train(25)
    assert _steps(manager) == ([10, 20, 25] if interval is None else [5, 10, 15, 20, 25])
    assert len(saved) == len(set(saved)) == len(manager.checkpoints)


def test_checkpoint_contains_hook_states_updated_by_the_preceding_evaluation(
    make_trainer, make_controller, make_manager
):
    trainer = make_trainer()
    manager = make_manager(trainer)
    listed = [hooks.PeriodicCheckpoint(10), hooks.EarlyStopping("accuracy", 5, direction="max")]
    make_controller(trainer, hooks=listed, checkpoint_manager=manager).train_and_evaluate(
        25, eval_interval=10
    )
    restored = hooks.EarlyStopping("accuracy", 5)
    trainer = make_trainer()
    controller = make_controller(
        trainer, hooks=[restored], checkpoint_manager=make_manager(trainer)
    )
    controller.restore_checkpoint(manager.checkpoints[0])
    assert (restored.best_value, restored.best_step) == (10, 10)


def test_last_step_is_saved_once_even_if_the_finished_run_is_started_again(
    make_trainer, make_controller, make_manager
):
    saved = []
    for _ in range(2):
        trainer = make_trainer()
        listening = hooks.LambdaHook(on_checkpoint=lambda _, path: saved.append(path))
        make_controller(
            trainer,
            hooks=[hooks.PeriodicCheckpoint(10), listening],
            checkpoint_manager=make_manager(trainer),
        ).train(20)
    assert [os.path.basename(path) for path in saved] == ["ckpt-10", "ckpt-20"]
