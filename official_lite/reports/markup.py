"""Construction of HTML in Python. Strings that are not `Markup` are escaped."""

import html
import json
from collections.abc import Iterable
from typing import Any, TypeAlias

from official_lite.common import terminal

__all__ = ["Child", "Markup", "json_script", "tag"]


class Markup(str):
    """A string that already is HTML."""

    __slots__ = ()


Child: TypeAlias = "str | int | float | Iterable[Child] | None"
"""Content of an element; None stands for no content."""

_WITHOUT_END = frozenset({"img", "input", "meta"})


def tag(element: str, /, *children: Child, **attributes: Any) -> Markup:
    """Build an HTML element.

    Args:
        element: Name of the element.
        *children: Content; strings that are not `Markup` are escaped.
        **attributes: Attributes of the element. `class_` becomes `class` and `data_value` becomes
            `data-value`. An attribute that is None or False is omitted; one that is True has no
            value.
    """
    start = "".join(_attribute(key, value) for key, value in attributes.items())
    if element in _WITHOUT_END:
        return Markup(f"<{element}{start}>")
    return Markup(f"<{element}{start}>{_content(children)}</{element}>")


def json_script(data: object) -> Markup:
    """Build an element with data for the page's script, which browsers never execute."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(f'<script type="application/json">{text}</script>')


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{_escape(value)}"'


def _content(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str | int | float):
        return _escape(child)
    return "".join(map(_content, child))


def _escape(value: object) -> str:
    # A lone surrogate, which JSON can contain, can't be encoded as UTF-8.
    text = str(value).encode("utf-8", "backslashreplace").decode("utf-8")
    return html.escape(terminal.escape_controls(text))
