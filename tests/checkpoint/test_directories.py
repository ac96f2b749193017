import os

import tensorflow as tf

from official_lite.checkpoint import directories


def test_single_process_writes_where_it_is_told() -> None:
    assert directories.is_chief()
    assert directories.writable_directory("/run") == "/run"


def test_other_worker_writes_somewhere_else(monkeypatch) -> None:
    extended = type(tf.distribute.get_strategy().extended)
    monkeypatch.setattr(extended, "should_checkpoint", property(lambda self: False))
    directory = directories.writable_directory("/run")
    assert directory != "/run"
    assert os.path.isdir(directory)
