"""A writer that writes TensorBoard event files."""

import contextlib
import functools
import os
import re
import struct
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from absl import logging
from google.protobuf import message, struct_pb2

from official_lite.common import error_report, files
from official_lite.telemetry.event_storage import Events
from official_lite.telemetry.writer import Histogram, Record, Writer, warn_left_out


def write_media(media: Record | Events, step: int | tf.Tensor | tf.Variable | None = None) -> None:
    """Write images and histograms to the default summary writer.

    Args:
        media: A `Record` or `Events` with `images` and `histograms`.
        step: The step. Defaults to the one set by `tf.summary.experimental.set_step`.
    """
    for name, image in media.images.items():
        image_summary(name, image, step=step)
    for name, histogram in media.histograms.items():
        histogram_summary(name, histogram, step=step)


def write_hparams(directory: str, values: Mapping[str, Any]) -> None:
    """Write the hyperparameters of a run for TensorBoard's HParams page, without requiring it.

    They replace the hyperparameters that an earlier start of the run has written.

    Args:
        directory: The model directory. TensorBoard assigns it the scalars in and below it.
        values: The hyperparameters by name. Those that are None are left out.
    """
    suffix = ".hparams.v2"
    with _unless_disk_is_full():
        for name in _list_event_files(directory):
            if name.endswith(suffix):
                files.remove(os.path.join(directory, name))
        file_writer = tf.summary.create_file_writer(directory, filename_suffix=suffix)
        summary = tf.compat.v1.Summary()
        value = summary.value.add(tag="_hparams_/session_start_info")
        value.metadata.plugin_data.plugin_name = "hparams"
        value.metadata.plugin_data.content = _hparams_content(values)
        value.tensor.CopyFrom(tf.make_tensor_proto([], tf.float32))
        with file_writer.as_default(), tf.summary.record_if(True):
            tf.summary.experimental.write_raw_pb(summary.SerializeToString(), step=0)
        file_writer.close()


def _hparams_content(values: Mapping[str, Any]) -> bytes:
    """Return the message `HParamsPluginData` of TensorBoard's HParams plugin in serialized form.

    The message is encoded here because only TensorBoard defines it. Field 3 of the message is a
    `SessionStartInfo`, whose first field is a map of values. The first field of a `Struct` is such
    a map, too, so a serialized `Struct` is a `SessionStartInfo` without other fields.
    """
    info = struct_pb2.Struct()
    for name, value in values.items():
        if value is not None:
            is_number = isinstance(value, bool | int | float)
            # Paths may contain bytes that are not UTF-8.
            info[name] = value if is_number else str(value).encode(errors="replace").decode()
    content = info.SerializeToString()
    length, rest = bytearray(), len(content)
    # The length of an embedded message is a varint: groups of seven bits, least significant first.
    while rest >= 128:
        length.append(rest & 127 | 128)
        rest >>= 7
    return bytes([3 << 3 | 2, *length, rest]) + content


def image_summary(
    name: str, image: npt.NDArray[Any], *, step: int | tf.Tensor | tf.Variable | None = None
) -> tf.Tensor:
    """Write the same summary as `tf.summary.image`, without requiring TensorBoard.

    Args:
        name: The tag.
        image: `[height, width, channels]`, uint8.
        step: The step. Defaults to the one set by `tf.summary.experimental.set_step`.
    """
    height, width = np.shape(image)[:2]
    png = tf.io.encode_png(image)
    tensor = tf.stack([tf.constant(str(width)), tf.constant(str(height)), png])
    return _write(name, tensor, step, plugin="images")


def histogram_summary(
    name: str, histogram: Histogram, *, step: int | tf.Tensor | tf.Variable | None = None
) -> tf.Tensor:
    """Write the same summary as `tf.summary.histogram`, without requiring TensorBoard.

    Args:
        name: The tag.
        histogram: The histogram to write.
        step: The step. Defaults to the one set by `tf.summary.experimental.set_step`.
    """
    edges = histogram.edges
    buckets = tf.constant(np.stack([edges[:-1], edges[1:], histogram.counts], axis=1))
    return _write(name, buckets, step, plugin="histograms")


def _write(
    name: str, tensor: tf.Tensor, step: int | tf.Tensor | tf.Variable | None, *, plugin: str
) -> tf.Tensor:
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = plugin
    return tf.summary.write(name, tensor, step=step, metadata=metadata)


SummaryFn = Callable[..., Any]

_LOSSES = frozenset({"training_loss", "validation_loss", "test_loss"})

# Files that identify a model directory.
_OF_A_RUN = frozenset({"checkpoint", "params.yaml", "run.json"})


def scalar_summary(
    name: str, value: tf.Tensor | float, *, step: int | tf.Tensor | tf.Variable | None = None
) -> tf.Tensor:
    """Write the same summary as `tf.summary.scalar`, without requiring TensorBoard.

    Args:
        name: The tag.
        value: One number.
        step: The step. Defaults to the one set by `tf.summary.experimental.set_step`.
    """
    metadata = _scalar_metadata()
    with tf.summary.experimental.summary_scope(name, "scalar_summary", values=[value, step]) as (
        tag,
        _,
    ):
        return tf.summary.write(
            tag, tensor=lambda: tf.cast(value, tf.float32), step=step, metadata=metadata
        )


