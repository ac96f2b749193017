"""Records with their histograms, and writers: their interface, and writers that wrap others."""

import abc
import atexit
import contextlib
import dataclasses
import json
import os
import queue
import threading
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from official_lite.common import flags, nested_dict, terminal
from official_lite.modeling.hyperparams import yaml_io

# There are four buckets between consecutive powers of two. The upper bits of a float32 (the
# exponent and two bits of the fraction) are the exact index of its bucket, so no search is needed.
_DROPPED_BITS = 21

_FIRST, _LAST = ((127 - 38) << 2), ((127 + 25) << 2)

_MAGNITUDES = (np.arange(_FIRST, _LAST + 1, dtype=np.int32) << _DROPPED_BITS).view(np.float32)

_EDGES = np.concatenate([-_MAGNITUDES[::-1], _MAGNITUDES]).astype(np.float64)

NUM_BUCKETS = len(_EDGES) - 1


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Histogram:
    """The number of values in each bucket.

    Attributes:
        edges: `[n + 1]`, increasing. The outermost buckets also hold the values beyond them.
        counts: `[n]`; `counts[i]` is the number of values between `edges[i]` and `edges[i + 1]`.
    """

    edges: npt.NDArray[np.float64]
    counts: npt.NDArray[np.float64]


def histogram_of(counts: npt.ArrayLike) -> Histogram:
    """Build a `Histogram` from `NUM_BUCKETS` counts, trimming the empty buckets at both ends."""
    counts = np.asarray(counts, np.float64)
    occupied = np.flatnonzero(counts)
    first, last = (occupied[0], occupied[-1] + 1) if occupied.size else (0, 0)
    return Histogram(edges=_EDGES[first : last + 1], counts=counts[first:last])


def bucket_counts(values: tf.Tensor | npt.NDArray[Any]) -> tf.Tensor:
    """Return how many of `values` lie in each of the fixed buckets.

    A bucket of positive numbers includes its lower edge, and a bucket of negative numbers its upper
    edge. The middle bucket holds the values within 4e-12 of zero. An infinite value counts as the
    largest finite value; NaN is not counted.

    Args:
        values: Numbers of any type and shape.

    Returns:
        `[NUM_BUCKETS]`, float32.
    """
    flat = tf.reshape(tf.cast(tf.convert_to_tensor(values), tf.float32), [-1])
    magnitude = tf.bitwise.right_shift(tf.bitcast(tf.abs(flat), tf.int32), _DROPPED_BITS)
    # The distance, in buckets, from the middle bucket, which contains zero.
    distance = tf.clip_by_value(magnitude - _FIRST + 1, 0, _LAST - _FIRST)
    middle = NUM_BUCKETS // 2
    bucket = tf.where(flat < 0, middle - distance, middle + distance)
    # `unsorted_segment_sum` ignores negative segment IDs.
    bucket = tf.where(tf.math.is_nan(flat), -1, bucket)
    return tf.math.unsorted_segment_sum(tf.ones_like(flat), bucket, NUM_BUCKETS)


