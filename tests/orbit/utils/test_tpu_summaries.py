import tensorflow as tf

from official_lite.orbit import utils


class TwoPrograms(utils.OptionalSummariesFunction):
    def __call__(self, record):
        return self.with_summaries() if record else self.without_summaries()


class Trainer:
    def __init__(self, value):
        self.value = value

    @TwoPrograms
    def step(self):
        tf.summary.scalar("x", self.value, step=0)
        return tf.constant(self.value)


def count_events(directory):
    [path] = directory.glob("events*")
    events = tf.compat.v1.train.summary_iterator(str(path))
    return sum(len(event.summary.value) for event in events)


def test_optional_summaries_are_written_only_by_calls_that_enable_summaries(tmp_path):
    function = TwoPrograms(lambda: tf.summary.scalar("x", 1.0, step=0))
    with tf.summary.create_file_writer(str(tmp_path)).as_default():
        for record in (False, True, False):
            function(record)
    assert count_events(tmp_path) == 1


def test_method_with_optional_summaries_is_bound_to_its_instance():
    trainers = [Trainer(1.0), Trainer(2.0)]
    assert [trainer.step(False) for trainer in trainers] == [1.0, 2.0]


def test_soft_device_placement_is_restored_after_a_call_with_summaries():
    before = tf.config.get_soft_device_placement()
    TwoPrograms(lambda: None)(True)
    assert tf.config.get_soft_device_placement() == before