class TensorBoardWriter(Writer):
    """Writes event files below `directory`: one folder per split and per nesting level.

    TensorBoard draws each folder as a curve of its own color in the same plot, so that `train` and
    `validation`, or several validation sets, can be compared. Folders and event files are created
    when the first value is written to them.

    `training_loss` and `validation_loss` are also written as `loss`, since TensorBoard only draws
    values of the same name in one chart. A value that is named `loss` already takes precedence.

    `rewind` truncates the event files of earlier processes at the point where the restored state
    was saved. It also writes an event that makes a running TensorBoard discard the events it has
    already read after that point.

    Args:
        directory: Root of the event files; `None` disables writing.
        job: Name of an evaluation-only job, which becomes part of its file names. Such a job can
            share the directory with a training run: neither modifies the files of the other.
    """

    def __init__(self, directory: str | os.PathLike[str] | None, *, job: str = "") -> None:
        self._directory = None if directory is None else os.fspath(directory)
        self._job = job
        self._suffix = f".{job}.v2" if job else ".v2"
        # Matches `events.out.tfevents.<time>.<host>.<process>.<number><suffix>`.
        self._own_name = re.compile(rf".*tfevents\..*\.\d+{re.escape(self._suffix)}")
        self._file_writers: dict[str, Any] = {}
        # The paths of the files that this writer has created. The files can't be truncated while
        # the writer is open.
        self._created: set[str] = set()
        self._rewound_to: int | None = None

    def write(self, record: Record) -> None:
        self.write_values(record.values, step=record.step, relative_path=record.split)
        if record.images or record.histograms:
            with self.file_writer(record.split).as_default():
                write_media(record, record.step)

    def write_values(
        self,
        values: Mapping[str, Any],
        *,
        step: int | tf.Tensor | tf.Variable | None,
        relative_path: str = "",
        summary_fn: SummaryFn = scalar_summary,
    ) -> None:
        """Write `values` to `relative_path`, and each nested mapping to a subfolder of its name.

        Args:
            values: Values by name: anything `summary_fn` accepts, or a nested mapping.
            step: The step, a number or a variable.
            relative_path: The folder, relative to the root.
            summary_fn: Called as `summary_fn(name, value, step=step)`. The default skips values
                that are not scalars, with a warning.
        """
        if self._directory is None:
            return
        scalars: dict[str, Any] = {}
        for name, value in values.items():
            if isinstance(value, Mapping):
                path = os.path.join(relative_path, name)
                self.write_values(value, step=step, relative_path=path, summary_fn=summary_fn)
            elif summary_fn in (scalar_summary, tf.summary.scalar) and np.ndim(value) > 0:
                warn_left_out(name, value)
            elif summary_fn is scalar_summary:
                scalars[name] = value
            else:
                with self.file_writer(relative_path).as_default():
                    summary_fn(name, value, step=step)
        if scalars:
            if self._rewound_to is not None and self._rewound_to == int(tf.convert_to_tensor(step)):
                self._forget_repeated(relative_path, scalars.keys())
            for name in _LOSSES & scalars.keys():
                scalars.setdefault("loss", scalars[name])
            with _unless_disk_is_full(), self.file_writer(relative_path).as_default():
                _write_scalars(scalars, step)

    def file_writer(self, relative_path: str = "") -> Any:
        """Return the `tf.summary.SummaryWriter` of a folder, given relative to the root."""
        if relative_path not in self._file_writers:
            with _unless_disk_is_full():
                self._file_writers[relative_path] = self._create_file_writer(relative_path)
        # If the file can't be created now, the next call tries to create it again.
        return self._file_writers.get(relative_path) or tf.summary.create_noop_writer()

    def flush(self) -> None:
        # Iterate over a copy, as in `sync`: this method may run in the thread that saves a
        # checkpoint, while another thread adds a folder.
        for file_writer in list(self._file_writers.values()):
            with _unless_disk_is_full():
                file_writer.flush()

    def mark_checkpoint(self, step: int) -> None:
        """Mark in each event file that everything before the mark belongs to the state of `step`.

        Call this before the state is saved; `rewind` uses the marks.
        """
        if self._directory is None:
            return
        for file_writer in self._file_writers.values():
            with _unless_disk_is_full():
                _write_session_log(file_writer, tf.compat.v1.SessionLog.CHECKPOINT, step)
                file_writer.flush()

    def sync(self) -> None:
        self.flush()
        for path in list(self._created):
            if files.exists(path):
                with _unless_disk_is_full():
                    files.sync(path)

    def rewind(self, step: int) -> None:
        self._rewound_to = step
        if self._directory is None:
            return
        for file_writer in self._file_writers.values():
            with _unless_disk_is_full():
                _write_start(file_writer, step)
        for folder in _folders(self._directory):
            for path in self._files_of_earlier_processes(folder):
                _cut_off(path, _end_of_state(path, step))

    def close(self) -> None:
        for file_writer in self._file_writers.values():
            with _unless_disk_is_full():
                file_writer.close()
        self._file_writers.clear()
        self._created.clear()

    def _create_file_writer(self, relative_path: str) -> Any:
        if self._directory is None:
            return tf.summary.create_noop_writer()
        folder = os.path.join(self._directory, relative_path)
        before = _list_event_files(folder)
        writer = tf.summary.create_file_writer(folder, filename_suffix=self._suffix)
        self._created |= {os.path.join(folder, n) for n in _list_event_files(folder) - before}
        # In an empty folder, the start event discards nothing, but readers then expect further
        # start events. Do not write a start event to a folder that another job writes to, because
        # readers would also discard the events of that job after the step of the start event.
        is_known = not before or self._rewound_to is not None
        if is_known and not self._job and all(map(self._own_name.fullmatch, before)):
            _write_start(writer, self._rewound_to or 0)
        return writer

    def _forget_repeated(self, relative_path: str, tags: Collection[str]) -> None:
        """Remove values of `tags` that an earlier process wrote at the step of the last rewind.

        Each file is truncated at the first event that contains such a value.
        """
        folder = os.path.join(self._directory or "", relative_path)
        for path in self._files_of_earlier_processes(folder):
            repeated = (
                offset
                for offset, event in read_events(path)
                if event.step == self._rewound_to
                and any(value.tag in tags for value in event.summary.value)
            )
            _cut_off(path, next(repeated, None))

    def _files_of_earlier_processes(self, folder: str) -> list[str]:
        names = filter(self._own_name.fullmatch, _list_event_files(folder))
        paths = sorted(os.path.join(folder, name) for name in names)
        return [path for path in paths if path not in self._created]


