import numpy as np
import pytest
import tensorflow as tf

from official_lite.orbit import utils


def tags(directory):
    [path] = directory.glob("events*")
    events = tf.compat.v1.train.summary_iterator(str(path))
    return [(e.step, v.tag) for e in events for v in e.summary.value]


def test_summaries_of_nested_outputs_are_written_to_subdirectories(tmp_path):
    step = tf.Variable(7, dtype=tf.int64)
    manager = utils.SummaryManager(tmp_path, tf.summary.scalar, global_step=step)
    manager.write_summaries({"loss": 0.5, "clean": {"accuracy": np.float32(0.9)}})
    manager.flush()
    assert tags(tmp_path) == [(7, "loss")]
    assert tags(tmp_path / "clean") == [(7, "accuracy")]


def test_summary_manager_uses_the_tf_summary_step_by_default(tmp_path):
    tf.summary.experimental.set_step(tf.Variable(3, dtype=tf.int64))
    manager = utils.SummaryManager(tmp_path, tf.summary.scalar)
    manager.write_summaries({"loss": 0.5})
    manager.flush()
    assert tags(tmp_path) == [(3, "loss")]


def test_summary_function_receives_the_name_value_and_step_of_each_output(tmp_path):
    seen = []
    manager = utils.SummaryManager(
        tmp_path, lambda name, value, step: seen.append((name, value, step)), global_step=5
    )
    manager.write_summaries({"image/x": [1, 2]})
    assert seen == [("image/x", [1, 2], 5)]


def test_summary_manager_interface_subclass_that_lacks_abstract_methods_raises():
    class Half(utils.SummaryManagerInterface):
        def flush(self):
            pass

    with pytest.raises(TypeError, match="summary_writer"):
        Half()
    assert issubclass(utils.SummaryManager, utils.SummaryManagerInterface)
