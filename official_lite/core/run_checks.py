"""What can be known to be wrong with a run before anything is built or written."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from official_lite.common import errors, flags, suggestions
from official_lite.core import hook_factory, trainer_factory, writer_factory

__all__ = ["check", "find_hooks", "find_writers", "writes_event_files"]

RUNNER_MODES = ("train", "eval", "train_and_eval", "continuous_eval", "train_and_post_eval")

# For configs that have no such field.
_WRITERS = ("console", "jsonl", writer_factory.TENSORBOARD)


def check(params: Any, mode: str, model_dir: str) -> None:
    """Looks at the mode, and at everything that the config names.

    Raises:
        errors.UnknownNameError: There is no such mode, trainer, hook or writer.
        errors.ConfigTypeError: A hook or a writer takes other arguments.
        errors.CheckpointError: There is nothing to evaluate.
    """
    _check_mode(mode)
    _check_that_there_is_something_to_evaluate(params, mode, model_dir)
    trainer_factory.get_trainer_cls(params)
    find_hooks(params)
    find_writers(params)


def find_hooks(params: Any) -> list[hook_factory.HookFactory]:
    """What creates the hooks of `params.trainer.hooks`."""
    return hook_factory.find_hooks(_entries(params, "hooks"), _workspace(params))


def find_writers(params: Any) -> list[writer_factory.WriterFactory]:
    """What creates the writers of `params.trainer.writers`, all but that of event files."""
    return writer_factory.find_writers(_entries(params, "writers", _WRITERS), _workspace(params))


def writes_event_files(params: Any) -> bool:
    """Whether `tensorboard` is among `params.trainer.writers`."""
    return writer_factory.TENSORBOARD in _entries(params, "writers", _WRITERS)


def _check_mode(mode: str) -> None:
    if mode not in RUNNER_MODES:
        raise errors.UnknownNameError(
            f"The mode {mode!r} is not implemented. "
            f"{suggestions.did_you_mean(mode, (*RUNNER_MODES, *flags.MODES))}"
        )


def _check_that_there_is_something_to_evaluate(params: Any, mode: str, model_dir: str) -> None:
    if mode != "eval" or tf.train.latest_checkpoint(model_dir):
        return
    if not getattr(params.task, "init_checkpoint", ""):
        raise errors.CheckpointError(
            f"There is no checkpoint in {model_dir}, so --mode=eval would evaluate random weights. "
            "Train first, or set `task.init_checkpoint`."
        )


def _entries(params: Any, field: str, default: Sequence[str] = ()) -> list[Any]:
    """A list of names and of configs with a `name`, as strings and dictionaries."""
    entries = getattr(params.trainer, field, default)
    return [_plain(entry if isinstance(entry, str) else entry.as_dict()) for entry in entries]


def _plain(entry: str | dict[str, Any]) -> str | dict[str, Any]:
    return entry["name"] if isinstance(entry, dict) and list(entry) == ["name"] else entry


def _workspace(params: Any) -> str | None:
    return getattr(params, "workspace", "") or None
