"""The record of a run's execution mode and of why it was chosen, stored in `model_dir`."""

import dataclasses
import json
import os
from collections.abc import Mapping

from official_lite.common import errors, files

__all__ = ["ExecutionRecord", "describe_execution", "load", "save"]


_FILE = "execution.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutionRecord:
    """The decision of `runtime.execution: auto`.

    Attributes:
        execution: The execution mode of training: `graph`, `xla` or `xla_loop`.
        eval_execution: The execution mode of evaluation.
        reason: Why the mode was chosen.
        train_steps: The training length, in steps, for which the mode was chosen.
        seconds_per_step: The measured time per step, by mode; empty if nothing was measured.
        seconds: The duration of the choice, in seconds.
    """

    execution: str
    eval_execution: str = "graph"
    reason: str
    train_steps: int
    seconds_per_step: Mapping[str, float] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    @property
    def was_compared(self) -> bool:
        """Whether several modes were measured."""
        return len(self.seconds_per_step) > 1

    def holds_for(self, train_steps: int) -> bool:
        """Return whether the choice is still valid if training takes `train_steps` steps."""
        return self.was_compared or train_steps <= self.train_steps

    def describe(self) -> str:
        """Return a one-line description."""
        figures = ", ".join(
            f"{mode} {1e6 * seconds:,.0f}" for mode, seconds in self.seconds_per_step.items()
        )
        measured = f" ({figures} µs per step)" if figures else ""
        return f"{self.execution}: {self.reason}{measured}"


def save(record: ExecutionRecord, model_dir: str) -> None:
    """Write the record to `model_dir`."""
    text = json.dumps(dataclasses.asdict(record), indent=2)
    files.write_text(os.path.join(model_dir, _FILE), text + "\n")


def load(model_dir: str) -> ExecutionRecord | None:
    """Read the record in `model_dir`; return None if there is none.

    Raises:
        errors.ConfigValueError: If the file is corrupt.
    """
    path = os.path.join(model_dir, _FILE)
    if not files.exists(path):
        return None
    try:
        return ExecutionRecord(**files.read_json(path))
    except (TypeError, ValueError) as error:
        raise errors.ConfigValueError(
            f"{path} is damaged ({error}). Remove it to choose the execution mode again, or set "
            "`runtime.execution`."
        ) from error


def describe_execution(model_dir: str) -> str:
    """Return a YAML comment with the mode that `auto` chose in `model_dir`; empty if unknown."""
    record = load(model_dir)
    return f"# runtime.execution of {model_dir}: {record.describe()}\n" if record else ""
