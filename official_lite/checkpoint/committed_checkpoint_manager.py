"""A checkpoint manager that relies only on checkpoints it can verify."""

import collections
import contextlib
import copy
import functools
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from official_lite.checkpoint import (
    chain,
    commit,
    fallback,
    keras2_converter,
    latest,
    model_state,
)
from official_lite.common import error_report, errors, files

__all__ = ["require_space", "CommittedCheckpointManager"]


# The required free space, relative to the size of the last checkpoint. The next checkpoint may be a
# little larger, and other processes also write to the disk.
_RESERVE = 1.2


def require_space(directory: str, size: int) -> None:
    """Check that there is room for another checkpoint as large as the last one.

    Args:
        directory: The directory of the checkpoints. Remote file systems are not checked because
            their free space is unknown.
        size: The size of the last checkpoint in bytes.

    Raises:
        errors.DiskFullError: There is too little space.
    """
    if files.is_remote(directory) or not files.exists(directory):
        return
    free = shutil.disk_usage(directory).free
    if free < _RESERVE * size:
        raise errors.DiskFullError(
            f"Can't save a checkpoint in {directory}: the last one has {size:,} bytes, but only "
            f"{free:,} bytes are free. Free some space or lower `trainer.max_to_keep`, then start "
            "the same command again to resume."
        )


Describe = Callable[[], Mapping[str, Any]]


