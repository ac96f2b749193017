"""What an architecture search has written into the directory of its run."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from official_lite.common import errors, files
from official_lite.nas import architecture

__all__ = ["FoundArch", "read_found_arch"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FoundArch:
    """An architecture, and how it was come to.

    Attributes:
        arch: What is chosen, by label.
        options: What there was to choose from; empty if the file does not say.
        probs: How probable each option has become; empty where nothing is.
        step: Of the training; None if the file does not say.
        history: The probabilities on the way, from the first step to the last.
    """

    arch: architecture.Arch
    options: Mapping[str, Sequence[Any]]
    probs: Mapping[str, Sequence[float]]
    step: int | None
    history: Sequence[tuple[int, Mapping[str, Sequence[float]]]]


def read_found_arch(model_dir: str) -> FoundArch | None:
    """Reads `arch.json` and its history; None if there is none.

    Raises:
        errors.ConfigValueError: The file is none of ours.
    """
    path = os.path.join(model_dir, architecture.ARCH_FILE)
    if not files.exists(path):
        return None
    arch = architecture.read_arch(path)
    content = json.loads(files.read_text(path))
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
