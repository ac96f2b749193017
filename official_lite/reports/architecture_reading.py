"""Reading of the results that an architecture search wrote to its model directory."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from official_lite.common import errors, files
from official_lite.nas import architecture

__all__ = ["FoundArch", "read_found_arch"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FoundArch:
    """An architecture and the search that produced it.

    Attributes:
        arch: The chosen option of each label.
        options: All options of each label; empty if the file does not contain them.
        probs: The probability of each option; empty if there are none.
        step: The training step; None if the file does not contain it.
        history: The probabilities over time, from the first step to the last.
    """

    arch: architecture.Arch
    options: Mapping[str, Sequence[Any]]
    probs: Mapping[str, Sequence[float]]
    step: int | None
    history: Sequence[tuple[int, Mapping[str, Sequence[float]]]]


def read_found_arch(model_dir: str) -> FoundArch | None:
    """Read `arch.json` and its history; return None if there is no such file.

    Raises:
        errors.ConfigValueError: The file is damaged or has another format.
    """
    path = os.path.join(model_dir, architecture.ARCH_FILE)
    if not files.exists(path):
        return None
    arch = architecture.read_arch(path)
    content = files.read_json(path)
    try:
        return FoundArch(
            arch=arch,
            options={label: list(each) for label, each in content.get("options", {}).items()},
            probs={
                label: [float(p) for p in each] for label, each in content.get("probs", {}).items()
            },
            step=content.get("step"),
            history=architecture.read_history(model_dir),
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise errors.ConfigValueError(f"{path} is damaged: {error}") from error
