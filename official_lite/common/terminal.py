"""The output of a program on the terminal or in a notebook, apart from the log in `log.txt`."""

import builtins
import contextlib
import functools
import logging as python_logging
import os
import re
import signal
import sys
from collections.abc import Iterator
from typing import Any

from absl import logging

# `logging.info(..., extra=DETAIL)` writes a line to the complete log but not to the terminal.
DETAIL = {"is_detail": True}

# Matches lines that TensorFlow's C++ code prints during the import, before logging is configured.
_STARTUP = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called"
    rb"|[IWE]\d{4} .*\] (oneDNN custom operations are on|Could not find cuda drivers"
    rb"|failed call to cuInit|This TensorFlow binary is optimized|Unable to register cu)"
    rb"|To enable the following instructions: "
)


class _ShortFormatter(python_logging.Formatter):
    """A formatter that writes only the message, preceded by the level for warnings and errors."""

    def format(self, record: python_logging.LogRecord) -> str:
        text = super().format(record)
        is_info = record.levelno <= python_logging.INFO
        return text if is_info else f"{record.levelname}: {text}"


def show_short_lines() -> None:
    """Show log lines on the terminal without time and place, and hide details."""
    handler = logging.get_absl_handler().python_handler
    handler.setFormatter(_ShortFormatter())
    handler.addFilter(_is_no_detail)


def _is_no_detail(record: python_logging.LogRecord) -> bool:
    return not getattr(record, "is_detail", False)


@contextlib.contextmanager
def without_startup_messages() -> Iterator[None]:
    """Hide the messages that TensorFlow prints while it is imported and looks for devices.

    A forked process filters everything that is written to stderr, so that nothing else is lost,
    even if the import crashes this process. If log lines are shown in full, nothing is hidden.
    """
    if _is_no_detail not in logging.get_absl_handler().python_handler.filters:
        yield
        return
    sys.stderr.flush()
    stderr = os.dup(2)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            # Ignore signals that are sent to both processes: this process has to filter messages
            # until its parent closes the pipe.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            os.close(writing)
            _filter_lines(reading, stderr)
        finally:
            # Even after an error, the forked process must not run the rest of the program.
            os._exit(0)
    os.close(reading)
    os.dup2(writing, 2)
    os.close(writing)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(stderr, 2)
        os.close(stderr)
        os.waitpid(child, 0)


def _filter_lines(source: int, target: int) -> None:
    with os.fdopen(source, "rb") as lines:
        for line in lines:
            if not _STARTUP.match(line):
                os.write(target, line)


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


# C0 controls except tab and line feed, DEL, C1 controls, and marks that change the writing
# direction.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def escape_controls(text: str) -> str:
    r"""Replace control characters with their Python escapes, such as `\x1b`.

    Tabs and line feeds are kept.
    """
    return _CONTROLS.sub(lambda match: repr(match.group())[1:-1], text)


def say(message: str) -> None:
    """Print a message to stderr, with its control characters escaped."""
    print(escape_controls(message), file=sys.stderr, flush=True)


def ipython_shell() -> Any | None:
    """Return the running IPython shell, which a notebook has, too; None in any other program."""
    get_ipython = getattr(builtins, "get_ipython", None)
    return get_ipython() if get_ipython is not None else None


def cell_of(path: str) -> str | None:
    """Return the cell, such as `In[3]`, whose code has this file name in tracebacks."""
    # Older versions of IPython lack `format_code_name`. Formatting an error must not raise another
    # error.
    format_code_name = getattr(getattr(ipython_shell(), "compile", None), "format_code_name", None)
    label_and_name = format_code_name(path) if format_code_name is not None else None
    return label_and_name[1] if label_and_name else None
