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


def test_every_checkpoint_is_found_once_and_in_order(tmp_path):
    paths = save(tmp_path, [5, 10, 20])
    assert list(watch(tmp_path, timeout=3)) == paths


def test_checkpoint_saved_during_the_watch_is_found_next(tmp_path):
    first = save(tmp_path, [1])
    seen = []
    for path in watch(tmp_path, timeout=3):
        if not seen:
            later = save(tmp_path, [2])
        seen.append(path)
    assert seen == first + later


def test_watch_ends_on_timeout(tmp_path):
    assert list(watch(tmp_path / "nothing", timeout=10)) == []


def test_watch_continues_after_a_timeout_until_timeout_fn_returns_true(tmp_path):
    answers = [False, False, True]
    assert list(watch(tmp_path, timeout=10, timeout_fn=lambda: answers.pop(0))) == []
    assert answers == []


def test_overwritten_checkpoint_is_found_again(tmp_path):
    seen = []
    save(tmp_path, [1, 2])
    for path in watch(tmp_path, timeout=3):
        if len(seen) == 1:
            save(tmp_path, [1], value=3)
        seen.append(path.rpartition("-")[2])
    assert seen == ["1", "2", "1"]
