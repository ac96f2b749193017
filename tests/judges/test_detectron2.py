"""Our classes meet the requirements of detectron2's tests of hooks, event storage and schedulers.

The requirements are restated here; nothing of detectron2 is needed or stored.
"""

import contextlib
import math
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from official_lite import orbit, telemetry
from official_lite.modeling.optimization import lr_schedule
from official_lite.orbit import hooks
from tests import rounding


class _Trainer(orbit.StandardTrainer, orbit.StandardEvaluator):
    """A trainer that counts its steps and reports the count as its loss."""

    def __init__(self) -> None:
        self.global_step = orbit.utils.create_global_step()
        self.weight = tf.Variable(0.0)
        orbit.StandardTrainer.__init__(self, tf.data.Dataset.from_tensors(1.0).repeat())
        orbit.StandardEvaluator.__init__(self, tf.data.Dataset.from_tensors(1.0))

    def train_step(self, iterator: Any) -> None:
        self.weight.assign_add(next(iterator))
        self.global_step.assign_add(1)

    def train_loop_end(self) -> dict[str, Any]:
        return {"loss": self.weight.read_value()}

    def eval_step(self, iterator: Any) -> None:
        next(iterator)

    def eval_end(self) -> dict[str, Any]:
        return {"accuracy": -abs(self.weight.read_value() - 4.0)}


class _Events(orbit.Hook):
    """A hook that logs each of its calls."""

    every_n_steps = 1

    def __init__(self, name: str, log: list[str], fails_at: int | None = None) -> None:
        self.name, self.log, self.fails_at = name, log, fails_at

    def before_train(self) -> None:
        self.log.append(f"{self.name} before_train")

    def before_step(self) -> None:
        self.log.append(f"{self.name} before_step {self.iter}")

    def after_step(self) -> None:
        self.log.append(f"{self.name} after_step {self.iter}")
        if self.iter == self.fails_at:
            raise FloatingPointError("the loss is NaN")

    def after_train(self, success: bool) -> None:
        self.log.append(f"{self.name} after_train {success}")


class _Records(telemetry.Writer):
    def __init__(self) -> None:
        self.records: list[telemetry.Record] = []

    def write(self, record: telemetry.Record) -> None:
        self.records.append(record)


def _controller(*all_hooks: orbit.Hook, trainer: Any = None, **kwargs: Any) -> orbit.Controller:
    trainer = trainer or _Trainer()
    return orbit.Controller(
        global_step=trainer.global_step,
        trainer=trainer,
        evaluator=trainer,
        hooks=all_hooks,
        **{"steps_per_loop": 100, "writers": [_Records()], **kwargs},
    )


def _manager(trainer: _Trainer, path: pathlib.Path, interval: int) -> tf.train.CheckpointManager:
    return tf.train.CheckpointManager(
        tf.train.Checkpoint(step=trainer.global_step, weight=trainer.weight),
        str(path),
        max_to_keep=None,
        step_counter=trainer.global_step,
        checkpoint_interval=interval,
    )


# Hooks.


def test_hooks_run_before_and_after_training_and_each_step_in_list_order() -> None:
    log: list[str] = []
    _controller(_Events("a", log), _Events("b", log)).train(2)
    events = ["before_train"]
    events += ["before_step 0", "after_step 0", "before_step 1", "after_step 1", "after_train True"]
    assert log == [f"{name} {event}" for event in events for name in "ab"]


@pytest.mark.parametrize("fails_at", [0, 4])
def test_failed_training_calls_after_train_of_every_hook_and_skips_evaluation(
    fails_at: int,
) -> None:
    log: list[str] = []
    records = _Records()
    controller = _controller(_Events("a", log, fails_at), _Events("b", log), writers=[records])
    with pytest.raises(FloatingPointError):
        controller.train_and_evaluate(5)
    assert not [record for record in records.records if record.split == "validation"]
    assert log[-2:] == ["a after_train False", "b after_train False"]
    assert f"a before_step {fails_at + 1}" not in log


@pytest.mark.parametrize("period", [1, 3])
def test_hook_with_every_n_steps_runs_at_multiples_of_n(period: int) -> None:
    log: list[str] = []
    hook = _Events("a", log)
    hook.every_n_steps = period
    _controller(hook).train(7)
    steps = [int(line.split()[-1]) + 1 for line in log if "after_step" in line]
    assert steps == [step for step in range(1, 8) if step % period == 0]


