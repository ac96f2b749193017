import tensorflow as tf

from official_lite.checkpoint import async_checkpoint_manager, directories


def _manager(directory, value: float, initialized: list):
    variable = tf.Variable(value)
    manager = async_checkpoint_manager.SharedCheckpointManager(
        tf.train.Checkpoint(v=variable),
        str(directory),
        max_to_keep=2,
        init_fn=lambda: initialized.append(1),
    )
    return manager, variable


def test_other_worker_restores_what_the_chief_saved(tmp_path, monkeypatch) -> None:
    chief, _ = _manager(tmp_path, 5.0, [])
    chief.save()
    monkeypatch.setattr(directories, "is_chief", lambda strategy=None: False)
    initialized: list = []
    worker, variable = _manager(tmp_path, 0.0, initialized)
    assert worker.restore_or_initialize() == chief.latest_checkpoint
    assert float(variable) == 5.0
    assert not initialized


def test_other_worker_saves_elsewhere(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(directories, "is_chief", lambda strategy=None: False)
    worker, _ = _manager(tmp_path, 5.0, [])
    worker.save()
    assert list(tmp_path.iterdir()) == []
    assert worker.shared_directory == str(tmp_path)


def test_nothing_to_restore_is_initialized(tmp_path) -> None:
    initialized: list = []
    manager, _ = _manager(tmp_path, 1.0, initialized)
    assert manager.restore_or_initialize() is None
    assert initialized
