import os
import pathlib
from typing import Any

import pytest
import tensorflow as tf

from official_lite.checkpoint import commit, fallback
from official_lite.common import errors


class State:
    """Two variables and two checkpoints of them, all values 1 and all values 2."""

    def __init__(self, directory: pathlib.Path, commits: bool) -> None:
        self.variables = [tf.Variable(tf.zeros([1000])), tf.Variable(0)]
        self.checkpoint = tf.train.Checkpoint(a=self.variables[0], b=self.variables[1])
        self.paths = []
        for number in (1, 2):
            for variable in self.variables:
                variable.assign(tf.ones_like(variable) * number)
            self.paths.append(self.checkpoint.write(str(directory / f"ckpt-{number}")))
            if commits:
                commit.write(self.paths[-1])

    def values(self) -> set[float]:
        return {float(x) for v in self.variables for x in v.numpy().ravel()}


@pytest.fixture(params=[True, False], ids=["committed", "uncommitted"])
def state(tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> State:
    return State(tmp_path, commits=request.param)


def _damage(path: pathlib.Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content)


DAMAGES = [
    ("data-00000-of-00001", "truncated"),
    ("data-00000-of-00001", "missing"),
    ("data-00000-of-00001", "flipped"),
    ("index", "truncated"),
    ("index", "empty"),
    ("index", "flipped"),
]


@pytest.mark.parametrize(("file", "how"), DAMAGES)
def test_damaged_one_gives_way_to_the_one_before(
    state: State, file: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    _damage(pathlib.Path(f"{state.paths[1]}.{file}"), how)
    path, damaged = fallback.restore_newest(state.checkpoint, state.paths)
    assert (path, damaged) == (state.paths[0], [state.paths[1]])
    assert state.values() == {1.0}, "nothing is left of the damaged one"
    assert f"{state.paths[1]} is damaged. Restoring {state.paths[0]} instead" in caplog.text


def test_what_is_made_later_gets_nothing_of_the_damaged_one(tmp_path: pathlib.Path) -> None:
    paths = []
    for number in (1, 2):
        saved = tf.train.Checkpoint(a=tf.Variable(tf.ones([1000])), late=tf.Variable(number))
        paths.append(saved.save(str(tmp_path / f"ckpt-{number}")))
    _damage(pathlib.Path(f"{paths[1]}.data-00000-of-00001"), "flipped")
    checkpoint = tf.train.Checkpoint(a=tf.Variable(tf.zeros([1000])))
    restore = checkpoint.restore

    def restore_when_another_process_has_moved_it(path: str) -> Any:
        if path == paths[0]:
            commit.remove_checkpoint(paths[1])
        return restore(path)

    checkpoint.restore = restore_when_another_process_has_moved_it
    assert fallback.restore_newest(checkpoint, paths)[0] == paths[0]
    checkpoint.late = tf.Variable(0)
    assert int(checkpoint.late) == 1


def test_whole_one_of_another_shape_is_an_error(state: State) -> None:
    other = tf.train.Checkpoint(a=tf.Variable(tf.zeros([3])), b=tf.Variable(0))
    with pytest.raises(errors.CheckpointError, match="The checkpoint is intact"):
        fallback.restore_newest(other, state.paths)
    assert os.path.exists(f"{state.paths[1]}.index")


def test_nothing_whole_is_said_so(state: State) -> None:
    for path in state.paths:
        _damage(pathlib.Path(f"{path}.data-00000-of-00001"), "truncated")
    assert fallback.restore_newest(state.checkpoint, state.paths) == (None, state.paths[::-1])


def test_check_sees_what_the_commit_file_says(tmp_path: pathlib.Path) -> None:
    state = State(tmp_path, commits=False)
    commit.write(state.paths[1], {"optimizer": "SGD"})
    seen = []
    fallback.restore_newest(
        state.checkpoint, state.paths, check=lambda path, said: seen.append((path, said))
    )
    assert seen == [(state.paths[1], {"optimizer": "SGD"})]


def test_disk_that_can_not_be_read_now_damages_nothing(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str) -> None:
        raise tf.errors.UnavailableError(None, None, "try again later")

    monkeypatch.setattr(state.checkpoint, "restore", fail)
    with pytest.raises(tf.errors.UnavailableError):
        fallback.restore_newest(state.checkpoint, state.paths)


def test_what_is_set_aside_is_whole_and_never_overwritten(tmp_path: pathlib.Path) -> None:
    first = fallback.set_aside(State(tmp_path, commits=True).paths[0])
    second = fallback.set_aside(State(tmp_path, commits=True).paths[0])
    assert first == str(tmp_path / "damaged" / "ckpt-1")
    assert second != first
    for folder in (first, second):
        assert len(os.listdir(folder)) == 3
    assert not list(tmp_path.glob("ckpt-1.*"))
