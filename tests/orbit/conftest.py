"""A trainer that counts its steps, and a writer and hooks that record their calls."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from official_lite import orbit, telemetry
from official_lite.checkpoint import async_checkpoint_manager


class CountingTrainer(orbit.StandardTrainer, orbit.StandardEvaluator):
    """A trainer that counts steps in total and since the beginning of its train loop."""

    def __init__(
        self,
        dataset: Any = None,
        options: orbit.StandardTrainerOptions | None = None,
        eval_options: orbit.StandardEvaluatorOptions | None = None,
    ) -> None:
        self.global_step = orbit.utils.create_global_step()
        self.weight = tf.Variable(0.0)
        self.steps_in_interval = tf.Variable(0)
        self.events: list[str] = []
        self.traces = 0
        dataset = dataset or tf.data.Dataset.from_tensors(1.0).repeat()
        orbit.StandardTrainer.__init__(self, dataset, options)
        orbit.StandardEvaluator.__init__(
            self, tf.data.Dataset.from_tensors(1.0).repeat(4), eval_options
        )

    def train_loop_begin(self) -> None:
        self.events.append(f"begin {self.global_step.numpy()}")
        self.steps_in_interval.assign(0)

    def train_step(self, iterator: Any) -> None:
        self.traces += 1
        self.weight.assign_add(next(iterator))
        self.steps_in_interval.assign_add(1)
        self.global_step.assign_add(1)

    def train_loop_end(self) -> dict[str, Any]:
        self.events.append(f"end {self.global_step.numpy()}")
        return {"loss": self.weight.read_value(), "steps": self.steps_in_interval.read_value()}

    def eval_begin(self) -> None:
        self.events.append(f"eval {self.global_step.numpy()}")

    def eval_step(self, iterator: Any) -> None:
        next(iterator)

    def eval_end(self) -> dict[str, Any]:
        return {"accuracy": self.weight.read_value()}


class RecordingWriter(telemetry.Writer):
    """A writer that stores every record."""

    def __init__(self) -> None:
        self.records: list[telemetry.Record] = []
        self.is_closed = False

    def write(self, record: telemetry.Record) -> None:
        self.records.append(record)

    def close(self) -> None:
        self.is_closed = True

    def steps(self, split: str) -> list[int]:
        return [record.step for record in self.records if record.split == split]


class Log(orbit.Hook):
    """A hook that records its events, with `iter` for step events."""

    def __init__(self, name: str = "hook", every_n_steps: int = 1) -> None:
        self.name, self.every_n_steps = name, every_n_steps
        self.events: list[str] = []

    def before_train(self) -> None:
        self.events.append("before_train")

    def before_step(self) -> None:
        self.events.append(f"before_step {self.iter}")

    def after_step(self) -> None:
        self.events.append(f"after_step {self.iter}")

    def after_epoch(self) -> None:
        self.events.append("after_epoch")

    def after_eval(self, logs: Any) -> None:
        self.events.append(f"after_eval {sorted(logs)}")

    def on_checkpoint(self, path: str) -> None:
        self.events.append(f"on_checkpoint {os.path.basename(path)}")

    def on_exception(self, error: BaseException) -> None:
        self.events.append(f"on_exception {error}")

    def after_train(self, success: bool) -> None:
        self.events.append(f"after_train {success}")


class FailAt(orbit.Hook):
    """A hook that raises after the given step."""

    every_n_steps = 1

    def __init__(self, step: int | None) -> None:
        self.step = step

    def after_step(self) -> None:
        if self.controller.global_step.numpy() == self.step:
            raise ArithmeticError("bad step")


@pytest.fixture
def make_trainer() -> type[CountingTrainer]:
    return CountingTrainer


@pytest.fixture
def make_log() -> type[Log]:
    return Log


@pytest.fixture
def fail_at() -> type[FailAt]:
    return FailAt


@pytest.fixture
def recording_writer() -> RecordingWriter:
    return RecordingWriter()


@pytest.fixture
def make_controller(recording_writer: RecordingWriter) -> Callable[..., orbit.Controller]:
    def make(runner: Any, **kwargs: Any) -> orbit.Controller:
        arguments: dict[str, Any] = {
            "trainer": runner,
            "evaluator": runner,
            "global_step": runner.global_step,
            "steps_per_loop": 100,
            "writers": [recording_writer],
        }
        return orbit.Controller(**(arguments | kwargs))

    return make


@pytest.fixture
def make_manager(tmp_path: Any) -> Callable[..., tf.train.CheckpointManager]:
    def make(trainer: CountingTrainer, interval: int | None = None) -> tf.train.CheckpointManager:
        return async_checkpoint_manager.AsyncCheckpointManager(
            tf.train.Checkpoint(step=trainer.global_step, weight=trainer.weight),
            str(tmp_path / "model"),
            max_to_keep=None,
            step_counter=trainer.global_step,
            checkpoint_interval=interval,
        )

    return make
