"""The hook that writes the current architecture of a search to the model directory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from absl import logging

from official_lite import orbit
from official_lite.checkpoint import directories
from official_lite.nas import architecture
from official_lite.telemetry import text_file_writers

__all__ = ["ExportArch"]


class ExportArch(orbit.Hook):
    """A hook that writes `arch.json` at every checkpoint and at the end of a search.

    At the same times and after every evaluation it also appends the probability of each option to
    `arch_history.jsonl`. The trainers of `nas` add this hook themselves.

    Args:
        at_checkpoints: Whether to write at checkpoints, too. Set it to False for trainers whose
            `export` is slow.
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
        # Export on all workers, because the export may require all of them.
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
        history = text_file_writers.LineFile(os.path.join(directory, architecture.HISTORY_FILE))
        history.append(architecture.to_history_line(step, probs))
        history.close()

    def _directory(self) -> str | None:
        """Return the directory to which this process writes; None if it does not write."""
        trainer: Any = self.trainer
        is_chief = directories.is_chief(trainer.strategy)
        return self.controller.model_dir if is_chief else None
