"""Several workers together read each record of the files once per epoch."""

import contextlib
import itertools

import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import config_definitions as cfg
from official_lite.core import input_reader
from official_lite.data import position

# The number of records in each file, one of which is empty.
UNEQUAL = (3, 0, 5, 1, 7)


@pytest.fixture(scope="module")
def unequal_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unequal")
    numbers = iter(range(sum(UNEQUAL)))
    for file, size in enumerate(UNEQUAL):
        with tf.io.TFRecordWriter(f"{folder}/part-{file}") as writer:
            for _ in range(size):
                writer.write(str(next(numbers)))
    return folder


def _read_share(files, pattern, pipeline, pipelines, count=-1, **fields):
    """Return the records that one of several input pipelines reads; each has one replica."""
    params = cfg.DataConfig(
        input_path=f"{files}/{pattern}", global_batch_size=2 * pipelines, **fields
    )
    read = input_reader.InputReader(params, parser_fn=lambda record: tf.strings.to_number(record))
    context = tf.distribute.InputContext(pipelines, pipeline, pipelines)
    return np.concatenate([[], *read.read(context).take(count).as_numpy_iterator()]).tolist()


def _come_once_an_epoch(streams, wanted, epochs):
    """Return whether the streams can be cut into consecutive pieces that together form epochs."""
    if not epochs:
        return True
    for cut in itertools.product(*(range(len(wanted) + 1) for _ in streams[1:])):
        cut = [*cut, len(wanted) - sum(cut)]
        if cut[-1] < 0:
            continue
        pieces = [stream[:n] for stream, n in zip(streams, cut, strict=True)]
        if sorted(itertools.chain(*pieces)) == wanted:
            rest = [stream[n:] for stream, n in zip(streams, cut, strict=True)]
            if _come_once_an_epoch(rest, wanted, epochs - 1):
                return True
    return False


PATTERNS = {"part-4": range(9, 16), "part-[34]": range(8, 16), "part-*": range(16)}


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("pipelines", "pattern", "seed", "buffer"),
    [
        (1, "part-*", None, 4),
        (2, "part-4", 3, 0),
        (2, "part-*", None, 4),
        (3, "part-[34]", None, 4),
        (3, "part-*", 3, 0),
    ],
)
def test_all_workers_together_train_on_each_record_once_per_epoch(
    unequal_files, pipelines, pattern, seed, buffer
):
    with position.begin_at(batch=0, seed=7):
        streams = [
            _read_share(
                *(unequal_files, pattern, pipeline, pipelines, 30),
                is_training=True,
                seed=seed,
                shuffle_buffer_size=buffer,
            )
            for pipeline in range(pipelines)
        ]
    assert _come_once_an_epoch(streams, list(PATTERNS[pattern]), epochs=3)


@pytest.mark.parametrize(("pipelines", "pattern"), [(2, "part-[34]"), (3, "part-*")])
def test_input_pipelines_that_cannot_resume_read_each_record_once_per_epoch(
    unequal_files, pipelines, pattern
):
    streams = [
        _read_share(
            *(unequal_files, pattern, pipeline, pipelines, 30),
            is_training=True,
            shuffle_buffer_size=0,
            # With more files in turn, files of the next epoch are opened before this epoch ends.
            cycle_length=1,
        )
        for pipeline in range(pipelines)
    ]
    assert _come_once_an_epoch(streams, list(PATTERNS[pattern]), epochs=3)


@pytest.mark.parametrize(
    ("pipelines", "pattern"), [(1, "part-*"), (2, "part-4"), (3, "part-[34]"), (9, "part-*")]
)
def test_all_workers_together_evaluate_each_record_once(unequal_files, pipelines, pattern):
    shares = [
        _read_share(unequal_files, pattern, pipeline, pipelines, drop_remainder=False)
        for pipeline in range(pipelines)
    ]
    assert sorted(itertools.chain(*shares)) == list(PATTERNS[pattern])


@pytest.mark.parametrize("pattern", PATTERNS)
def test_two_replicas_evaluate_each_record_once(unequal_files, pattern, two_replicas):
    params = cfg.DataConfig(
        input_path=f"{unequal_files}/{pattern}", global_batch_size=6, drop_remainder=False
    )
    read = input_reader.InputReader(params, parser_fn=lambda record: tf.strings.to_number(record))
    dataset = two_replicas.distribute_datasets_from_function(read.read)
    values = [v for batch in dataset for part in batch.values for v in part.numpy()]
    assert sorted(values) == list(PATTERNS[pattern])


@pytest.mark.parametrize("is_kept", [True, False])
def test_training_with_fewer_records_than_workers_raises_on_every_worker(unequal_files, is_kept):
    for pipeline in range(9):
        keeping = position.begin_at(batch=0, seed=7) if is_kept else contextlib.nullcontext()
        with (
            keeping,
            pytest.raises(errors.DataError, match="9 input pipelines needs at least one record"),
        ):
            _read_share(unequal_files, "part-3", pipeline, 9, is_training=True)
