import os
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.checkpoint import async_checkpoint_manager, commit, fallback, model_state
from official_lite.common import errors
from official_lite.orbit import checkpointing


class State:
    """Two variables and two checkpoints of them: one with all values 1, one with all values 2."""

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


@pytest.fixture
def state(tmp_path: pathlib.Path) -> State:
    return State(tmp_path, commits=True)


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


@pytest.mark.parametrize(
    ("commits", "file", "how"),
    [
        (False, "data-00000-of-00001", "truncated"),
        (True, "data-00000-of-00001", "missing"),
        (True, "data-00000-of-00001", "flipped"),
        (False, "data-00000-of-00001", "flipped"),
        (False, "index", "truncated"),
        (False, "index", "empty"),
        (True, "index", "flipped"),
        (False, "index", "flipped"),
    ],
)
def test_previous_checkpoint_is_restored_if_the_newest_is_damaged(
    tmp_path: pathlib.Path, commits: bool, file: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    state = State(tmp_path, commits)
    _damage(pathlib.Path(f"{state.paths[1]}.{file}"), how)
    path, damaged = fallback.restore_newest(state.checkpoint, state.paths)
    assert (path, damaged) == (state.paths[0], [state.paths[1]])
    assert state.values() == {1.0}, "no value is from the damaged checkpoint"
    assert f"{state.paths[1]} is damaged. Restoring {state.paths[0]} instead" in caplog.text


def test_variable_created_after_a_restore_gets_its_value_from_that_checkpoint(
    tmp_path: pathlib.Path,
) -> None:
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


def test_shape_mismatch_with_an_intact_checkpoint_raises_checkpoint_error(state: State) -> None:
    other = tf.train.Checkpoint(a=tf.Variable(tf.zeros([3])), b=tf.Variable(0))
    with pytest.raises(errors.CheckpointError, match="The checkpoint is intact"):
        fallback.restore_newest(other, state.paths)
    assert os.path.exists(f"{state.paths[1]}.index")


def test_restore_newest_returns_all_damaged_checkpoints_if_none_is_intact(state: State) -> None:
    for path in state.paths:
        _damage(pathlib.Path(f"{path}.data-00000-of-00001"), "truncated")
    assert fallback.restore_newest(state.checkpoint, state.paths) == (None, state.paths[::-1])


def test_compatibility_check_receives_the_run_description_from_the_commit_file(
    tmp_path: pathlib.Path,
) -> None:
    state = State(tmp_path, commits=False)
    commit.write(state.paths[1], {"optimizer": "SGD"})
    seen = []
    fallback.restore_newest(
        state.checkpoint, state.paths, check=lambda path, said: seen.append((path, said))
    )
    assert seen == [(state.paths[1], {"optimizer": "SGD"})]


def test_transient_file_system_error_is_raised_and_not_treated_as_damage(
    state: State, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    def fail(path: str) -> None:
        raise tf.errors.UnavailableError(None, None, "try again later")

    monkeypatch.setattr(state.checkpoint, "restore", fail)
    manager = async_checkpoint_manager.AsyncCheckpointManager(state.checkpoint, tmp_path, 2)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(tf.errors.UnavailableError):
        manager.restore_or_initialize()
    assert sorted(tmp_path.iterdir()) == before


def test_damaged_checkpoints_are_moved_away_without_overwriting_earlier_damaged_ones(
    tmp_path: pathlib.Path,
) -> None:
    first = fallback.set_aside(State(tmp_path, commits=True).paths[0])
    second = fallback.set_aside(State(tmp_path, commits=True).paths[0])
    assert first == str(tmp_path / "damaged" / "ckpt-1")
    assert second != first
    for folder in (first, second):
        assert len(os.listdir(folder)) == 3
    assert not list(tmp_path.glob("ckpt-1.*"))


class _State(tf.train.experimental.PythonState):
    def serialize(self) -> str:
        return "x"

    def deserialize(self, string_value: str) -> None:
        del string_value


def _write_items(directory: pathlib.Path, **items) -> str:
    return tf.train.Checkpoint(**items).write(str(directory / "ckpt-1"))


def test_error_for_an_incomplete_checkpoint_names_missing_variables_and_variables_of_another_shape(
    tmp_path,
) -> None:
    path = _write_items(tmp_path, a=tf.Variable([1.0]), b=tf.Variable([1.0, 1.0]))
    a = tf.Variable([0.0])
    wanted = tf.train.Checkpoint(a=a, b=tf.Variable([0.0]), c=tf.Variable(0.0), d=_State())
    with pytest.raises(
        errors.CheckpointError,
        match=r"2 of 4.*\(c: \[\]\).*`d`.*\(b: \[2\] in the checkpoint, \[1\] in this run\)",
    ):
        fallback.require_complete(wanted, path)
    assert a.numpy() == 0.0


def test_restore_accepts_a_checkpoint_without_optional_variables_and_hook_states(
    tmp_path,
) -> None:
    path = _write_items(tmp_path, a=tf.Variable(1.0))
    extra = tf.Variable(0.0)
    wanted = tf.train.Checkpoint(
        a=tf.Variable(0.0), b=extra, hooks=_State(), skipped_batches=tf.Variable(0)
    )
    fallback.require_complete(wanted, path, optional=[extra])


def test_variables_of_an_unbuilt_model_may_be_missing_from_a_checkpoint(tmp_path) -> None:
    path = _write_items(tmp_path, a=tf.Variable(1.0))
    model = keras.Sequential([keras.layers.Dense(2)])
    fallback.require_complete(tf.train.Checkpoint(a=tf.Variable(0.0), model=model), path)


def test_variable_with_two_names_is_not_missing_if_saved_under_one_of_them(tmp_path) -> None:
    variable = tf.Variable(0.0)
    path = _write_items(tmp_path, first=tf.Variable(1.0))
    wanted = tf.train.Checkpoint(first=variable, second=variable)
    fallback.require_complete(wanted, path)
    wanted.read(path)
    assert variable.numpy() == 1.0


def test_weight_list_of_a_different_length_than_in_the_checkpoint_raises(tmp_path) -> None:
    saved, fewer = ([tf.Variable(tf.zeros([2])) for _ in range(count)] for count in (3, 2))
    path = _write_items(tmp_path, hidden_weights=saved)
    with pytest.raises(
        errors.CheckpointError, match=r"hidden_weights` \(3 in the checkpoint, 2 in this run\)"
    ):
        fallback.require_complete(tf.train.Checkpoint(hidden_weights=fewer), path)


class _Towers(keras.Model):
    def __init__(self, *names: str) -> None:
        super().__init__()
        self.towers = {name: keras.layers.Dense(2) for name in names}
        self(keras.Input((2,)))

    def call(self, x):
        return sum(tower(x) for tower in self.towers.values())

    @property
    def items(self) -> dict:
        return {"model": self, **model_state.hidden_items(self)}


def test_layers_in_a_dict_are_not_restored_into_layers_with_other_keys(
    tmp_path, monkeypatch
) -> None:
    path = _write_items(tmp_path / "new", **_Towers("price", "age").items)
    fallback.restore(tf.train.Checkpoint(**_Towers("price", "age").items), path)
    # Earlier versions saved a list of names without keys.
    names = '["a", "b", "c", "d"]'
    monkeypatch.setattr(model_state.HiddenNames, "serialize", lambda self: names)
    older = _write_items(tmp_path / "older", **_Towers("price", "age").items)
    other = _Towers("age", "price")
    before = other.get_weights()
    for weights in (other.items, model_state.weight_items(other)):
        with pytest.raises(errors.CheckpointError, match="`price` would be restored into `age`"):
            fallback.restore(tf.train.Checkpoint(**weights), path)
    np.testing.assert_array_equal(other.weights[0], before[0])
    fallback.restore(tf.train.Checkpoint(**other.items), older)


class _Module(tf.Module):
    def __init__(self, net: keras.Model) -> None:
        super().__init__()
        self.net = net


def test_older_checkpoint_of_a_module_may_lack_random_state_but_no_weights(tmp_path) -> None:
    def restore(build: Callable[[], keras.Model]) -> None:
        # Earlier versions saved only what TensorFlow finds.
        path = _write_items(tmp_path, model=_Module(build()))
        module = _Module(build())
        items = model_state.weight_items(module) | model_state.hidden_items(module)
        fallback.restore(tf.train.Checkpoint(**items), path)

    restore(lambda: keras.Sequential([keras.Input((2,)), keras.layers.Dropout(0.5)]))
    with pytest.raises(errors.CheckpointError, match="hidden_items/net/hidden_weights/0"):
        restore(lambda: _Towers("price"))


def test_error_for_an_incomplete_checkpoint_names_missing_adapted_layers_and_random_state(
    tmp_path,
) -> None:
    def build() -> keras.Model:
        layers = [keras.layers.Normalization(), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
        return keras.Sequential([keras.Input((2,)), *layers])

    path = _write_items(tmp_path, model=build())
    model = build()
    wanted = tf.train.Checkpoint(model=model, **model_state.hidden_items(model))
    with pytest.raises(errors.CheckpointError, match=r"`adapted_layers`.*random_state/0"):
        fallback.require_complete(wanted, path)


@pytest.mark.parametrize(
    ("manager_cls", "which"),
    [("TensorFlow", "newest"), ("AsyncCheckpointManager", "newest"), ("TensorFlow", "named")],
)
def test_restoring_an_incomplete_checkpoint_raises_with_and_without_an_explicit_path(
    manager_cls: str, which: str, tmp_path
) -> None:
    path = _write_items(tmp_path, a=tf.Variable(1.0))
    tf.train.CheckpointManager(tf.train.Checkpoint(a=tf.Variable(1.0)), tmp_path, 1).save(1)
    cls = getattr(async_checkpoint_manager, manager_cls, tf.train.CheckpointManager)
    a = tf.Variable(0.0)
    manager = cls(tf.train.Checkpoint(a=a, b=tf.Variable(0.0)), str(tmp_path), max_to_keep=1)
    checkpoints = checkpointing.Checkpointing(manager, tf.distribute.get_strategy())
    with pytest.raises(errors.CheckpointError, match=r"\(b: \[\]\)"):
        checkpoints.restore(path if which == "named" else None)
    np.testing.assert_equal(a.numpy(), 0.0)


def test_restore_assigns_a_variable_that_only_an_optimizer_refers_to(tmp_path) -> None:
    def build(value: float) -> tuple[tf.train.Checkpoint, keras.Variable]:
        weight, scale = keras.Variable([value]), keras.Variable([value, value])
        optimizer = keras.optimizers.SGD()
        optimizer.build([weight, scale])
        return tf.train.Checkpoint(model=weight, optimizer=optimizer), scale

    path = build(1.0)[0].save(str(tmp_path / "ckpt"))
    checkpoint, scale = build(2.0)
    fallback.restore(checkpoint, path)
    np.testing.assert_array_equal(scale, [1.0, 1.0])
    # The next checkpoint is the same as if nothing had been restored.
    again = checkpoint.save(str(tmp_path / "again"))
    assert tf.train.list_variables(again) == tf.train.list_variables(path)
