"""Writers of small datasets, for example for test fixtures."""

from collections.abc import Iterable

import tensorflow as tf

from official_lite.common import dataset_fn, errors

__all__ = ["write_small_dataset"]


def write_small_dataset(
    examples: Iterable[tf.train.Example | tf.train.SequenceExample],
    output_path: str,
    file_type: str = "tfrecord",
) -> None:
    """Write `examples` sequentially to `output_path`.

    `common.dataset_fn.pick_dataset_fn` reads every file type supported here. For a large dataset,
    write several files in parallel instead.

    Args:
        examples: The examples to write.
        output_path: The output file; an existing file is overwritten.
        file_type: `tfrecord` or `tfrecords`, `tfrecord_compressed` or `tfrecords_gzip`, or
            `riegeli`. Case is ignored.

    Raises:
        ConfigValueError: If the file type is unknown or Riegeli is not installed.
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
    # Riegeli is imported here because it is not on PyPI and few users need it.
    try:
        import riegeli
    except ModuleNotFoundError as error:
        raise errors.ConfigValueError(
            "Writing `riegeli` files requires Riegeli; see https://github.com/google/riegeli. "
            "`tfrecord` files need no extra package."
        ) from error
    with tf.io.gfile.GFile(output_path, "wb") as file, riegeli.RecordWriter(file) as writer:
        writer.write_messages(examples)
