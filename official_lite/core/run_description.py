"""What the checkpoints of a run say of it, in their commit files."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from official_lite.checkpoint import state_description
from official_lite.core import run_record

__all__ = ["RunDescription"]


class RunDescription:
    """Describes a run, for JSON; it is worked out once for all saves with one config.

    Args:
        trainer: The trainer, whose model and optimizer are described.
        strategy: Its strategy.
        get_params: Returns the config, which is another one once epochs or a mode are decided.
    """

    def __init__(
        self, trainer: Any, strategy: tf.distribute.Strategy, get_params: Callable[[], Any]
    ) -> None:
        self._trainer = trainer
        self._strategy = strategy
        self._get_params = get_params
        self._described: tuple[Any, dict[str, Any]] | None = None

    def __call__(self) -> dict[str, Any]:
        params = self._get_params()
        if self._described is None or self._described[0] is not params:
            self._described = (params, self._describe(params))
        return self._described[1]

    def _describe(self, params: Any) -> dict[str, Any]:
        trainer = self._trainer
        model, optimizer = getattr(trainer, "model", None), getattr(trainer, "optimizer", None)
        return {
            **state_description.describe(model, optimizer),
            "global_batch_size": getattr(trainer, "global_batch_size", None),
            "num_replicas": self._strategy.num_replicas_in_sync,
            "execution": getattr(trainer, "execution", None),
            "config_sha256": run_record.config_sha256(params),
            "versions": run_record.versions(),
        }
