import json
import math
import os
import pathlib
import shutil
from typing import Any, NoReturn

import pytest
import tensorflow as tf

from official_lite.checkpoint import commit, committed_checkpoint_manager
from official_lite.common import errors

Manager = committed_checkpoint_manager.CommittedCheckpointManager


class Run:
    """A checkpoint manager, and a step variable that is also the whole checkpoint."""

    def __init__(self, directory: pathlib.Path, cls: Any = Manager, **kwargs: Any) -> None:
        self.step = tf.Variable(0, dtype=tf.int64)
        self.initialized = 0
        arguments = {"max_to_keep": 2, "step_counter": self.step, "checkpoint_interval": 1}
        self.manager = cls(
            tf.train.Checkpoint(step=self.step),
            str(directory),
            init_fn=self._initialize,
            **(arguments | kwargs),
        )

    def save(self, *steps: int) -> str | None:
        for step in steps:
            self.step.assign(step)
            path = self.manager.save(checkpoint_number=step)
        return path

    def _initialize(self) -> None:
        self.initialized += 1


def _steps(directory: pathlib.Path) -> list[int]:
    return sorted(commit.step_of(p.name.removesuffix(".index")) for p in directory.glob("*.index"))


def _truncate(directory: pathlib.Path, step: int) -> None:
    (directory / f"ckpt-{step}.data-00000-of-00001").write_bytes(b"")


def test_commit_file_contains_the_run_description(tmp_path: pathlib.Path) -> None:
    path = Run(tmp_path, describe=lambda: {"global_batch_size": 8}).save(3)
    assert json.loads(pathlib.Path(commit.path_of(path)).read_text())["state"] == {
        "global_batch_size": 8
    }
    assert tf.train.latest_checkpoint(str(tmp_path)) == path, "TensorFlow's own tools find it too"


def test_older_checkpoints_are_removed_only_when_the_new_one_is_committed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    run.save(1, 2, 3)
    assert _steps(tmp_path) == [2, 3]
    assert len(commit.list_committed(str(tmp_path))) == 2

    def fail(*args: Any) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(commit.files, "write_text", fail)
    with pytest.raises(OSError, match="gone"):
        run.save(4)
    assert _steps(tmp_path) == [2, 3], "the files of the failed save are removed"


