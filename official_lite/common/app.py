"""Runs a `main` function so that its errors become clear lines and meaningful exit codes.

The counterpart of `absl.app`, with the same call: `app.run(main)`.
"""

import logging as python_logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from absl import app, flags, logging

from official_lite.common import error_report, errors, escapes

__all__ = ["run", "show_error"]


def run(main: Callable[[list[str]], Any], argv: list[str] | None = None) -> None:
    """Parses flags, runs `main(remaining_argv)` and exits the process.

    Exit codes are those of `errors.ExitCode`: 0 when `main` returns, 2 for a wrong flag or config,
    and the code of the error otherwise. An error of ours ends in one line on stderr, because its
    message is written for the user. Any other exception shows the lines of the user's code, all
    of its traceback with `--verbosity=1`, and last of all what happened in which line.
    """
    # TensorFlow's own start-up chatter; whoever wants it sets the variable.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

    def main_with_exit_code(remaining: list[str]) -> int:
        if not flags.FLAGS["verbosity"].present:
            logging.set_verbosity(logging.INFO)
        for logger in (logging.get_absl_logger(), python_logging.getLogger("tensorflow")):
            logger.addFilter(_is_for_the_user)
        logging.get_absl_logger().addFilter(_without_controls)
        sys.excepthook = show_error
        return _exit_code_of(main, remaining)

    app.run(main_with_exit_code, argv=argv, flags_parser=_parse_flags)


def _is_for_the_user(record: python_logging.LogRecord) -> bool:
    # As loud as anything, TensorFlow reports the microseconds of a step of every save, each wait
    # for the workers of parameter servers, and that it traces each save of several hosts anew.
    if record.module == "functional_saver":
        return record.levelno > python_logging.INFO
    # What fails in the thread of a replica is raised behind it as well.
    if record.module == "coordinator":
        return False
    message = record.getMessage()
    is_wait = message.startswith("Waiting for all global closures")
    return not is_wait and "MultiDeviceSaver.save" not in message


def _without_controls(record: python_logging.LogRecord) -> bool:
    """Rewrites a message in which a name or a path could give commands to the terminal."""
    message = record.getMessage()
    if (shown := escapes.escape_controls(message)) != message:
        record.msg, record.args = shown, ()
    return True


def _exit_code_of(main: Callable[[list[str]], Any], argv: list[str]) -> int:
    try:
        main(argv)
    except errors.OfficialLiteError as error:
        _say(error_report.summary(error))
        return int(error.exit_code)
    except KeyboardInterrupt:
        _say("Interrupted, before there was anything to save, or by a second Ctrl-C.")
        return int(errors.ExitCode.INTERRUPTED)
    return int(errors.ExitCode.DONE)


def _parse_flags(argv: Sequence[str]) -> list[str]:
    try:
        return list(flags.FLAGS(argv))
    except flags.Error as error:
        _say(f"{error}\nPass --help for the flags, --helpfull for all of them.")
        sys.exit(int(errors.ExitCode.CONFIG))


def show_error(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """A `sys.excepthook` that shows the lines of the user's code, and last what happened where.

    With `--verbosity=1` it shows all of the traceback.
    """
    if not isinstance(error, Exception):
        sys.__excepthook__(kind, error, trace)
        return
    if logging.get_verbosity() >= logging.DEBUG:
        told = error_report.unwrapped(error)
        _say("".join(traceback.format_exception(type(told), told, trace)))
    else:
        _say("Traceback of your code alone, the innermost call last (--verbosity=1 shows all):")
        _say(error_report.brief_traceback(error).rstrip("\n"))
        for note in getattr(error, "__notes__", ()):
            _say(note)
    _say(error_report.summary(error))


def _say(message: str) -> None:
    print(escapes.escape_controls(message), file=sys.stderr, flush=True)
