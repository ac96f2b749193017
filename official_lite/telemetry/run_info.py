"""What a writer may know about the run it writes for."""

import dataclasses
import json
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
    """

    model_dir: str
    total_steps: int
    config: Mapping[str, Any]

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
