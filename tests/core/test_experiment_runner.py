import contextlib
import json
import math
import pathlib
import threading

import pytest

from official_lite import orbit, telemetry
from official_lite.core import base_trainer, hook_factory, train_lib, writer_factory


class Noting(orbit.Hook):
    """A hook that appends its name to a list before training and after each evaluation."""

    def __init__(self, names: list[str], name: str) -> None:
        self.names, self.name = names, name

    def before_train(self) -> None:
        self.names.append(self.name)

    def after_eval(self, logs) -> None:
        self.names.append(self.name)


@pytest.fixture
def runner(experiment, make_task, tmp_path):
    """Return a function that builds an `OrbitExperimentRunner`."""

    def make(mode="train", trainer=None, **kwargs):
        params = experiment(trainer=trainer or {})
        return train_lib.OrbitExperimentRunner(
            None, make_task(params), mode, params, str(tmp_path), **kwargs
        )

    return make


def _open_files(directory: pathlib.Path) -> list[str]:
    paths = [path.resolve() for path in pathlib.Path("/proc/self/fd").iterdir()]
    return [path.name for path in paths if path.is_relative_to(directory)]


def test_trainer_hooks_run_first_then_config_hooks_then_the_callers_hooks(
    runner, monkeypatch
) -> None:
    names = []
    own = [Noting(names, "of the trainer")]
    monkeypatch.setattr(base_trainer.Trainer, "build_hooks", lambda self: own)
    hook_factory.register_hook("tests/of_the_config")(lambda: Noting(names, "of the config"))
    callers = [Noting(names, "of the caller")]
    runner(trainer={"hooks": ["tests/of_the_config"]}, hooks=callers).run()
    assert names == ["of the trainer", "of the config", "of the caller"]


def test_evaluation_job_runs_only_the_hooks_passed_by_its_caller(runner) -> None:
    names = []
    hook_factory.register_hook("tests/of_a_training")(lambda: Noting(names, "of a training"))
    runner().run()
    config = {"hooks": ["tests/of_a_training"]}
    runner("eval", trainer=config, hooks=[Noting(names, "of the caller")]).run()
    assert names == ["of the caller"]


def test_evaluating_once_does_not_replace_the_checkpoint_of_a_best_checkpoint_hook(
    runner, tmp_path
) -> None:
    def kept():
        return {path.name: path.read_bytes() for path in (tmp_path / "kept").iterdir()}

    # Higher losses count as better, so the first of the two evaluations is the best.
    hook = orbit.hooks.BestCheckpoint("validation_loss", "maximize", "kept")
    runner("train_and_eval", hooks=[hook]).run()
    before = kept()
    assert "best_ckpt-4.index" in before
    # With this direction, the last checkpoint is better than the one that was kept.
    hook = orbit.hooks.BestCheckpoint("validation_loss", "minimize", "kept")
    runner("eval", hooks=[hook]).run()
    assert kept() == before


def test_stall_warning_hook_in_the_config_replaces_the_default_one(runner) -> None:
    def count(hook):
        names = [thread.name for thread in threading.enumerate()]
        counts.append(names.count("stall_warning"))

    counts = []
    hook = orbit.hooks.LambdaHook(after_step=count, every_n_steps=8)
    runner(hooks=[hook]).run()
    runner(trainer={"train_steps": 16, "hooks": ["stall_warning"]}, hooks=[hook]).run()
    assert counts == [1, 1]


def test_writers_in_the_config_receive_the_run_info_and_replace_the_default_writers(
    runner, tmp_path
) -> None:
    class Kept(telemetry.Writer):
        def __init__(self, run, label):
            seen.append((run.model_dir, run.total_steps, run.config["runtime"]["seed"], label))

        def write(self, record):
            seen.append((record.split, record.step))

    seen = []
    writer_factory.register_writer("tests/kept")(Kept)
    runner(trainer={"writers": [{"name": "tests/kept", "label": "x"}]}).run()
    assert seen == [(str(tmp_path), 8, 0, "x"), ("train", 4), ("train", 8)]
    assert not (tmp_path / "metrics.json").exists()
    assert not (tmp_path / "train").exists()


@pytest.mark.parametrize("failing", [False, True])
def test_all_files_are_closed_when_a_run_ends_or_fails(runner, tmp_path, failing) -> None:
    def fail(output):
        assert any("events" in name for name in _open_files(tmp_path))
        if failing:
            raise ZeroDivisionError

    made = runner("train_and_eval", train_actions=[fail])
    if failing:
        with pytest.raises(ZeroDivisionError):
            made.run()
    else:
        made.run()
    assert _open_files(tmp_path) == []
    assert list((tmp_path / "train").glob("events*"))


def test_writers_are_closed_if_the_controller_cannot_be_built(runner) -> None:
    class Closed(telemetry.Writer):
        def __init__(self, run):
            pass

        def write(self, record):
            pass

        def close(self):
            closed.append(True)

    def controller_cls(**kwargs):
        raise ZeroDivisionError

    closed = []
    writer_factory.register_writer("tests/closed")(Closed)
    with pytest.raises(ZeroDivisionError):
        runner(trainer={"writers": ["tests/closed"]}, controller_cls=controller_cls)
    assert closed == [True]


def test_runner_created_with_restore_false_restores_when_restore_is_called(runner) -> None:
    runner().run()
    made = runner(restore=False)
    assert int(made.trainer.global_step) == 0
    assert made.restore().endswith("ckpt-8")
    assert int(made.trainer.global_step) == 8


def test_zero_intervals_disable_checkpoints_and_all_but_the_final_evaluation(
    runner, tmp_path
) -> None:
    runner("train_and_eval", trainer={"checkpoint_interval": 0, "validation_interval": 0}).run()
    assert not list(tmp_path.glob("ckpt*"))
    records = map(json.loads, (tmp_path / "metrics.json").read_text().splitlines())
    assert [r["step"] for r in records if r["split"] == "validation"] == [8]


def test_training_metrics_are_recorded_at_the_log_interval_and_at_each_checkpoint(
    runner, tmp_path
) -> None:
    runner(trainer={"log_interval": 3, "steps_per_loop": 100}).run()
    records = map(json.loads, (tmp_path / "metrics.json").read_text().splitlines())
    # The checkpoint at step 4 and the end of training each add a report.
    assert [r["step"] for r in records] == [3, 4, 6, 8]


def test_training_in_several_train_calls_recovers_from_a_nan_loss_before_the_first_checkpoint(
    runner,
) -> None:
    outputs = []

    def spoil_once(output):
        outputs.append(output)
        if len(outputs) == 1:
            output["training_loss"] = math.nan

    made = runner(
        trainer={"recovery_max_trials": 1, "checkpoint_interval": 8}, train_actions=[spoil_once]
    )
    with contextlib.closing(made):
        for last_step in (4, 8):
            made.controller.train(last_step, checkpoint_at_completion=False)
    assert (made.controller.step, len(outputs)) == (8, 3)