Values: TypeAlias = Mapping[str, "int | float | Values"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """The values of one report.

    Attributes:
        step: The global step at which the values were read.
        split: What the values were measured on: `"train"`, `"validation"`, `"test"`, …
        values: Python numbers by name. A nested mapping groups related values, such as the metrics
            of one of several data sets.
        images: Images by name: `[height, width, channels]`, uint8. Text writers ignore them.
        histograms: Histograms by name. Text writers ignore them.
        total_steps: The step at which training ends, if this is a training report.
    """

    step: int
    split: str
    values: Values
    images: Mapping[str, npt.NDArray[np.uint8]] = dataclasses.field(default_factory=dict)
    histograms: Mapping[str, Histogram] = dataclasses.field(default_factory=dict)
    total_steps: int | None = None

    @property
    def eta_seconds(self) -> float | None:
        """The remaining training time at the rate of this report, in seconds.

        It is `None` without `total_steps` or without `steps_per_second` among the values.
        """
        rate = self.values.get("steps_per_second")
        if self.total_steps is None or not isinstance(rate, int | float) or rate <= 0:
            return None
        return max(self.total_steps - self.step, 0) / rate

    def flat(self) -> dict[str, int | float]:
        """Return the values with nested names joined by `/`."""
        return nested_dict.flatten_nested_dict(self.values, "/")


def numbers(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scalars in `logs` as Python numbers, with the same nesting.

    Accepts Python and NumPy values. Values that are not single numbers (an image, a string, a
    confusion matrix) are skipped, with one warning per name.
    """
    kept: dict[str, Any] = {}
    for name, value in logs.items():
        if isinstance(value, Mapping):
            kept[name] = numbers(value)
        elif (number := as_number(value)) is not None:
            kept[name] = number
        else:
            warn_left_out(name, value)
    return kept


def as_number(value: object) -> int | float | None:
    """Return a Python or NumPy value as a number, or `None` if it is not a single number."""
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind in "OSUMmc":
        return None
    # bfloat16 and similar types are of kind "V" or "f"; all of them convert to a Python float.
    return int(array.item()) if array.dtype.kind in "biu" else float(array.reshape(()))


def warn_left_out(name: str, value: Any) -> None:
    """Warn once that a value is not written, and say how to report its elements."""
    shape = np.shape(value)
    terminal.warn_once(
        "`%s` %s and is not a single number, so writers skip it. Average its elements, or report "
        "one entry per element: return a dictionary of numbers from the metric's `result`, such as "
        "`{'%s/0': values[0]}`.",
        name,
        f"has the shape {shape}" if shape else f"is a {type(value).__name__}",
        name,
    )


class Writer(abc.ABC):
    """Base class of writers, which receive the records of a run.

    A writer is a context manager that closes itself on exit. In a job with several workers, create
    writers only on the chief: they write files.
    """

    @abc.abstractmethod
    def write(self, record: Record) -> None:
        """Write one record, which may be buffered until `flush`."""

    def progress(self, step: int) -> None:  # noqa: B027 - most writers show nothing between records
        """Show that training has reached `step`, between two records.

        A controller calls this method when training begins, and then between two calls of the
        trainer, but not more than ten times a second. An `AsyncWriter` does not pass the call on.
        """

    def flush(self) -> None:  # noqa: B027 - most writers buffer nothing
        """Make everything written so far visible to readers."""

    def sync(self) -> None:
        """Make everything written so far durable, before a checkpoint is committed.

        This method may be called by the thread that saves. Afterwards, every record up to the step
        of the checkpoint survives a killed process or a power loss. Writers of files override it;
        the default implementation calls `flush`.
        """
        self.flush()

    def rewind(self, step: int) -> None:  # noqa: B027 - only records in files can be removed
        """Remove the records after `step`, because training restarts from there.

        Writers of files override this method, so that steps that are trained again are recorded
        once. If a record of `step` itself is written again, for example by a repeated evaluation,
        it replaces the earlier record.

        Args:
            step: The step of the restored state.
        """

    def close(self) -> None:
        """Flush and release files; may be called more than once."""
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        self.close()


@dataclasses.dataclass(frozen=True)
class RunInfo:
    """Describes one run.

    Attributes:
        model_dir: The model directory.
        total_steps: The step at which training ends.
        config: The config, as nested mappings of plain values.
        mode: The mode of the run, such as `train_and_eval`.
        train_epochs: The number of epochs in `total_steps`; `None` if the config gives steps.
    """

    model_dir: str
    total_steps: int
    config: Mapping[str, Any]
    mode: str = "train"
    train_epochs: float | None = None

    def file(self, name: str) -> str:
        """Return the path of a record file in the model directory.

        An evaluation-only job writes its own file, for example `metrics.eval.json` instead of
        `metrics.json`: it may share the directory with a training job, which rewinds its own
        records when it restarts.
        """
        stem, extension = os.path.splitext(name)
        middle = "" if flags.Mode(self.mode).trains else f".{self.mode}"
        return os.path.join(self.model_dir, f"{stem}{middle}{extension}")

    def flat_config(self) -> dict[str, Any]:
        """Return the config with dotted names, as in overrides.

        Lists become JSON strings, and passwords in URLs are masked.
        """
        flat = nested_dict.flatten_nested_dict(self.config, ".")
        return {path: _plain(value) for path, value in flat.items()}


def _plain(value: object) -> object:
    text = json.dumps(value, default=str) if isinstance(value, list | tuple) else value
    return yaml_io.mask_passwords(text) if isinstance(text, str) else text


class MultiWriter(Writer):
    """Passes every call to each of `writers`, in order.

    If a writer fails, the remaining writers are still called; its error is raised afterwards.
    """

    def __init__(self, writers: Iterable[Writer]) -> None:
        self._writers = tuple(writers)

    def write(self, record: Record) -> None:
        self._each(lambda one: one.write(record))

    def progress(self, step: int) -> None:
        self._each(lambda one: one.progress(step))

    def flush(self) -> None:
        self._each(lambda one: one.flush())

    def sync(self) -> None:
        self._each(lambda one: one.sync())

    def rewind(self, step: int) -> None:
        self._each(lambda one: one.rewind(step))

    def close(self) -> None:
        self._each(lambda one: one.close())

    def _each(self, act: Callable[[Writer], None]) -> None:
        # An exit stack runs all of its callbacks even if some raise, in reverse order.
        with contextlib.ExitStack() as stack:
            for one in reversed(self._writers):
                stack.callback(act, one)


class LastRecordsWriter(Writer):
    """Keeps the values reported last for each split.

    Several records of one step are merged. Values recorded after the last training report, for
    example by a hook's `after_train`, produce a record of their own, which must not hide the loss.
    """

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, Any]] = {}

    def write(self, record: Record) -> None:
        before = self._rows.get(record.split, {})
        kept = before if before.get("step") == record.step else {}
        # `key` is merged twice: first so that `step` is the first entry, and last so that a value
        # named `step` can't replace it.
        key = {"step": record.step}
        self._rows[record.split] = {**key, **kept, **record.flat(), **key}

    def rewind(self, step: int) -> None:
        self._rows = {split: row for split, row in self._rows.items() if row["step"] <= step}

    def rows(self) -> dict[str, Any]:
        """Return the last step and values of each split, as rows for `summary_table`."""
        return dict(self._rows)


class AsyncWriter(Writer):
    """A writer that passes records to another writer in a background thread, in order.

    Only `sync` and `close` wait until all records are written; `flush` only queues a flush of the
    inner writer. When `max_records` records are waiting, `write` blocks too. An error raised by the
    inner writer is raised by the next call of any method of this writer, and several errors are
    raised together as an `ExceptionGroup`. Records that follow a failed one are still written.
    Records that are still waiting when the process exits are written at exit. A forked process
    starts with an empty queue: the waiting records belong to its parent.

    Args:
        inner: The writer that receives the records. It is closed together with this writer.
        max_records: Maximum number of records that may wait.
    """

    def __init__(self, inner: Writer, *, max_records: int = 100) -> None:
        self._inner = inner
        self._max_records = max_records
        self._thread: _Thread | None = None

    def write(self, record: Record) -> None:
        self._started().put(lambda: self._inner.write(record))
        self._raise_errors()

    def flush(self) -> None:
        if self._thread is not None and not self._thread.is_of_another_process:
            self._thread.put(self._inner.flush)
        self._raise_errors()

    def sync(self) -> None:
        """Wait until everything written so far is durable."""
        if self._thread is None or self._thread.is_of_another_process:
            self._inner.sync()
            return
        self._thread.put_and_wait(self._inner.sync)
        self._raise_errors()

    def rewind(self, step: int) -> None:
        self._started().put(lambda: self._inner.rewind(step))
        self._raise_errors()

    def close(self) -> None:
        errors = self._stop()
        try:
            self._inner.close()
        except BaseException as error:  # Raised below, together with the thread's errors.
            errors.append(error)
        _raise_all(errors)

    def _started(self) -> "_Thread":
        if self._thread is None or self._thread.is_of_another_process:
            self._thread = _Thread(self._max_records)
            # Without an exit handler, the daemon thread would be killed in the middle of a write
            # when the process exits.
            atexit.register(self._close_at_exit)
        return self._thread

    def _stop(self) -> list[BaseException]:
        atexit.unregister(self._close_at_exit)
        thread, self._thread = self._thread, None
        if thread is None or thread.is_of_another_process:
            return []
        thread.stop()
        return thread.take_errors()

    def _raise_errors(self) -> None:
        if self._thread is not None:
            _raise_all(self._thread.take_errors())

    def _close_at_exit(self) -> None:
        # A forked process also runs the exit handlers, but the writer belongs to its parent.
        if self._thread is not None and not self._thread.is_of_another_process:
            self.close()


class _Thread:
    """A background thread that runs tasks in order and collects their errors."""

    def __init__(self, max_waiting: int) -> None:
        self._process = os.getpid()
        self._errors: list[BaseException] = []
        self._tasks: queue.Queue[Callable[[], None] | None] = queue.Queue(max_waiting)
        # Use a daemon thread. Otherwise, a process that ends without `close` would wait forever.
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()

    @property
    def is_of_another_process(self) -> bool:
        return self._process != os.getpid()

    def put(self, task: Callable[[], None]) -> None:
        self._tasks.put(task)

    def put_and_wait(self, task: Callable[[], None]) -> None:
        is_done = threading.Event()
        self.put(task)
        self.put(is_done.set)
        # Do not wait forever: another thread may call `stop` before the task has run.
        while not is_done.wait(timeout=0.1) and self._thread.is_alive():
            pass

    def stop(self) -> None:
        self._tasks.put(None)
        self._thread.join()

    def take_errors(self) -> list[BaseException]:
        errors, self._errors = self._errors, []
        return errors

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except BaseException as error:  # The next call to the writer raises the error.
                self._errors.append(error)


def _raise_all(errors: list[BaseException]) -> None:
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise BaseExceptionGroup("A background writer failed several times.", errors)
