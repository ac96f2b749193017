"""What a writer may know about the run it writes for."""

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["RunInfo"]


@dataclasses.dataclass(frozen=True)
class RunInfo:
    """One run.

    Attributes:
      model_dir: Its folder.
      total_steps: The step at which training ends.
      config: Its config, as nested mappings of plain values.
      mode: What it does, such as `train_and_eval`.
    """

    model_dir: str
    total_steps: int
    config: Mapping[str, Any]
    mode: str = "train"

    def file(self, name: str) -> str:
        """Return the path of a file of records.

        A job that only evaluates has a file of its own, `metrics.eval.json` for `metrics.json`: it
        may look at the directory of a running training, which rewinds its own records when it
        restarts.
        """
        stem, extension = os.path.splitext(name)
        middle = "" if "train" in self.mode else f".{self.mode}"
        return os.path.join(self.model_dir, f"{stem}{middle}{extension}")

    def flat_config(self) -> dict[str, Any]:
        """The config with dotted names, as in an override; a list is a line of JSON."""
        return dict(_flatten(self.config))


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            yield prefix + name, json.dumps(value, default=str)
        else:
            yield prefix + name, value
