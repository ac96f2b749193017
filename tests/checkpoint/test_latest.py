import os
import pathlib

import pytest
import tensorflow as tf

from official_lite.checkpoint import commit, latest


def _save(directory: pathlib.Path, *numbers: int, commits: bool = True) -> list[str]:
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(v=tf.Variable(1.0)), str(directory), max_to_keep=None
    )
    paths = [manager.save(checkpoint_number=number) for number in numbers]
    if commits:
        for path in paths:
            commit.write(path)
    return paths


def test_latest_checkpoint_has_the_highest_step_regardless_of_the_write_order(
    tmp_path: pathlib.Path,
) -> None:
    paths = _save(tmp_path, 100, 9, 20)
    assert latest.latest_checkpoint(str(tmp_path)) == paths[0]
    assert latest.find_checkpoints(str(tmp_path)) == [paths[1], paths[2], paths[0]]


def test_checkpoint_without_a_commit_file_is_skipped_if_another_has_one(
    tmp_path: pathlib.Path,
) -> None:
    paths = _save(tmp_path, 1, 2)
    os.remove(commit.path_of(paths[1]))
    assert latest.latest_checkpoint(str(tmp_path)) == paths[0]


def test_latest_checkpoint_follows_the_checkpoint_state_file_if_there_are_no_commit_files(
    tmp_path: pathlib.Path,
) -> None:
    paths = _save(tmp_path, 5, 3, commits=False)
    assert latest.latest_checkpoint(str(tmp_path)) == paths[1]
    assert latest.find_checkpoints(str(tmp_path)) == paths


def test_latest_checkpoint_skips_a_damaged_checkpoint(tmp_path: pathlib.Path) -> None:
    paths = _save(tmp_path, 1, 2)
    pathlib.Path(f"{paths[1]}.index").write_bytes(b"")
    assert latest.latest_checkpoint(str(tmp_path)) == paths[0]


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", None])
def test_checkpoints_are_found_if_the_checkpoint_state_file_is_damaged_or_missing(
    tmp_path: pathlib.Path, content: bytes | None
) -> None:
    for commits in (True, False):
        directory = tmp_path / str(commits)
        paths = _save(directory, 1, 2, commits=commits)
        state = directory / "checkpoint"
        state.unlink() if content is None else state.write_bytes(content)
        assert latest.latest_checkpoint(str(directory)) == paths[1]


def test_paths_in_the_checkpoint_state_file_cannot_point_outside_the_directory(
    tmp_path: pathlib.Path,
) -> None:
    (outside,) = _save(tmp_path / "outside", 9, commits=False)
    (inside,) = _save(tmp_path / "run", 1, commits=False)
    (tmp_path / "run" / "checkpoint").write_text(
        f'model_checkpoint_path: "{outside}"\nall_model_checkpoint_paths: "../outside/ckpt-9"\n'
    )
    assert latest.latest_checkpoint(str(tmp_path / "run")) == inside


def test_checkpoint_manager_ignores_checkpoints_older_than_every_one_in_its_state_file(
    tmp_path: pathlib.Path,
) -> None:
    paths = _save(tmp_path, 1, 2, 3)
    tf.compat.v1.train.update_checkpoint_state(str(tmp_path), paths[2], paths[1:])
    assert latest.find_managed(str(tmp_path), "ckpt") == paths[1:]
    (tmp_path / "checkpoint").unlink()
    assert latest.find_managed(str(tmp_path), "ckpt") == paths


def test_checkpoint_manager_finds_newer_checkpoints_that_its_state_file_does_not_list(
    tmp_path: pathlib.Path,
) -> None:
    paths = _save(tmp_path, 1, 2, 3)
    # A process may be killed between committing a checkpoint and updating the `checkpoint` file.
    tf.compat.v1.train.update_checkpoint_state(str(tmp_path), paths[2], [paths[0], paths[2]])
    assert latest.find_managed(str(tmp_path), "ckpt") == paths


def test_empty_or_missing_directory_has_no_checkpoint(tmp_path: pathlib.Path) -> None:
    assert latest.latest_checkpoint(str(tmp_path)) is None
    assert latest.latest_checkpoint(str(tmp_path / "nowhere")) is None