@contextlib.contextmanager
def _unless_disk_is_full() -> Iterator[None]:
    """Warn about failed writes instead of raising, so that training continues."""
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        logging.log_first_n(
            logging.WARNING,
            "Can't write the event files, so values are lost: %s",
            3,
            error_report.first_line(str(error)),
        )


def _write_start(file_writer: tf.summary.SummaryWriter, step: int) -> None:
    """Write an event that makes readers discard events after `step`, or all if `step` is 0."""
    first = step + 1 if step > 0 else 0
    _write_session_log(file_writer, tf.compat.v1.SessionLog.START, first)


def _write_session_log(file_writer: tf.summary.SummaryWriter, status: int, step: int) -> None:
    log = tf.compat.v1.SessionLog(status=status)
    event = tf.compat.v1.Event(step=step, wall_time=time.time(), session_log=log)
    tf.raw_ops.ImportEvent(writer=file_writer._resource, event=event.SerializeToString())


def _folders(root: str) -> Iterator[str]:
    """Yield the root and the folders below it, except the model directories of other runs."""
    yield root
    for name in files.list_names(root):
        folder = os.path.join(root, name)
        if tf.io.gfile.isdir(folder) and _OF_A_RUN.isdisjoint(files.list_names(folder)):
            yield from _folders(folder)


def _list_event_files(folder: str) -> set[str]:
    return {name for name in files.list_names(folder) if "tfevents" in name}


def read_events(path: str) -> Iterator[tuple[int, Any]]:
    """Yield the events of a file with their offsets, up to an incomplete event.

    TensorFlow's own reader does not return offsets. In the file, each event is preceded by its
    length and the checksum of the length, and followed by its own checksum.
    """
    size = files.size(path)
    with files.open_file(path, "rb") as file:
        offset = 0
        while len(header := file.read(12)) == 12:
            length = struct.unpack("<Q", header[:8])[0]
            end = offset + 12 + length + 4
            if end > size:
                return
            try:
                event = tf.compat.v1.Event.FromString(file.read(length + 4)[:-4])
            except message.DecodeError:
                return
            yield offset, event
            offset = end


def _end_of_state(path: str, step: int) -> int | None:
    """Return the offset of the first event written after the state at `step` was saved, or None.

    The step number of an event is ambiguous, because events that are written within a training step
    have the number of the preceding step. If the file contains the event that marks the checkpoint,
    the position of this event therefore decides.
    """
    session = tf.compat.v1.SessionLog
    end, end_step, is_marked = None, 0, False
    for offset, event in read_events(path):
        status = event.session_log.status
        if status == session.CHECKPOINT and event.step == step:
            end, is_marked = None, True
        elif status == session.START and not is_marked and end_step >= event.step:
            end = None
        elif end is None and not event.file_version:
            # Every event comes after the initial state, for which `step` is 0.
            if is_marked or event.step > step or step <= 0:
                end, end_step = offset, event.step
    return end


def _cut_off(path: str, size: int | None) -> None:
    if size is not None:
        logging.info(
            "Truncated %s after %d bytes, because training will write the rest again.", path, size
        )
        files.truncate(path, size)


def _write_scalars(values: Mapping[str, Any], step: int | tf.Tensor | tf.Variable | None) -> None:
    """Write the same summaries as calls to `scalar_summary`, but ten times as fast."""
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
