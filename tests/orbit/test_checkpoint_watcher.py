import tensorflow as tf

from official_lite.orbit import checkpointing


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def watch(directory, **kwargs):
    clock = Clock()
    return checkpointing.watch_checkpoints(str(directory), clock=clock, sleep=clock.sleep, **kwargs)


def save(directory, numbers, value=0):
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(x=tf.Variable(value)), str(directory), max_to_keep=None
    )
    return [manager.save(checkpoint_number=number) for number in numbers]


def test_watch_checkpoints_yields_each_checkpoint_once_in_save_order(tmp_path):
    paths = save(tmp_path, [5, 10, 20])
    assert list(watch(tmp_path, timeout=3)) == paths


def test_watch_checkpoints_yields_a_checkpoint_saved_during_the_watch(tmp_path):
    first = save(tmp_path, [1])
    seen = []
    for path in watch(tmp_path, timeout=3):
        if not seen:
            later = save(tmp_path, [2])
        seen.append(path)
    assert seen == first + later


def test_watch_checkpoints_ends_after_a_timeout_without_a_checkpoint(tmp_path):
    assert list(watch(tmp_path / "nothing", timeout=10)) == []


def test_watch_checkpoints_continues_after_a_timeout_until_timeout_fn_returns_true(tmp_path):
    answers = [False, False, True]
    assert list(watch(tmp_path, timeout=10, timeout_fn=lambda: answers.pop(0))) == []
    assert answers == []


def test_watch_checkpoints_yields_an_overwritten_checkpoint_again(tmp_path):
    seen = []
    save(tmp_path, [1, 2])
    for path in watch(tmp_path, timeout=3):
        if len(seen) == 1:
            save(tmp_path, [1], value=3)
        seen.append(path.rpartition("-")[2])
    assert seen == ["1", "2", "1"]