def test_lambda_hook_functions_can_read_trainer_and_iteration() -> None:
    seen: list[Any] = []
    trainer = _Trainer()
    hook = hooks.LambdaHook(
        before_train=lambda hook: seen.append("before"),
        after_step=lambda hook: seen.append((hook.iter, hook.trainer)),
        after_train=lambda hook: seen.append("after"),
    )
    _controller(hook, trainer=trainer).train(2)
    assert seen == ["before", (0, trainer), (1, trainer), "after"]


@pytest.mark.parametrize(("steps", "period"), [(5, 2), (3, 10)])
def test_evaluation_runs_every_eval_interval_and_at_the_end_of_training(
    steps: int, period: int
) -> None:
    records = _Records()
    _controller(writers=[records]).train_and_evaluate(steps, eval_interval=period)
    evaluated = [record.step for record in records.records if record.split == "validation"]
    assert evaluated == sorted({*range(period, steps + 1, period), steps})


@pytest.mark.parametrize(("steps", "interval"), [(5, 2), (4, 4)])
def test_checkpoints_are_saved_every_checkpoint_interval_and_at_the_end_of_training(
    tmp_path: pathlib.Path, steps: int, interval: int
) -> None:
    trainer = _Trainer()
    manager = _manager(trainer, tmp_path, interval)
    _controller(trainer=trainer, checkpoint_manager=manager).train(steps)
    saved = [int(path.rpartition("-")[2]) for path in manager.checkpoints]
    assert sorted({*saved} - {0}) == sorted({*range(interval, steps + 1, interval), steps})


def test_resumed_training_continues_at_the_step_of_its_checkpoint(tmp_path: pathlib.Path) -> None:
    trainer = _Trainer()
    manager = _manager(trainer, tmp_path, 3)
    _controller(trainer=trainer, checkpoint_manager=manager).train(3)
    log: list[str] = []
    again = _Trainer()
    manager = _manager(again, tmp_path, 3)
    _controller(_Events("a", log), trainer=again, checkpoint_manager=manager).train(5)
    assert [line for line in log if "after_step" in line] == ["a after_step 3", "a after_step 4"]
    assert float(again.weight) == 5.0


def test_hook_state_is_restored_from_the_checkpoint(tmp_path: pathlib.Path) -> None:
    class Remembers(orbit.Hook):
        every_n_steps = 1
        total = 0

        def after_step(self) -> None:
            self.total += 1

        def state_dict(self) -> dict[str, Any]:
            return {"total": self.total}

        def load_state_dict(self, state: Any) -> None:
            self.total = state["total"]

    for steps in (2, 5):
        hook, trainer = Remembers(), _Trainer()
        manager = _manager(trainer, tmp_path, 1)
        _controller(hook, trainer=trainer, checkpoint_manager=manager).train(steps)
        assert hook.total == steps


@pytest.mark.parametrize(("direction", "best"), [("maximize", 4), ("minimize", 8)])
def test_best_checkpoint_hook_keeps_the_step_with_the_largest_or_smallest_metric(
    tmp_path: pathlib.Path, direction: str, best: int
) -> None:
    trainer = _Trainer()
    manager = _manager(trainer, tmp_path, 2)
    hook = hooks.BestCheckpoint("accuracy", direction)
    controller = _controller(hook, trainer=trainer, checkpoint_manager=manager)
    controller.train_and_evaluate(8, eval_interval=2)
    [index] = (tmp_path).rglob("best*.index")
    assert index.stem.endswith(f"-{best}")


@pytest.mark.parametrize("interval", [2, 5])
def test_writers_receive_training_metrics_every_log_interval_and_at_the_end_of_training(
    interval: int,
) -> None:
    records = _Records()
    _controller(writers=[records], log_interval=interval, steps_per_loop=1).train(5)
    steps = [record.step for record in records.records if record.split == "train"]
    assert steps == sorted({*range(interval, 6, interval), 5})


def test_scalar_that_a_hook_puts_after_a_step_is_reported_with_that_step() -> None:
    records = _Records()
    hook = hooks.LambdaHook(
        after_step=lambda hook: telemetry.put_scalar("twice", 2.0 * hook.controller.step)
    )
    _controller(hook, writers=[records], log_interval=1, steps_per_loop=1).train(3)
    assert [record.values["twice"] for record in records.records] == [2.0, 4.0, 6.0]


