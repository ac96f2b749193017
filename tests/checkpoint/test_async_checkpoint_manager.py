import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import keras
import pytest
import tensorflow as tf

from official_lite.checkpoint import async_checkpoint_manager, directories
from tests import waiting

ASYNC = tf.train.CheckpointOptions(enable_async=True)


def _held_back(gate):
    return tf.train.CheckpointOptions(enable_async=True, experimental_sharding_callback=gate)


def _manager(
    directory, value=1.0, manager=async_checkpoint_manager.AsyncCheckpointManager, **kwargs
):
    variable = tf.Variable(value)
    arguments = {"max_to_keep": 2} | kwargs
    return manager(tf.train.Checkpoint(v=variable), str(directory), **arguments), variable


def test_async_save_becomes_the_latest_checkpoint_only_when_its_files_are_complete(tmp_path, gate):
    manager, _ = _manager(tmp_path, max_to_keep=1)
    older = manager.save()
    assert not manager.is_saving, "without the option, the files are complete"
    assert tf.train.latest_checkpoint(str(tmp_path)) == older
    path = manager.save(options=_held_back(gate))
    assert path == str(tmp_path / "ckpt-2")
    assert manager.is_saving
    assert tf.train.latest_checkpoint(str(tmp_path)) == older
    gate.open_soon()
    manager.sync()
    assert not manager.is_saving
    assert tf.train.latest_checkpoint(str(tmp_path)) == path
    assert not (tmp_path / "ckpt-1.index").exists()


@pytest.mark.parametrize("ask", ["latest_checkpoint", "checkpoints", "restore_or_initialize"])
def test_call_that_needs_the_latest_checkpoint_waits_for_the_async_save(ask, tmp_path, gate):
    manager, variable = _manager(tmp_path)
    path = manager.save(options=_held_back(gate))
    variable.assign(5.0)
    gate.open_soon()
    asked = getattr(manager, ask)
    answer = asked() if callable(asked) else asked
    assert answer in (path, [path])
    assert float(variable) == (1.0 if ask == "restore_or_initialize" else 5.0)


def test_async_saves_of_two_checkpoint_managers_never_overlap(tmp_path, gate):
    manager, _ = _manager(tmp_path / "run")
    best = async_checkpoint_manager.AsyncCheckpointManager(
        manager.checkpoint, str(tmp_path / "best"), max_to_keep=1, checkpoint_name="best"
    )
    manager.save(options=_held_back(gate))
    gate.open_soon()
    best.save()
    assert tf.train.latest_checkpoint(str(tmp_path / "run")), "the second save waits for the first"
    assert best.latest_checkpoint.endswith("best-2")


def test_async_manager_writes_the_same_files_as_tensorflows_checkpoint_manager(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dropout(0.5)])
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    plain, own = (
        manager(
            tf.train.Checkpoint(model=model, optimizer=optimizer, step=tf.Variable(7)),
            str(tmp_path / manager.__name__),
            max_to_keep=2,
        )
        for manager in (
            tf.train.CheckpointManager,
            async_checkpoint_manager.AsyncCheckpointManager,
        )
    )
    for _ in range(3):
        plain.save()
        own.save(options=ASYNC)
    own.sync()
    assert _contents(plain) == _contents(own)
    assert _names(plain) == [name for name in _names(own) if not name.endswith(".commit.json")]


def _contents(manager):
    reader = tf.train.load_checkpoint(manager.latest_checkpoint)
    shapes = reader.get_variable_to_shape_map()
    return {key: (shape, str(reader.get_tensor(key))) for key, shape in shapes.items()}


def _names(manager):
    return sorted(path.name for path in pathlib.Path(manager.directory).iterdir())


def test_async_manager_numbers_checkpoints_by_step_and_honors_the_checkpoint_interval(
    tmp_path,
):
    step = tf.Variable(0)
    manager, _ = _manager(tmp_path, step_counter=step, checkpoint_interval=10)
    paths = []
    for number in (10, 15, 20, 20):
        step.assign(number)
        paths.append(manager.save(checkpoint_number=step, options=ASYNC))
    assert paths == [str(tmp_path / "ckpt-10"), None, str(tmp_path / "ckpt-20"), None]
    assert manager.checkpoints == [paths[0], paths[2]]


def test_error_of_an_async_save_is_raised_once_by_the_next_call_that_waits_for_it(tmp_path, gate):
    manager, _ = _manager(tmp_path / "run")
    manager.save(options=_held_back(gate))
    (tmp_path / "run").rmdir()
    (tmp_path / "run").write_text("in the way")
    gate.open()
    with pytest.raises(tf.errors.OpError) as raised:
        manager.save(options=ASYNC)
    assert "background" in raised.value.__notes__[0]
    (tmp_path / "run").unlink()
    manager.save(options=ASYNC)
    assert manager.latest_checkpoint.endswith("ckpt-2")


