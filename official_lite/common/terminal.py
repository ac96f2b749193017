"""What a program shows on the terminal, as opposed to the complete log in `log.txt`."""

import contextlib
import logging as python_logging
import os
import re
import signal
import sys
from collections.abc import Iterator

from absl import logging

__all__ = ["DETAIL", "show_short_lines", "without_startup_messages"]

# `logging.info(..., extra=DETAIL)` marks a line that only the complete log shows.
DETAIL = {"is_detail": True}

# Lines that the C++ code of TensorFlow prints while it is imported, before logging is configured.
_STARTUP = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called"
    rb"|[IWE]\d{4} .*\] (oneDNN custom operations are on|Could not find cuda drivers"
    rb"|failed call to cuInit|This TensorFlow binary is optimized|Unable to register cu)"
    rb"|To enable the following instructions: "
)


class _ShortFormatter(python_logging.Formatter):
    """Formats an INFO record as its message, and other records with the name of their level."""

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
            # A signal may be sent to both processes; this one ends when the other closes the pipe.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            os.close(writing)
            _filter_lines(reading, stderr)
        finally:
            # Whatever happens, the rest of the program is not for this process.
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
