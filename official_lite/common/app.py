"""A runner for `main` functions that turns errors into clear messages and meaningful exit codes.

It replaces `absl.app` and is called in the same way: `app.run(main)`.
"""

import contextlib
import gc
import logging as python_logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

from absl import app, flags, logging

from official_lite.common import error_report, errors, suggestions, terminal

# Matches absl's message about a missing required flag.
_MISSING_FLAG = re.compile(r"Flag --(\w+) must have a value other than None")


def run(main: Callable[[list[str]], Any], argv: list[str] | None = None) -> None:
    """Parse flags, run `main(remaining_argv)` and exit the process.

    `errors.ExitCode` lists the exit codes: 0 when `main` returns, 2 for an invalid flag or
    config, and otherwise the code of the error. An `OfficialLiteError` prints a single line to
    stderr, because its message is written for the user. Any other exception prints the lines of the
    user's code (the whole traceback with `--verbosity=1`), followed by the error and the line that
    caused it.
    """
    # Silence TensorFlow's start-up messages unless the user has set the variable.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

    def main_with_exit_code(remaining: list[str]) -> int:
        if not flags.FLAGS["verbosity"].present:
            logging.set_verbosity(logging.INFO)
            terminal.show_short_lines()
        for logger in (logging.get_absl_logger(), python_logging.getLogger("tensorflow")):
            logger.addFilter(_is_for_the_user)
        logging.get_absl_logger().addFilter(_without_controls)
        sys.excepthook = show_error
        try:
            return _exit_code_of(main, remaining)
        except MemoryError:
            # Too little memory was left even to describe the original error.
            terminal.say(
                "OutOfMemoryError: The memory is exhausted. Saved checkpoints are intact. Free "
                "some memory, then start the same command again."
            )
            return int(errors.ExitCode.FAILED)

    app.run(main_with_exit_code, argv=argv, flags_parser=_parse_flags)


def _is_for_the_user(record: python_logging.LogRecord) -> bool:
    # TensorFlow logs three kinds of messages at too high a level: the duration of the sharding
    # callback in each save, each wait for parameter-server workers, and each retracing of a
    # multi-host save.
    if record.module == "functional_saver":
        return record.levelno > python_logging.INFO
    # The coordinator logs each error in a replica's thread, although TensorFlow also raises it.
    if record.module == "coordinator":
        return False
    message = record.getMessage()
    is_wait = message.startswith("Waiting for all global closures")
    return not is_wait and "MultiDeviceSaver.save" not in message


def _without_controls(record: python_logging.LogRecord) -> bool:
    """Escape the control characters in a log message.

    Otherwise, names and paths in the message could send commands to the terminal.
    """
    message = record.getMessage()
    if (shown := terminal.escape_controls(message)) != message:
        record.msg, record.args = shown, ()
    return True


def _exit_code_of(main: Callable[[list[str]], Any], argv: list[str]) -> int:
    try:
        with error_report.naming_the_resource():
            main(argv)
    except errors.OfficialLiteError as error:
        terminal.say(error_report.summary(error))
        return int(error.exit_code)
    except KeyboardInterrupt:
        terminal.say("Interrupted before there was anything to save, or by a second Ctrl-C.")
        return int(errors.ExitCode.INTERRUPTED)
    return int(errors.ExitCode.DONE)


def _parse_flags(argv: Sequence[str]) -> list[str]:
    try:
        return list(flags.FLAGS(argv))
    except flags.Error as error:
        terminal.say(
            f"{_explain(error)}\nPass --help for the main flags, or --helpfull for all flags."
        )
        sys.exit(int(errors.ExitCode.CONFIG))
    except SystemExit:
        # After `--help`, absl exits with 1 although nothing has failed.
        sys.exit(int(errors.ExitCode.DONE))


def _explain(error: flags.Error) -> str:
    if missing := _MISSING_FLAG.findall(str(error)):
        return "\n".join(
            f"The required flag --{name} is missing: {flags.FLAGS[name].help}" for name in missing
        )
    if not isinstance(error, flags.UnrecognizedFlagError):
        return str(error)
    name = error.flagname
    path = name if "." in name else suggestions.counterpart(name)
    if path.startswith("--"):
        return f"There is no flag --{name}. Use {path}."
    if path and "set" in flags.FLAGS:
        value = str(error.flagvalue).partition("=")[2]
        return (
            f"There is no flag --{name}. To set this value in the config, use "
            f"--set={path}={value or '…'}."
        )
    known = [flag for flag in flags.FLAGS if len(flag) > 1]
    near = suggestions.nearest(name, known)
    hint = f" Did you mean {' or '.join(f'--{one}' for one in near)}?" if near else ""
    return f"There is no flag --{name}.{hint}"


def show_error(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print the lines of the user's code, then the error and the line that caused it.

    This is a `sys.excepthook`. With `--verbosity=1`, it prints the whole traceback.
    """
    if not isinstance(error, Exception):
        sys.__excepthook__(kind, error, trace)
        return
    if logging.get_verbosity() >= logging.DEBUG:
        told = error_report.unwrapped(error)
        terminal.say("".join(traceback.format_exception(type(told), told, trace)))
        terminal.say(error_report.summary(error))
    else:
        terminal.say(error_report.report(error, "--verbosity=1 shows everything"))


@contextlib.contextmanager
def gc_frozen_imports() -> Iterator[None]:
    """Exclude everything that is imported inside the context from garbage collection.

    TensorFlow and Keras create about 300,000 objects that live until the process exits. The
    collector would visit them several times during the import, in later collections, and again at
    exit. This takes a fifth of the import time and a quarter of a second for each later collection.

    Use this at the start of a program: objects that are garbage by then are never collected.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
