"""The registry of the writers that a config lists in `trainer.writers`.

A writer is constructed from a `RunInfo` and from the arguments in the config. Register a custom
writer under a name, or refer to it by its path, such as `my_package.writers:Pager`::

    @writer_factory.register_writer("pager")
    class Pager(telemetry.Writer):
        def __init__(self, run: telemetry.RunInfo, number: str): ...

This module does not import TensorFlow until a writer is looked up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from official_lite.common import errors, plugins

if TYPE_CHECKING:
    from official_lite import telemetry

__all__ = [
    "TENSORBOARD",
    "WriterFactory",
    "close_all",
    "create_writers",
    "find_writers",
    "register_writer",
]

WriterFactory = Callable[["telemetry.RunInfo"], "telemetry.Writer"]
_Registered = TypeVar("_Registered", bound=Callable[..., Any])

TENSORBOARD = "tensorboard"

_WRITERS: plugins.Collection = {
    "console": "official_lite.telemetry.console_writer:console_of",
    "csv": "official_lite.telemetry.text_file_writers:csv_of",
    "jsonl": "official_lite.telemetry.text_file_writers:jsonl_of",
    "mlflow": "official_lite.telemetry.tracking_writers:mlflow_of",
    "wandb": "official_lite.telemetry.tracking_writers:wandb_of",
    # The controller creates these writers, one for each split, because `tf.summary` calls in the
    # training step write to the same files.
    TENSORBOARD: "official_lite.telemetry:TensorBoardWriter",
}


def register_writer(name: str) -> Callable[[_Registered], _Registered]:
    """Return a decorator that registers a writer class or factory for `trainer.writers`.

    Raises:
        errors.ConfigError: If the name belongs to another writer.
    """
    return plugins.register(_WRITERS, name)


def find_writers(entries: Sequence[Any], workspace: str | None = None) -> list[WriterFactory]:
    """Return the factories of a config's writers, in their order, without creating the writers.

    Args:
        entries: Names, or dictionaries with a `name` and arguments. The argument `async: true` runs
            the writer in its own thread. `tensorboard`, which takes no arguments, is skipped.
        workspace: The directory that replaces `{workspace}`.

    Raises:
        errors.ConfigError: If a writer is unknown or does not accept the given arguments.
    """
    return [_find_writer(entry, workspace) for entry in entries if not _is_tensorboard(entry)]


def create_writers(
    factories: Sequence[WriterFactory], run: telemetry.RunInfo
) -> list[telemetry.Writer]:
    """Create the writers of a run; if one can't be created, close those created before it."""
    writers: list[telemetry.Writer] = []
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(close_all, writers)
        for create in factories:
            writers.append(create(run))
        on_failure.pop_all()
    return writers


def close_all(writers: Sequence[telemetry.Writer]) -> None:
    """Close all writers, even if closing one of them raises an error."""
    with contextlib.ExitStack() as stack:
        for writer in writers:
            stack.callback(writer.close)


def _is_tensorboard(entry: object) -> bool:
    named = entry if isinstance(entry, dict) else {"name": entry}
    if named.get("name") != TENSORBOARD:
        return False
    if arguments := sorted(named.keys() - {"name"}):
        raise errors.UnknownNameError(
            f"The writer {TENSORBOARD!r} takes no arguments, not even `async`: the controller "
            "writes the event files itself. Remove "
            f"{', '.join(f'`{name}`' for name in arguments)}."
        )
    return True


def _find_writer(entry: object, workspace: str | None) -> WriterFactory:
    from official_lite import telemetry

    if isinstance(entry, dict) and entry.get("tracking_uri"):
        plugins.refuse(
            entry,
            f"`tracking_uri` is {entry['tracking_uri']!r}, which would receive the run's metrics",
            "Set MLFLOW_TRACKING_URI instead.",
        )
    entry, in_background = _without_async(entry)
    factory = plugins.factory(
        entry,
        num_args=1,
        registry=_WRITERS,
        base=telemetry.Writer,
        workspace=workspace,
        kind="writer",
    )
    return (lambda run: telemetry.AsyncWriter(factory(run))) if in_background else factory


def _without_async(entry: object) -> tuple[Any, bool]:
    if not isinstance(entry, dict) or "async" not in entry:
        return entry, False
    return {name: value for name, value in entry.items() if name != "async"}, bool(entry["async"])