def test_checkpoint_of_a_step_whose_save_failed_can_be_saved_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    with monkeypatch.context() as context:
        context.setattr(commit, "write", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run.save(4)
    assert run.save(4).endswith("ckpt-4")


def test_damaged_checkpoint_is_set_aside_and_training_resumes_from_the_previous_one(
    tmp_path: pathlib.Path,
) -> None:
    Run(tmp_path).save(1, 2, 3)
    _truncate(tmp_path, 3)
    run = Run(tmp_path)
    assert run.manager.restore_or_initialize().endswith("ckpt-2")
    assert (int(run.step), run.initialized) == (2, 0)
    assert len(os.listdir(tmp_path / "damaged" / "ckpt-3")) == 3
    assert run.manager.latest_checkpoint.endswith("ckpt-2")
    run.save(3, 4)
    assert _steps(tmp_path) == [3, 4]


def test_checkpoint_manager_with_moves_damaged_false_leaves_a_damaged_checkpoint_in_place(
    tmp_path: pathlib.Path,
) -> None:
    Run(tmp_path).save(1, 2)
    _truncate(tmp_path, 2)
    before = sorted(os.listdir(tmp_path))
    run = Run(tmp_path, moves_damaged=False)
    assert run.manager.restore_or_initialize().endswith("ckpt-1")
    assert sorted(os.listdir(tmp_path)) == before


def test_restoring_raises_each_time_and_moves_no_file_if_all_checkpoints_are_damaged(
    tmp_path: pathlib.Path,
) -> None:
    Run(tmp_path).save(1, 2)
    for step in (1, 2):
        _truncate(tmp_path, step)
    before = sorted(os.listdir(tmp_path))
    for _ in range(2):
        run = Run(tmp_path)
        with pytest.raises(errors.CheckpointError, match=r"ckpt-2, ckpt-1\. "):
            run.manager.restore_or_initialize()
        assert run.initialized == 0
    assert sorted(os.listdir(tmp_path)) == before


def test_training_does_not_start_from_scratch_if_its_only_checkpoint_is_damaged(
    tmp_path: pathlib.Path,
) -> None:
    Run(tmp_path).save(1)
    _truncate(tmp_path, 1)
    run = Run(tmp_path)
    with pytest.raises(errors.CheckpointError, match="can be restored: ckpt-1"):
        run.manager.restore_or_initialize()
    assert run.initialized == 0
    assert _steps(tmp_path) == [1]


def test_second_checkpoint_save_at_the_same_step_is_skipped(tmp_path: pathlib.Path) -> None:
    saves = []

    def on_save() -> Any:
        saves.append(int(run.step))
        return lambda: None

    run = Run(tmp_path)
    run.manager.on_save = on_save
    run.save(1, 2)
    assert run.manager.save(checkpoint_number=2, check_interval=False) is None
    assert saves == [1, 2], "`on_save` is not called for a skipped save"


def test_interrupted_first_save_is_set_aside_and_training_starts_from_scratch(
    tmp_path: pathlib.Path,
) -> None:
    Run(tmp_path).save(1)
    for name in ("checkpoint", "ckpt-1.commit.json"):
        (tmp_path / name).unlink()
    _truncate(tmp_path, 1)
    run = Run(tmp_path)
    assert run.manager.restore_or_initialize() is None
    assert run.initialized == 1
    assert (tmp_path / "damaged" / "ckpt-1").is_dir()


def test_restoring_a_checkpoint_of_a_different_optimizer_raises_and_moves_no_files(
    tmp_path: pathlib.Path,
) -> None:
    def describe(name: str) -> Any:
        return lambda: {"optimizer": {"class": name, "count": 1, "sha256": "x"}}

    Run(tmp_path, describe=describe("Adam")).save(1, 2)
    run = Run(tmp_path, describe=describe("AdamW"))
    with pytest.raises(errors.CheckpointError, match=r"Adam;.*AdamW"):
        run.manager.restore_or_initialize()
    assert int(run.step) == 0
    assert _steps(tmp_path) == [1, 2]


def test_training_resumes_in_a_directory_of_tensorflows_checkpoint_manager(
    tmp_path: pathlib.Path,
) -> None:
    Run(tmp_path, cls=tf.train.CheckpointManager).save(1, 2)
    run = Run(tmp_path)
    assert run.manager.restore_or_initialize().endswith("ckpt-2")
    run.save(3)
    assert [commit.step_of(p) for p in commit.list_committed(str(tmp_path))] == [2, 3]
    assert _steps(tmp_path) == [2, 3]


def test_next_save_removes_unfinished_checkpoint_files_of_a_killed_process(
    tmp_path: pathlib.Path,
) -> None:
    Run(tmp_path).save(1, 2)
    for name in ("index", "data-00000-of-00001"):
        shutil.copy(tmp_path / f"ckpt-2.{name}", tmp_path / f"ckpt-9.{name}")
    (tmp_path / "ckpt-9_temp").mkdir()
    run = Run(tmp_path)
    assert run.manager.restore_or_initialize().endswith("ckpt-2"), "not committed"
    run.save(3)
    assert _steps(tmp_path) == [2, 3]
    assert not (tmp_path / "ckpt-9_temp").exists()


def test_training_resumes_if_the_checkpoint_state_file_is_damaged(
    tmp_path: pathlib.Path,
) -> None:
    Run(tmp_path).save(1, 2)
    (tmp_path / "checkpoint").write_bytes(b"\xff\xfe")
    run = Run(tmp_path)
    assert run.manager.restore_or_initialize().endswith("ckpt-2")
    run.save(3)
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("ckpt-3")


def test_checkpoint_kept_by_keep_checkpoint_every_n_hours_is_never_removed(
    tmp_path: pathlib.Path,
) -> None:
    run = Run(tmp_path, max_to_keep=1, keep_checkpoint_every_n_hours=1e-9)
    run.save(1, 2, 3)
    assert _steps(tmp_path) == [1, 2, 3]
    assert [commit.step_of(path) for path in run.manager.checkpoints] == [3]
    run = Run(tmp_path, max_to_keep=1)
    run.manager.restore_or_initialize()
    run.save(4)
    assert _steps(tmp_path) == [1, 2, 4]


def test_save_raises_unless_120_percent_of_the_last_checkpoint_size_is_free(
    tmp_path: pathlib.Path, monkeypatch
) -> None:
    run = Run(tmp_path)
    path = run.save(1)
    needed = math.ceil(1.2 * sum(os.path.getsize(each) for each in commit.list_files(path)))
    for free, is_enough in ((needed - 1, False), (needed, True)):
        usage = shutil._ntuple_diskusage(0, 0, free)
        monkeypatch.setattr(shutil, "disk_usage", lambda path, usage=usage: usage)
        if is_enough:
            run.save(2)
        else:
            with pytest.raises(errors.DiskFullError, match=f"{free:,} bytes are free"):
                run.save(2)
            assert _steps(tmp_path) == [1]


def test_checkpoint_is_saved_if_the_free_disk_space_is_unknown(tmp_path: pathlib.Path) -> None:
    committed_checkpoint_manager.require_space(str(tmp_path / "nowhere"), 10**18)
    committed_checkpoint_manager.require_space("gs://bucket/run", 10**18)


def test_checkpoint_that_is_saved_again_is_not_committed_until_its_files_are_complete(
    tmp_path: pathlib.Path,
) -> None:
    run = Run(tmp_path, step_counter=None, checkpoint_interval=None)
    path = run.save(4)
    committed = []
    run.manager.on_save = lambda: lambda: committed.append(os.path.exists(commit.path_of(path)))
    run.save(4)
    assert committed == [False]
    assert commit.find_damage(path) is None


def test_checkpoint_stays_complete_if_saving_it_again_fails_before_its_files_are_replaced(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, step_counter=None, checkpoint_interval=None)
    path = run.save(4)
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    with monkeypatch.context() as context:
        full = tf.errors.ResourceExhaustedError(None, None, "No space left on device")
        context.setattr(tf.train.CheckpointManager, "save", lambda *args: _raise(full))
        with pytest.raises(errors.DiskFullError, match="Earlier checkpoints are unchanged"):
            run.save(4)
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before
    assert commit.read(path) is not None


def _raise(error: Exception) -> NoReturn:
    raise error


def test_reader_restores_the_newer_checkpoint_if_training_has_removed_the_one_it_listed(
    tmp_path: pathlib.Path,
) -> None:
    training = Run(tmp_path, max_to_keep=1)
    training.save(1)

    def train_on() -> dict[str, Any]:
        # A reader describes itself after it has listed the checkpoints, and before it reads one.
        if _steps(tmp_path) == [1]:
            training.save(2)
        return {}

    reader = Run(tmp_path, describe=train_on, moves_damaged=False)
    assert reader.manager.restore_or_initialize() == str(tmp_path / "ckpt-2")
    assert (int(reader.step.numpy()), reader.initialized) == (2, 0)
