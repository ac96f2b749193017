"""Writes what a search has found so far into the directory of its run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from absl import logging

from official_lite import orbit
from official_lite.checkpoint import directories
from official_lite.nas import architecture
from official_lite.telemetry import line_file

__all__ = ["ExportArch"]


class ExportArch(orbit.Hook):
    """Writes `arch.json` at every checkpoint and at the end of a training that searches.

    And, at every evaluation as well, a line of `arch_history.jsonl`: how probable each option has
    become. Trainers of `nas` bring it with them.

    Args:
        at_checkpoints: Whether also before the end; not where it takes long to find out.
    """

    name = "export_arch"

    def __init__(self, at_checkpoints: bool = True) -> None:
        self._at_checkpoints = at_checkpoints
        self._metric: dict[str, float] = {}
        self._noted_step = -1

    def after_eval(self, logs: Mapping[str, Any]) -> None:
        self._metric = {
            name: float(value)
            for name, value in logs.items()
            if not hasattr(value, "__len__") and getattr(value, "shape", ()) == ()
        }
        self._note_probs()

    def on_checkpoint(self, path: str) -> None:
        if self._at_checkpoints:
            self._write()

    def after_train(self, success: bool) -> None:
        if success:
            self._write()

    def state_dict(self) -> dict[str, Any]:
        return {"metric": self._metric}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._metric = dict(state["metric"])

    def _write(self) -> None:
        trainer: Any = self.trainer
        # On all workers, as it may take all of them to find out.
        arch = trainer.export()
        directory = self._directory()
        if directory is None:
            return
        self._note_probs()
        architecture.write_arch(
            directory,
            arch,
            space=trainer.space,
            probs=trainer.probs(),
            metric=self._metric,
            step=int(trainer.global_step.numpy()),
        )
        logging.info("The architecture at step %d: %s", trainer.global_step.numpy(), arch)

    def _note_probs(self) -> None:
        trainer: Any = self.trainer
        directory, step = self._directory(), int(trainer.global_step.numpy())
        if directory is None or step == self._noted_step or not (probs := trainer.probs()):
            return
        self._noted_step = step
        history = line_file.LineFile(os.path.join(directory, architecture.HISTORY_FILE))
        history.append(architecture.to_history_line(step, probs))
        history.close()

    def _directory(self) -> str | None:
        """Where this process writes; None if another one does, or nobody."""
        trainer: Any = self.trainer
        is_chief = directories.is_chief(trainer.strategy)
        return self.controller.model_dir if is_chief else None
