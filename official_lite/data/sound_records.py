"""Reading of damaged TFRecord files, which skips and counts the unreadable records.

TensorFlow stops at a damaged record, and `ignore_errors` drops everything after it in the file.
This module skips only the damaged record: it reads a copy of the file without that record.
"""

import os
import re
import shutil
import struct
import tempfile
import threading
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

from official_lite.common import errors
from official_lite.data import damaged_files

__all__ = ["SoundRecords", "tolerant"]


# Each record starts with its length and a checksum of the length, and ends with a checksum of its
# content.
_HEADER_BYTES, _FOOTER_BYTES = 12, 4
_CHUNK_BYTES = 1 << 20


def tolerant(dataset_fn: damaged_files.DatasetFn, most: int) -> damaged_files.DatasetFn:
    """Return a version of `dataset_fn` that skips at most `most` damaged records.

    Raises:
        ConfigValueError: `dataset_fn` is not `tf.data.TFRecordDataset`.
    """
    if not most:
        return dataset_fn
    if dataset_fn is not tf.data.TFRecordDataset:
        raise errors.ConfigValueError(
            f"`skip_bad_records` is {most}, which is for TFRecord files without compression."
        )
    return SoundRecords(most)


class SoundRecords:
    """A function that builds a dataset of the undamaged records of one or more TFRecord files.

    Each file is read twice in its first epoch, because it is checked first. A record with a damaged
    length always raises an error, because the start of the next record is then unknown.

    Args:
        most: The maximum number of damaged records in all files that this process reads.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._num_damaged = 0
        # Maps each file to the path that is read in its place.
        self._places: dict[str, str] = {}
        # A `TemporaryDirectory` would warn when this object is garbage-collected, which is normal
        # here.
        self._copies = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, self._copies, ignore_errors=True)
        self._lock = threading.Lock()

    def __call__(self, files: Any) -> tf.data.Dataset:
        files = tf.reshape(tf.convert_to_tensor(files), [-1])
        return tf.data.Dataset.from_tensor_slices(files).flat_map(self._read)

    def _read(self, file: tf.Tensor) -> tf.data.Dataset:
        place = tf.numpy_function(self._place_of, [file], tf.string)
        return tf.data.TFRecordDataset(tf.ensure_shape(place, []))

    def _place_of(self, name: bytes) -> bytes:
        file = os.fsdecode(name)
        with self._lock:
            if file not in self._places:
                self._places[file] = self._look_through(file)
            return os.fsencode(self._places[file])

    def _look_through(self, file: str) -> str:
        place, num_cut = file, 0
        while (problem := _first_problem(place)) is not None:
            kind, at = problem
            if place == file:
                place = os.path.join(self._copies, str(len(self._places)))
                tf.io.gfile.copy(file, place, overwrite=True)
            record, behind = _record_around(place, at)
            if kind == "corrupted" and at == record:
                raise errors.DataError(
                    f"`{file}` has a record of unknown length at byte {record + num_cut}, so that "
                    "nothing behind it can be read. `skip_bad_records` does not cover that."
                )
            self._leave_out(f"`{file}` has a {kind} record at byte {record + num_cut}")
            _cut_out(place, record, behind)
            num_cut += behind - record
        return place

    def _leave_out(self, damage: str) -> None:
        self._num_damaged += 1
        if self._num_damaged > self._most:
            raise errors.DataError(
                f"{damage}; that is one more than the {self._most} of `skip_bad_records`."
            )
        logging.warning(
            "%s. It is left out: %d of at most %d.", damage, self._num_damaged, self._most
        )


def _first_problem(file: str) -> tuple[str, int] | None:
    """Return the kind and byte offset of the first problem in a file; None if there is none."""
    with tf.init_scope():
        try:
            tf.data.TFRecordDataset(file).reduce(0, lambda count, _: count + 1)
        except tf.errors.DataLossError as error:
            match = re.search(r"(truncated|corrupted) record at (\d+)", error.message)
            if match is None:
                raise
            return match[1], int(match[2])
    return None


def _record_around(path: str, place: int) -> tuple[int, int]:
    """Return the offset of the record that contains a byte, and the offset of the next record."""
    record = 0
    with open(path, "rb") as file:
        while header := file.read(_HEADER_BYTES):
            # A truncated file may end within a header.
            length = struct.unpack("<Q", header[:8].ljust(8, b"\0"))[0]
            behind = record + _HEADER_BYTES + length + _FOOTER_BYTES
            if place < behind:
                return record, behind
            record = file.seek(behind)
    raise ValueError(f"There is no byte {place} in {path}.")


def _cut_out(path: str, start: int, stop: int) -> None:
    with open(path, "r+b") as file:
        file.seek(stop)
        while chunk := file.read(_CHUNK_BYTES):
            stop = file.tell()
            file.seek(start)
            file.write(chunk)
            start = file.tell()
            file.seek(stop)
        file.truncate(start)