class CommittedCheckpointManager(tf.train.CheckpointManager):
    """A `tf.train.CheckpointManager` that tolerates interrupted saves and damaged files.

    * A checkpoint is valid only when its commit file, which is written last, exists. Older
      checkpoints are removed only after that, each starting with its commit file.
    * `restore_or_initialize` verifies the latest checkpoint and falls back to the previous one if
      it is damaged. The damaged one is moved into `damaged/`; nothing is deleted. If no checkpoint
      is intact, it raises an error.
    * `on_save` can make other data that belongs to a state durable, such as the records of a run,
      before the checkpoint of that state becomes valid.
    * The first save removes what a killed process left behind.
    * Each save first checks the free disk space, and a failed save removes its files.

    Directories written by TensorFlow's own manager are supported without conversion. Checkpoints
    that Keras 2 wrote are converted when they are restored, and never removed.

    Args:
        checkpoint: The checkpoint to save.
        directory: The directory of the checkpoints.
        max_to_keep: The number of checkpoints to keep; None keeps all.
        keep_checkpoint_every_n_hours: See `tf.train.CheckpointManager`.
        checkpoint_name: The part of the name before the number.
        step_counter: See `tf.train.CheckpointManager`.
        checkpoint_interval: See `tf.train.CheckpointManager`.
        init_fn: Called if there is nothing to restore.
        last_checkpoint_step: See `tf.train.CheckpointManager`.
        describe: Returns a description of the run, which is stored in commit files and compared
            with the description in the checkpoint that is restored; see `model_state`.
        after_restore: Called after a restore with the description of the run in the commit file.
        optional: Returns the variables that may be missing in a checkpoint that is restored. Any
            other missing variable is an error; see `fallback.require_complete`, also for the
            default.
        moves_damaged: Whether to move damaged checkpoints to `damaged/`. Processes that only read
            should disable this.
        seal: Called when the files of a checkpoint are complete, possibly in another thread. It
            completes the record of the run and returns the checksum of the record's line in the
            `chain`, to which the checkpoint is then added. Without this function, or if it returns
            None, no chain is kept.

    Attributes:
        on_save: Called in each save before the state is read. The function it returns is called
            when the files are complete and before the commit file is written, possibly in another
            thread.
        restored: The path of the checkpoint that was restored last; None if there was none.
    """

    on_save: Callable[[], Callable[[], None]] | None = None
    restored: str | None = None

    def __init__(
        self,
        checkpoint: tf.train.Checkpoint,
        directory: str | os.PathLike[str],
        max_to_keep: int | None,
        keep_checkpoint_every_n_hours: float | None = None,
        checkpoint_name: str = "ckpt",
        step_counter: tf.Variable | None = None,
        checkpoint_interval: int | None = None,
        init_fn: Callable[[], None] | None = None,
        last_checkpoint_step: int | None = None,
        *,
        describe: Describe | None = None,
        after_restore: Callable[[Mapping[str, Any]], None] | None = None,
        optional: Callable[[], Iterable[Any]] | None = None,
        moves_damaged: bool = True,
        seal: Callable[[], str | None] | None = None,
    ) -> None:
        directory = os.fspath(directory)
        # TensorFlow's preemption handler accepts only subclasses of `tf.train.CheckpointManager`.
        # The inherited constructor reads the `checkpoint` file and fails if that file is damaged,
        # so pass a directory without such a file.
        super().__init__(
            checkpoint,
            os.path.join(directory, "no", "such", "directory"),
            max_to_keep,
            keep_checkpoint_every_n_hours=keep_checkpoint_every_n_hours,
            checkpoint_name=checkpoint_name,
            step_counter=step_counter,
            checkpoint_interval=checkpoint_interval,
            init_fn=init_fn,
            last_checkpoint_step=last_checkpoint_step,
        )
        # Set both attributes here, because the inherited constructor sets them only with an
        # interval.
        self._step_counter = step_counter
        self._last_checkpoint_step = last_checkpoint_step
        self._directory = directory
        self._checkpoint_name = checkpoint_name
        self._checkpoint_prefix = os.path.join(directory, checkpoint_name)
        self._describe = describe
        self._after_restore = after_restore
        self._optional = optional
        self._moves_damaged = moves_damaged
        self._seal = seal
        # The checksum of the commit file of the last restored or saved checkpoint.
        self._previous: str | None = None
        self._has_saved = False
        self._last_size: int | None = None
        state = latest.read_state(directory)
        if state is not None:
            self._last_preserved_timestamp = min(time.time(), state.last_preserved_timestamp)
        self._manage(latest.find_managed(directory, checkpoint_name), state)

    def save(
        self,
        checkpoint_number: int | None = None,
        check_interval: bool = True,
        options: tf.train.CheckpointOptions | None = None,
    ) -> str | None:
        """Save a checkpoint; see `tf.train.CheckpointManager`.

        If the manager has a `step_counter`, each step is saved at most once, also without an
        interval.

        Returns:
            The path; None if no save was needed.

        Raises:
            errors.DiskFullError: The disk is full, or has too little space for another
                checkpoint.
        """
        if not self._is_due(check_interval):
            return None
        self._tidy_up_once()
        self._require_space()
        last_step, step = self._last_checkpoint_step, self._step
        finish = self.on_save() if self.on_save is not None else lambda: None
        options = _with_callback(options, functools.partial(self._commit, finish))
        # By default, the base class increments the counter before it uses it as the number.
        number = (
            self.checkpoint.save_counter + 1 if checkpoint_number is None else checkpoint_number
        )
        prefix = f"{self._checkpoint_prefix}-{int(number)}"
        withdrawn = _withdraw(prefix)
        try:
            path: str | None = super().save(checkpoint_number, check_interval, options)
        except BaseException as error:
            self._last_checkpoint_step = last_step
            # Raise only the save's error, because the removal may fail for the same reason.
            with contextlib.suppress(OSError, tf.errors.OpError):
                self._remove_failed(prefix, withdrawn)
            if not error_report.is_disk_full(error):
                raise
            raise errors.DiskFullError(
                f"The disk is full, so no checkpoint could be saved in {self._directory}. Earlier "
                "checkpoints are unchanged. Free some space and start the same command again."
            ) from error
        self._last_checkpoint_step = step
        return path

    def restore(self, path: str) -> None:
        """Restore the given checkpoint, whether or not it is the latest.

        Raises:
            errors.CheckpointError: The checkpoint does not match the run, lacks a variable, or has
                a variable of another shape.
        """
        found = commit.read(path)
        if found is not None:
            self._require_fit(path, found.state)
        fallback.restore(self.checkpoint, path, optional=self._optional and self._optional())
        # Forget the last saved step: the checkpoint may come from another directory, in which case
        # the restored step is not saved in this directory yet.
        self._last_checkpoint_step = None
        self._follow(path)
        self._adapt(path)

    def restore_or_initialize(self) -> str | None:
        """Restore the latest intact checkpoint; if there is no checkpoint, call `init_fn`.

        Returns:
            The path; None if there was no checkpoint.

        Raises:
            errors.CheckpointError: No checkpoint is intact, or the latest intact one does not match
                the run or lacks a variable.
        """
        while True:
            paths, is_listed = self._find_paths()
            path, damaged = fallback.restore_newest(
                self.checkpoint, paths, check=self._require_fit, optional=self._optional
            )
            # A process that only reads may list a checkpoint just before the training process
            # removes it. Such a checkpoint only seems to be damaged, so try again with a new list.
            if self._moves_damaged or set(damaged) <= set(self._find_paths()[0]):
                break
        # An interrupted first save leaves a single unlisted checkpoint behind. Such a checkpoint is
        # not an error.
        is_first_save = not is_listed and len(damaged) == 1
        if path is None and damaged and not is_first_save:
            names = ", ".join(map(os.path.basename, damaged))
            raise errors.CheckpointError(
                f"No checkpoint in {self._source_directory} can be restored: {names}. The log "
                "says what is wrong with each. Nothing was removed. To start from scratch, use "
                "another directory."
            )
        if self._moves_damaged:
            for each in damaged:
                chain.append_removal(each, "damaged")
                fallback.set_aside(each)
        self._follow(path)
        if path is None:
            if self._init_fn is not None:
                self._init_fn()
            return None
        self._adapt(path)
        if self._source_directory == self._directory:
            managed = latest.find_managed(self._directory, self._checkpoint_name) or paths
            usable = paths[: paths.index(path) + 1]
            self._manage([each for each in managed if each in usable])
        self._last_checkpoint_step = self._step
        return path

    def allow_repeated_save(self) -> None:
        """Let the next save replace the checkpoint of the current step, whose state has changed."""
        self._last_checkpoint_step = None

    def keep_only(self, paths: Collection[str]) -> None:
        """Remove all checkpoints of this name except `paths`, at least one of which must exist."""
        found = commit.list_committed(self._directory, self._checkpoint_name)
        for path in found:
            if path not in paths:
                chain.append_removal(path, "not to be kept")
                commit.remove_checkpoint(path)
        self._manage([path for path in found if path in paths])
        self._record_state()

    @property
    def _step(self) -> int | None:
        return None if self._step_counter is None else int(self._step_counter.numpy())

    @property
    def _source_directory(self) -> str:
        """The directory from which checkpoints are restored."""
        return self._directory

    def _find_paths(self) -> tuple[list[str], bool]:
        """Return the checkpoints from the oldest to the latest, and whether they are listed."""
        listed = latest.find_checkpoints(self._source_directory, self._checkpoint_name)
        if listed:
            return listed, True
        return latest.find_unlisted(self._source_directory, self._checkpoint_name), False

    def _manage(self, paths: Sequence[str], state: latest.CheckpointState | None = None) -> None:
        """Start managing existing checkpoints, which are listed from the oldest to the latest."""
        now = time.time()
        times: dict[str, float] = {}
        if state is not None:
            names = map(os.path.basename, state.all_model_checkpoint_paths)
            times = dict(zip(names, state.all_model_checkpoint_timestamps, strict=False))
        self._maybe_delete = collections.OrderedDict(
            (path, min(now, times.get(os.path.basename(path), now)))
            for path in paths
            if not self._is_foreign(path)
        )
        self._latest_checkpoint = paths[-1] if paths else None

    def _follow(self, path: str | None) -> None:
        """Link the next checkpoint to a restored one, if this manager writes a checksum chain."""
        self.restored = path
        is_linked = self._seal and path is not None and files.exists(commit.path_of(path))
        self._previous = commit.checksum(path) if path is not None and is_linked else None

    def _adapt(self, path: str) -> None:
        """Call `after_restore`, if set, with the description in the commit file."""
        found = commit.read(path)
        if found is not None and self._after_restore is not None:
            self._after_restore(found.state)

    def _is_foreign(self, path: str) -> bool:
        """Return whether a checkpoint is intact and was written by Keras 2.

        This manager must not remove such a checkpoint.
        """
        return keras2_converter.is_keras2(path) and commit.find_damage(path) is None

    def _require_fit(self, path: str, state: Mapping[str, Any]) -> None:
        if self._describe is not None:
            model_state.require_same(state, self._describe(), path)
            model_state.warn_of_inexact_state(state, self._describe(), path)

    def _is_due(self, check_interval: bool) -> bool:
        """Return whether the current step is not saved yet, and the interval has passed."""
        step, last_step = self._step, self._last_checkpoint_step
        if step is None or last_step is None:
            return True
        interval = self._checkpoint_interval if check_interval else None
        return step != last_step and (interval is None or step - last_step >= interval)

    def _tidy_up_once(self) -> None:
        if self._has_saved:
            return
        self._has_saved = True
        if not commit.list_committed(self._directory):
            unlisted = latest.find_unlisted(self._directory, self._checkpoint_name)
            # Write commit files for existing checkpoints: once any checkpoint in a directory has a
            # commit file, those without a commit file are removed as unfinished.
            for path in {*self._maybe_delete, *filter(self._is_foreign, unlisted)}:
                commit.write(path)
                chain.adopt(path)
        commit.remove(self._directory, self._checkpoint_name)

    def _require_space(self) -> None:
        if self._last_size is None and self._latest_checkpoint is not None:
            self._last_size = sum(map(files.size, commit.list_files(self._latest_checkpoint)))
        if self._last_size is not None:
            require_space(self._directory, self._last_size)

    def _remove_failed(self, prefix: str, withdrawn: str | None) -> None:
        if withdrawn is not None:
            # TensorFlow does not replace the files of the previous save until the end of a save, so
            # they may still be intact.
            files.write_text(commit.path_of(prefix), withdrawn)
            if commit.find_damage(prefix) is None:
                chain.adopt(prefix)
            else:
                files.remove(commit.path_of(prefix))
        if not files.exists(commit.path_of(prefix)):
            commit.remove_checkpoint(prefix)
        commit.remove(self._directory, self._checkpoint_name)

    def _commit(self, finish: Callable[[], None], path: str) -> None:
        """Commit a checkpoint whose files are complete, before the base class removes old ones."""
        finish()
        record = self._seal() if self._seal else None
        links = {"previous": self._previous, "record": record} if record else None
        state = self._describe() if self._describe else {}
        self._last_size = commit.write(path, state, links).total_size
        if links:
            self._previous = chain.append_checkpoint(path)

    def _sweep(self) -> None:
        """Remove old checkpoints as the base class does, but remove their commit files first."""
        while self._max_to_keep and len(self._maybe_delete) > self._max_to_keep:
            path, timestamp = self._maybe_delete.popitem(last=False)
            hours = self._keep_checkpoint_every_n_hours
            if hours and timestamp - hours * 3600 >= self._last_preserved_timestamp:
                self._last_preserved_timestamp = timestamp
            else:
                chain.append_removal(path, "old")
                commit.remove_checkpoint(path)


def _withdraw(prefix: str) -> str | None:
    """Remove the commit file of a checkpoint that is saved again, and return its contents.

    The file would mark the checkpoint as complete while its files are replaced. If there is none,
    return None.
    """
    path = commit.path_of(prefix)
    if not files.exists(path):
        return None
    contents = files.read_text(path)
    chain.append_removal(prefix, "replaced")
    files.remove(path)
    return contents


def _with_callback(
    options: tf.train.CheckpointOptions | None, callback: Callable[[str], None]
) -> tf.train.CheckpointOptions:
    """Return a copy of the options with a callback that runs when the files are complete.

    The callback runs before all others.
    """
    options = copy.copy(options) if options is not None else tf.train.CheckpointOptions()
    others = options.experimental_write_callbacks or []
    options.experimental_write_callbacks = [callback, *others]
    return options
