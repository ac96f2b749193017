"""Warnings that are logged once, however often their cause comes up."""

import functools
from typing import Any

from absl import logging

__all__ = ["warn_once"]


def warn_once(text: str, *args: Any) -> None:
    """Log a warning unless this process has logged the same text before.

    `absl.logging.log_first_n` counts by line of code: of several tasks only the first would be
    warned about.

    Args:
        text: A format string.
        *args: Its arguments.
    """
    _warn(text % args if args else text)


@functools.cache
def _warn(text: str) -> None:
    logging.warning("%s", text)
