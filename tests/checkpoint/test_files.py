import pytest
import tensorflow as tf

from official_lite.checkpoint import inspection
from official_lite.common import errors


def test_step_is_read_without_building_the_model(tmp_path) -> None:
    step = tf.Variable(12, dtype=tf.int64)
    path = tf.train.Checkpoint(global_step=step).save(str(tmp_path / "ckpt"))
    assert inspection.read_global_step_from_checkpoint(path) == 12


def test_checkpoint_without_a_step_is_an_error(tmp_path) -> None:
    path = tf.train.Checkpoint(v=tf.Variable(1)).save(str(tmp_path / "ckpt"))
    with pytest.raises(errors.CheckpointError, match="global_step"):
        inspection.read_global_step_from_checkpoint(path)


def test_only_checkpoints_are_removed(tmp_path) -> None:
    tf.train.Checkpoint(v=tf.Variable(1)).save(str(tmp_path / "ckpt"))
    (tmp_path / "params.yaml").touch()
    inspection.remove_ckpts(str(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["params.yaml"]
