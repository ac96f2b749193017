"""Writes what a search has found so far into the directory of its run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from absl import logging

from official_lite import orbit
from official_lite.checkpoint import directories
from official_lite.nas import architecture

__all__ = ["ExportArch"]


class ExportArch(orbit.Hook):
    """Writes `arch.json` at every checkpoint and at the end of a training that searches.

    Trainers of `nas` bring it with them.

    Args:
        at_checkpoints: Whether also before the end; not where it takes long to find out.
    """

    name = "export_arch"

    def __init__(self, at_checkpoints: bool = True) -> None:
        self._at_checkpoints = at_checkpoints
        self._metric: dict[str, float] = {}

    def after_eval(self, logs: Mapping[str, Any]) -> None:
        self._metric = {
            name: float(value)
            for name, value in logs.items()
            if not hasattr(value, "__len__") and getattr(value, "shape", ()) == ()
        }

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
        if self.controller.model_dir is None or not directories.is_chief(trainer.strategy):
            return
        architecture.write_arch(
            self.controller.model_dir,
            arch,
            space=trainer.space,
            probs=trainer.probs(),
            metric=self._metric,
            step=int(trainer.global_step.numpy()),
        )
        logging.info("The architecture at step %d: %s", trainer.global_step.numpy(), arch)
