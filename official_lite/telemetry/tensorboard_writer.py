"""Records as TensorBoard event files."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from official_lite.telemetry import media_summaries, writer
from official_lite.telemetry.record import Record

SummaryFn = Callable[..., Any]


def scalar_summary(name: str, value: Any, *, step: Any = None) -> Any:
    """Writes what `tf.summary.scalar` writes, which needs TensorBoard to be installed.

    Args:
      name: The tag.
      value: One number.
      step: The step; by default that of `tf.summary.experimental.set_step`.
    """
    metadata = _scalar_metadata()
    with tf.summary.experimental.summary_scope(name, "scalar_summary", values=[value, step]) as (
        tag,
        _,
    ):
        return tf.summary.write(
            tag, tensor=lambda: tf.cast(value, tf.float32), step=step, metadata=metadata
        )


class TensorBoardWriter(writer.Writer):
    """Writes below `directory`: one folder a split, and one a level of nesting.

    TensorBoard shows each folder as a curve of its own colour in the same plot, so `train` and
    `validation`, or several validation sets, come to lie over one another. Folders and event
    files are created by the first number that goes there.

    Args:
      directory: The root of the event files; `None` writes nothing.
    """

    def __init__(self, directory: str | os.PathLike[str] | None) -> None:
        self._directory = None if directory is None else os.fspath(directory)
        self._file_writers: dict[str, Any] = {}

    def write(self, record: Record) -> None:
        self.write_values(record.values, step=record.step, relative_path=record.split)
        if record.images or record.histograms:
            with self.file_writer(record.split).as_default():
                media_summaries.write_media(record, record.step)

    def write_values(
        self,
        values: Mapping[str, Any],
        *,
        step: Any,
        relative_path: str = "",
        summary_fn: SummaryFn = scalar_summary,
    ) -> None:
        """Writes `values` to `relative_path`, and each nested mapping to a folder of its name.

        Args:
          values: By name: what `summary_fn` takes, or a mapping of the same kind.
          step: The step, a number or a variable.
          relative_path: The folder below the root.
          summary_fn: Called as `summary_fn(name, value, step=step)`. With the default, values
            that are not scalars are left out with a warning.
        """
        if self._directory is None:
            return
        scalars: dict[str, Any] = {}
        for name, value in values.items():
            if isinstance(value, Mapping):
                path = os.path.join(relative_path, name)
                self.write_values(value, step=step, relative_path=path, summary_fn=summary_fn)
            elif summary_fn in (scalar_summary, tf.summary.scalar) and np.ndim(value) > 0:
                logging.log_first_n(logging.WARNING, "`%s` is not a scalar: left out.", 10, name)
            elif summary_fn is scalar_summary:
                scalars[name] = value
            else:
                with self.file_writer(relative_path).as_default():
                    summary_fn(name, value, step=step)
        if scalars:
            with _unless_disk_is_full(), self.file_writer(relative_path).as_default():
                _write_scalars(scalars, step)

    def file_writer(self, relative_path: str = "") -> Any:
        """The `tf.summary.SummaryWriter` of a folder below the root."""
        if relative_path not in self._file_writers:
            self._file_writers[relative_path] = self._create_file_writer(relative_path)
        return self._file_writers[relative_path]

    def flush(self) -> None:
        for file_writer in self._file_writers.values():
            with _unless_disk_is_full():
                file_writer.flush()

    def close(self) -> None:
        for file_writer in self._file_writers.values():
            with _unless_disk_is_full():
                file_writer.close()
        self._file_writers.clear()

    def _create_file_writer(self, relative_path: str) -> Any:
        if self._directory is None:
            return tf.summary.create_noop_writer()
        return tf.summary.create_file_writer(os.path.join(self._directory, relative_path))


@contextlib.contextmanager
def _unless_disk_is_full() -> Iterator[None]:
    """A training is worth more than its curves."""
    try:
        yield
    except tf.errors.OpError as error:
        logging.log_first_n(
            logging.WARNING, "Event files can't be written, and lose numbers: %s", 3, error
        )


def _write_scalars(values: Mapping[str, Any], step: Any) -> None:
    """Writes what `scalar_summary` does, all at once and in a tenth of the time."""
    summary = tf.compat.v1.Summary()
    for tag, value in values.items():
        tensor = summary.value.add(tag=tag, metadata=_scalar_metadata()).tensor
        tensor.dtype = tf.float32.as_datatype_enum
        tensor.float_val.append(float(value))
    tf.summary.experimental.write_raw_pb(summary.SerializeToString(), step=step)


@functools.cache
def _scalar_metadata() -> Any:
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = "scalars"
    scalar_class = metadata.DESCRIPTOR.fields_by_name["data_class"].enum_type
    metadata.data_class = scalar_class.values_by_name["DATA_CLASS_SCALAR"].number
    return metadata
