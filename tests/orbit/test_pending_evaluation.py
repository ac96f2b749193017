import tensorflow as tf

from official_lite.orbit import checkpointing


def test_only_what_is_saved_within_it_is_marked(tmp_path):
    checkpoint = tf.train.Checkpoint(step=tf.Variable(1))
    with checkpointing.marked(checkpoint):
        marked = checkpoint.write(str(tmp_path / "marked"))
    plain = checkpoint.write(str(tmp_path / "plain"))
    assert checkpointing.find_mark(checkpoint, marked) is not None
    assert checkpointing.find_mark(checkpoint, plain) is None


def test_marked_checkpoint_is_restored_like_any_other(tmp_path):
    checkpoint = tf.train.Checkpoint(step=tf.Variable(7))
    with checkpointing.marked(checkpoint):
        path = checkpoint.write(str(tmp_path / "marked"))
    other = tf.train.Checkpoint(step=tf.Variable(0))
    status = other.read(path)
    mark = checkpointing.find_mark(other, path)
    # Nothing is left over.
    status.assert_consumed()
    assert mark.numpy()
    assert other.step.numpy() == 7
