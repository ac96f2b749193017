"""Warnings that are logged only once, however often their cause occurs."""

import functools
from typing import Any

from absl import logging

__all__ = ["warn_once"]


def warn_once(text: str, *args: Any) -> None:
    """Log a warning unless this process has logged the same text before.

    `absl.logging.log_first_n` counts calls per line of code. With several tasks, it would warn only
    about the first one.

    Args:
        text: A format string.
        *args: The arguments of the format string.
    """
    _warn(text % args if args else text)


@functools.cache
def _warn(text: str) -> None:
    logging.warning("%s", text)