def test_multi_process_save_blocks_until_its_files_are_complete(tmp_path):
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    strategy.extended._cluster_resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": ["localhost:1", "localhost:2"]})
    )
    manager, _ = _manager(tmp_path)
    with strategy.scope():
        manager.save(options=ASYNC)
    assert not manager.is_saving
    assert (tmp_path / "ckpt-1.index").exists()


def _shared_manager(directory, value: float, initialized: list):
    variable = tf.Variable(value)
    manager = async_checkpoint_manager.SharedCheckpointManager(
        tf.train.Checkpoint(v=variable),
        str(directory),
        max_to_keep=2,
        init_fn=lambda: initialized.append(1),
    )
    return manager, variable


def test_non_chief_worker_restores_the_checkpoint_that_the_chief_saved(
    tmp_path, monkeypatch
) -> None:
    initialized: list = []
    chief, _ = _shared_manager(tmp_path, 5.0, initialized)
    assert chief.restore_or_initialize() is None
    assert initialized == [1]
    chief.save()
    monkeypatch.setattr(directories, "is_chief", lambda strategy=None: False)
    worker, variable = _shared_manager(tmp_path, 0.0, initialized)
    assert worker.restore_or_initialize() == chief.latest_checkpoint
    assert float(variable) == 5.0
    assert initialized == [1]


def test_non_chief_worker_saves_outside_the_shared_directory(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(directories, "is_chief", lambda strategy=None: False)
    worker, _ = _shared_manager(tmp_path, 5.0, [])
    worker.save()
    assert list(tmp_path.iterdir()) == []
    assert worker.shared_directory == str(tmp_path)


def test_single_process_writes_directly_to_the_requested_directory() -> None:
    assert directories.is_chief()
    assert directories.writable_directory("/run") == "/run"


def test_writable_directory_of_a_non_chief_worker_is_temporary(monkeypatch) -> None:
    extended = type(tf.distribute.get_strategy().extended)
    monkeypatch.setattr(extended, "should_checkpoint", property(lambda self: False))
    directory = directories.writable_directory("/run")
    assert directory != "/run"
    assert os.path.isdir(directory)


def test_temporary_directory_of_a_killed_worker_is_removed_by_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setattr(directories, "is_chief", lambda strategy: False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = directories.writable_directory("/run")
    child = os.fork()
    if child == 0:
        try:
            directories.writable_directory("/run")
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 2
    other = directories.writable_directory("/run")
    assert {str(path) for path in tmp_path.iterdir()} == {own, other}


SAVE_AGAIN_AND_AGAIN = """
import itertools, sys
import tensorflow as tf
from official_lite.checkpoint import async_checkpoint_manager, directories

v = tf.Variable(tf.zeros([10_000_000]))
manager = async_checkpoint_manager.AsyncCheckpointManager(
    tf.train.Checkpoint(v=v), sys.argv[1], max_to_keep=2
)
for number in range(1, int(sys.argv[2])):
    v.assign_add(tf.ones_like(v))
    manager.save(number, options=tf.train.CheckpointOptions(enable_async=True))
"""


def _newest_number(directory):
    path = tf.train.latest_checkpoint(str(directory))
    return int(path.rpartition("-")[2]) if path else 0


def _newest_values(directory):
    path = tf.train.latest_checkpoint(str(directory))
    values = tf.train.load_variable(path, "v/.ATTRIBUTES/VARIABLE_VALUE")
    return _newest_number(directory), set(values.tolist())


@pytest.mark.slow
def test_process_killed_during_an_async_save_leaves_a_complete_checkpoint(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", SAVE_AGAIN_AND_AGAIN, str(tmp_path), str(10**9)],
        stderr=subprocess.DEVNULL,
    )
    try:
        waiting.wait_for(
            lambda: _newest_number(tmp_path) >= 3 and any(tmp_path.glob("*_temp/*")),
            alive=lambda: process.poll() is None,
        )
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    number, values = _newest_values(tmp_path)
    assert number >= 3
    assert values == {float(number)}


@pytest.mark.slow
def test_process_exits_only_after_its_last_async_save_is_complete(tmp_path):
    subprocess.run(
        [sys.executable, "-c", SAVE_AGAIN_AND_AGAIN, str(tmp_path), "3"],
        check=True,
        capture_output=True,
    )
    assert _newest_values(tmp_path) == (2, {2.0})
