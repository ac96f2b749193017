"""The directory of the best checkpoints of a run, which is part of the training state."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from official_lite.checkpoint import async_checkpoint_manager, commit, directories
from official_lite.common import files

__all__ = ["BEST_CHECKPOINT_NAME", "STEP_KEY", "BestCheckpoints"]

BEST_CHECKPOINT_NAME = "best_ckpt"
STEP_KEY = "best_ckpt_global_step"

_HISTORY = "best"


class BestCheckpoints:
    """A store of the best checkpoints and of the history of their evaluations.

    ::

        best_ckpt/best_ckpt-300.*    the best checkpoint; its commit file has the history
        best_ckpt/info.json          the metrics of its evaluation

    The history holds the metrics of each evaluation that was the best so far. It is written into
    the commit file of the checkpoint, so that the two are always consistent. When training restarts
    from an earlier checkpoint, it calls `rewind`, which restores the history of that step.

    The best checkpoint of each state that training may return to is kept. Training calls `protect`
    before it saves a state and `settle` when that save is complete.

    Args:
        directory: The directory, which all workers share and only the chief writes to.
        max_to_keep: The number of checkpoints to keep: the best one and the previous best ones.
        strategy: The strategy of the run. Defaults to the current strategy.
    """

    def __init__(
        self,
        directory: str,
        max_to_keep: int = 1,
        strategy: tf.distribute.Strategy | None = None,
    ) -> None:
        self._directory = directory
        self._max_to_keep = max_to_keep
        self._strategy = strategy
        self._writable_directory: str | None = None
        self._history = _read_history(directory)
        # The steps of checkpoints that are kept although a better one exists. Each was the best
        # when a state was saved from which training may still resume.
        self._protected: set[int] = set()

    @property
    def best(self) -> Mapping[str, Any] | None:
        """The metrics and the step of the best evaluation so far; None before the first one."""
        return self._history[-1] if self._history else None

    @property
    def info_path(self) -> str:
        return os.path.join(self._directory, "info.json")

    def save(
        self,
        checkpoint: tf.train.Checkpoint,
        step: int,
        metrics: Mapping[str, Any],
        writes_info: bool = True,
    ) -> None:
        """Save a checkpoint as the new best one.

        Args:
            checkpoint: The checkpoint to save.
            step: The step of the checkpoint.
            metrics: The metrics of its evaluation, which must be JSON-serializable.
            writes_info: Whether to write `info.json`.
        """
        history = [*self._up_to(step - 1), {**metrics, STEP_KEY: step}]
        protected = set(self._protected)
        manager = self._manager(checkpoint, history)
        manager.save(checkpoint_number=step, check_interval=False)
        # Objects in the checkpoint may have called `protect` during the save. Undo this, because
        # training never resumes from a best checkpoint.
        self._protected = protected
        self._history = history
        if writes_info:
            self.write_info()
        self._sweep()

    def write_info(self) -> None:
        """Write `info.json` for the best checkpoint, unless it is up to date."""
        if self.best is None or not directories.is_chief(self._strategy):
            return
        if _read_info(self._directory) != self.best:
            files.write_text(self.info_path, json.dumps(self.best, indent=4) + "\n")

    def reload(self) -> None:
        """Read the history again, which another process may have continued."""
        self._history = _read_history(self._directory)

    def rewind(self, step: int) -> None:
        """Discard all evaluations after `step`, from which training restarts.

        If no best checkpoint from before `step` exists, the later ones stay on disk until a new
        best checkpoint replaces them.
        """
        self._history = self._up_to(step)
        self._protected = self._last_steps()
        if directories.is_chief(self._strategy):
            files.remove_temporaries(self._directory)
            commit.remove(self._directory, BEST_CHECKPOINT_NAME)
        if self.best is not None and self.best[STEP_KEY] in self._steps(self._directory):
            self._sweep()
            self.write_info()

    def protect(self) -> None:
        """Keep the current best checkpoint from now on, because a state is about to be saved."""
        self._protected |= self._last_steps()

    def settle(self, step: int) -> None:
        """Stop protecting checkpoints that only states before `step` need.

        Training can no longer return to those states.
        """
        self._protected = {entry[STEP_KEY] for entry in self._up_to(step)[-1:]}
        self._sweep()

    def _up_to(self, step: int) -> list[dict[str, Any]]:
        return [entry for entry in self._history if entry[STEP_KEY] <= step]

    def _last_steps(self) -> set[int]:
        return {entry[STEP_KEY] for entry in self._history[-1:]}

    def _steps(self, directory: str) -> list[int]:
        paths = commit.list_committed(directory, BEST_CHECKPOINT_NAME)
        return [commit.step_of(path) for path in paths]

    def _writable(self) -> str:
        if self._writable_directory is None:
            self._writable_directory = directories.writable_directory(
                self._directory, self._strategy
            )
        return self._writable_directory

    def _sweep(self) -> None:
        """Remove the checkpoints that are neither among the best nor protected."""
        found = self._steps(self._writable())
        known = [entry[STEP_KEY] for entry in self._history]
        wanted = self._wanted([step for step in known if step in found])
        if wanted and not wanted.issuperset(found):
            self._manager(tf.train.Checkpoint()).keep_only({self._path(step) for step in wanted})

    def _wanted(self, known: Sequence[int]) -> set[int]:
        """Return the steps of the checkpoints to keep.

        For the best step and for each protected step, these are the last `max_to_keep` known steps
        up to and including that step.
        """
        ends = [self._history[-1][STEP_KEY] if self._history else -1, *self._protected]
        return {
            step
            for end in ends
            for step in [each for each in known if each <= end][-self._max_to_keep :]
        }

    def _path(self, step: int) -> str:
        return os.path.join(self._writable(), f"{BEST_CHECKPOINT_NAME}-{step}")

    def _manager(
        self, checkpoint: tf.train.Checkpoint, history: Sequence[Mapping[str, Any]] = ()
    ) -> async_checkpoint_manager.AsyncCheckpointManager:
        return async_checkpoint_manager.AsyncCheckpointManager(
            checkpoint,
            self._writable(),
            max_to_keep=None,
            checkpoint_name=BEST_CHECKPOINT_NAME,
            describe=lambda: {_HISTORY: history},
        )


def _read_history(directory: str) -> list[dict[str, Any]]:
    """Read the history from the latest commit file, or else from `info.json`."""
    for path in reversed(commit.list_committed(directory, BEST_CHECKPOINT_NAME)):
        try:
            found = commit.read(path)
        except (OSError, ValueError) as error:
            # Another worker may be removing the file.
            logging.warning("Skipping %s, whose commit file can't be read: %s", path, error)
            continue
        if found is not None and _HISTORY in found.state:
            return list(found.state[_HISTORY])
    info = _read_info(directory)
    return [] if info is None else [info]


def _read_info(directory: str) -> dict[str, Any] | None:
    path = os.path.join(directory, "info.json")
    if not files.exists(path):
        return None
    try:
        info = files.read_json(path)
        # The Model Garden writes the step as a float.
        return {**info, STEP_KEY: int(info[STEP_KEY])}
    except (KeyError, TypeError, ValueError) as error:
        logging.warning("%s can't be read and will be rewritten: %s", path, error)
        return None
