"""Text from elsewhere on its way to a terminal, which must not take it for commands."""

import re

__all__ = ["escape_controls"]

# C0 but tab and line feed, DEL, C1, and the marks that turn the direction of writing.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def escape_controls(text: str) -> str:
    r"""The text with control characters as they are written in Python, such as `\x1b`.

    Tabs and line feeds stay.
    """
    return _CONTROLS.sub(lambda match: repr(match.group())[1:-1], text)
