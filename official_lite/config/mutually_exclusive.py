"""Mutually exclusive fields of a config, such as `train_steps` and `train_epochs`.

The attribute `CLEARS` of a config class lists them. Setting both in one source is an error. If two
sources set them, the later one applies, as for any field, and the replaced value is logged.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from absl import logging

from official_lite.common import errors
from official_lite.modeling import hyperparams

__all__ = ["log_replaced", "refuse_both"]


_NOTHING = (None, "null", "~", "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Pair:
    """A pair of mutually exclusive fields: paths, values, and the default of the first field."""

    steps: str
    rival: str
    values: tuple[Any, Any]
    default: Any

    @property
    def has_rival(self) -> bool:
        """Whether the second field is in effect."""
        return self.values[1] is not None


def refuse_both(params: hyperparams.Config, given: Mapping[str, Any], source: str) -> None:
    """Raise an error if the same source sets two mutually exclusive fields.

    The default of a field does not conflict with the field that replaces it, because a gin file
    that a run exports has both.

    Args:
        params: The config before the fields are set.
        given: The values that the source sets, by path. None, or null in YAML, does not conflict
            with the other field.
        source: The name of the source in messages.

    Raises:
        errors.ConfigValueError: If both fields are set.
    """
    for pair in _pairs(params):
        steps, rival = (given.get(path) for path in (pair.steps, pair.rival))
        if steps in (*_NOTHING, pair.default) or rival in _NOTHING:
            continue
        raise errors.ConfigValueError(
            f"{source} has both `{pair.steps}` ({_meaning(pair.steps, steps)}) and `{pair.rival}` "
            f"({_meaning(pair.rival, rival)}), which are mutually exclusive. Set only one of them."
        )


@contextlib.contextmanager
def log_replaced(
    params: hyperparams.Config, source: str, values: Mapping[str, Any] | None = None
) -> Iterator[None]:
    """Log the fields whose values are replaced by a mutually exclusive field within this context.

    Args:
        params: The config that is changed within the context.
        source: The name of the source that changes it.
        values: The override, if known. Fields that it sets explicitly, such as to null, are not
            logged.
    """
    before = {pair.steps: pair for pair in _pairs(params)}
    yield
    named = set(hyperparams.flatten(values)) if values else set()
    for pair in _pairs(params):
        old = before.get(pair.steps)
        if old is None or old.has_rival == pair.has_rival:
            continue
        lost, kept = (old.rival, pair.steps) if old.has_rival else (old.steps, pair.rival)
        had = old.values[0 if lost == old.steps else 1]
        if lost not in named and (lost == old.rival or had != old.default):
            now = pair.values[0 if kept == pair.steps else 1]
            logging.info(
                "%s: `%s` (%s) replaces `%s` (%s).",
                source,
                kept,
                _meaning(kept, now),
                lost,
                _meaning(lost, had),
            )


def _pairs(config: Any, path: str = "") -> Iterator[_Pair]:
    for name, rival in getattr(config, "CLEARS", {}).items():
        yield _Pair(
            steps=f"{path}{name}",
            rival=f"{path}{rival}",
            values=(getattr(config, name), getattr(config, rival)),
            default=getattr(type(config), name, None),
        )
    for name, value in vars(config).items():
        if isinstance(value, hyperparams.ParamsDict):
            yield from _pairs(value, f"{path}{name}.")


def _meaning(path: str, value: Any) -> str:
    if "ratio" in path:
        return f"{value} of all steps"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    unit = "epoch" if path.endswith("epochs") else "step"
    return f"{text} {unit}{'s' * (value != 1)}"
