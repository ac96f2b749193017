"""Escaping of text that a terminal could interpret as commands, and masking of passwords."""

import re
import sys

__all__ = ["MASK", "escape_controls", "mask_passwords", "say"]

# What replaces a password in a URL.
MASK = "***"

# C0 except tab and line feed, DEL, C1, and the marks that change the writing direction.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def escape_controls(text: str) -> str:
    r"""Replace control characters by their Python escapes, such as `\x1b`.

    Tabs and line feeds are kept.
    """
    return _CONTROLS.sub(lambda match: repr(match.group())[1:-1], text)


# The user and the password in `scheme://user:password@host`. A password may contain an `@`.
_PASSWORD = re.compile(r"(?<=://)([^\s:/@\"']*):[^\s/\"']+@")


def mask_passwords(text: str) -> str:
    """Replace the passwords of URLs by `***`, as in `postgresql://user:***@host/database`."""
    return _PASSWORD.sub(rf"\1:{MASK}@", text)


def say(message: str) -> None:
    """Print a message to stderr, with its control characters escaped."""
    print(escape_controls(message), file=sys.stderr, flush=True)
