"""Writes a handful of examples to a file: small datasets, fixtures of tests."""

from collections.abc import Iterable

import tensorflow as tf

from official_lite.common import dataset_fn, errors

__all__ = ["write_small_dataset"]


def write_small_dataset(
    examples: Iterable[tf.train.Example | tf.train.SequenceExample],
    output_path: str,
    file_type: str = "tfrecord",
) -> None:
    """Writes `examples` one after another to `output_path`.

    `common.dataset_fn.pick_dataset_fn` reads each of the file types. For a large dataset write
    several files, in parallel.

    Args:
        examples: What to write.
        output_path: The file; one that is there is overwritten.
        file_type: `tfrecord` or `tfrecords`, `tfrecord_compressed` or `tfrecords_gzip`, or
            `riegeli`, in any case.

    Raises:
        ConfigValueError: There is no such type, or Riegeli is not installed.
    """
    file_type = dataset_fn.checked_file_type(file_type)
    if file_type == "riegeli":
        _write_riegeli(examples, output_path)
        return
    options = tf.io.TFRecordOptions(compression_type=dataset_fn.FILE_TYPES[file_type])
    with tf.io.TFRecordWriter(output_path, options) as writer:
        for example in examples:
            writer.write(example.SerializeToString())


def _write_riegeli(
    examples: Iterable[tf.train.Example | tf.train.SequenceExample], output_path: str
) -> None:
    # Not on PyPI, and needed by hardly anybody.
    try:
        import riegeli
    except ModuleNotFoundError as error:
        raise errors.ConfigValueError(
            "Writing `riegeli` files needs Riegeli; see https://github.com/google/riegeli. "
            "`tfrecord` needs nothing."
        ) from error
    with tf.io.gfile.GFile(output_path, "wb") as file, riegeli.RecordWriter(file) as writer:
        writer.write_messages(examples)