# The event storage.


def test_scalar_history_drops_old_values_and_computes_median_and_mean_of_the_window() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 8.0, 3.0]
    history = telemetry.ScalarHistory(max_length=5)
    for step, value in enumerate(values):
        history.add(value, step)
    assert history.latest() == 3.0
    assert history.values() == [(value, step) for step, value in enumerate(values)][1:]
    for window in (1, 2, 3, 5):
        assert history.median(window) == np.median(values[-window:])
        assert history.mean(window) == pytest.approx(np.mean(values[-window:]))
    assert history.global_mean() == pytest.approx(np.mean(values))
    with pytest.raises(LookupError):
        telemetry.EventStorage().history("loss")


def test_smoothing_hint_selects_the_mean_or_the_latest_value() -> None:
    storage = telemetry.EventStorage()
    for value in (1.0, 2.0, 6.0):
        storage.put_scalar("loss", value)
        storage.put_scalar("lr", value, smoothing_hint=False)
    assert storage.take().scalars == {"loss": 3.0, "lr": 6.0}
    # Each value is returned only once.
    assert storage.take().scalars == {}


@pytest.mark.parametrize("scopes", [[], ["a", "b", "c"]])
def test_name_scopes_prefix_the_names_of_scalars(scopes: list[str]) -> None:
    storage = telemetry.EventStorage()
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(telemetry.name_scope(scope))
        storage.put_scalar("loss", 1.0)
    storage.put_scalar("outside", 1.0)
    assert set(storage.take().scalars) == {"/".join([*scopes, "loss"]), "outside"}


def test_innermost_event_storage_is_current_until_its_context_ends() -> None:
    with telemetry.EventStorage() as outer:
        with contextlib.suppress(ZeroDivisionError), telemetry.EventStorage() as inner:
            assert telemetry.get_event_storage() is inner
            raise ZeroDivisionError
        assert telemetry.get_event_storage() is outer


@pytest.mark.parametrize("kind", [np.float32, np.uint8])
def test_event_storage_returns_each_image_and_histogram_only_once(kind: type) -> None:
    storage = telemetry.EventStorage()
    storage.put_image("i", np.ones([4, 5, 3], kind) * (255 if kind is np.uint8 else 1))
    storage.put_histogram("h", np.arange(10.0))
    taken = storage.take()
    np.testing.assert_array_equal(taken.images["i"], np.full([4, 5, 3], 255))
    assert taken.histograms["h"].counts.sum() == 10
    assert (storage.take().images, storage.take().histograms) == ({}, {})


# Schedules: 30 steps at a rate of 5, after a warmup of 5 steps from a thousandth of that rate.

_START, _RATE, _WARMUP, _STEPS = 0.005, 5.0, 5, 30
# A schedule computes a learning rate in about eight operations.
_TOLERANCE = rounding.tolerance(roundings=8)


def test_multi_step_learning_rate_with_warmup_follows_its_formula() -> None:
    values = [_RATE, _RATE / 10, _RATE / 100, _RATE / 1000]
    steps = lr_schedule.PiecewiseConstantDecayWithOffset(boundaries=[9, 14, 19], values=values)
    schedule = lr_schedule.LinearWarmup(steps, _WARMUP, _START)
    wanted = [values[sum(s >= milestone for milestone in (10, 15, 20))] for s in range(_STEPS)]
    wanted[:_WARMUP] = [0.005, 1.004, 2.003, 3.002, 4.001]
    found = [float(schedule(step)) for step in range(_STEPS)]
    assert found == pytest.approx(wanted, rel=_TOLERANCE)


def test_cosine_learning_rate_with_warmup_follows_its_formula() -> None:
    cosine = lr_schedule.CosineDecayWithOffset(initial_learning_rate=_RATE, decay_steps=_STEPS)
    schedule = lr_schedule.LinearWarmup(cosine, _WARMUP, _START)
    for step in range(_STEPS + 1):
        wanted = _RATE * (1 + math.cos(math.pi * max(step, _WARMUP) / _STEPS)) / 2
        if step < _WARMUP:
            wanted = _START + (wanted - _START) * step / _WARMUP
        assert float(schedule(step)) == pytest.approx(wanted, abs=_RATE * _TOLERANCE), step
