"""Information about a run that is available to its writers."""

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["RunInfo"]


@dataclasses.dataclass(frozen=True)
class RunInfo:
    """Describes one run.

    Attributes:
      model_dir: The model directory.
      total_steps: The step at which training ends.
      config: The config, as nested mappings of plain values.
      mode: The mode of the run, such as `train_and_eval`.
    """

    model_dir: str
    total_steps: int
    config: Mapping[str, Any]
    mode: str = "train"

    def file(self, name: str) -> str:
        """Return the path of a record file in the model directory.

        An evaluation-only job writes its own file, for example `metrics.eval.json` instead of
        `metrics.json`: it may share the directory with a running training, which rewinds its own
        records when it restarts.
        """
        stem, extension = os.path.splitext(name)
        middle = "" if "train" in self.mode else f".{self.mode}"
        return os.path.join(self.model_dir, f"{stem}{middle}{extension}")

    def flat_config(self) -> dict[str, Any]:
        """Return the config with dotted names, as in overrides; lists become JSON strings."""
        return dict(_flatten(self.config))


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            yield prefix + name, json.dumps(value, default=str)
        else:
            yield prefix + name, value
