"""HTML from Python. Whatever is not marked as HTML is text, and gets escaped."""

import html
import json
from collections.abc import Iterable
from typing import Any, TypeAlias

from official_lite.common import escapes

__all__ = ["Child", "Markup", "json_script", "tag"]


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child: TypeAlias = "str | int | float | Iterable[Child] | None"
"""What may stand between two tags; None stands for nothing."""

_WITHOUT_END = frozenset({"input", "meta"})


def tag(element: str, /, *children: Child, **attributes: Any) -> Markup:
    """An element.

    Args:
        element: Its name.
        *children: What is in it; strings that are no `Markup` are escaped.
        **attributes: Its attributes. `class_` is `class`, `data_value` is `data-value`. One that
            is None or False is left out, one that is True has no value.
    """
    start = "".join(_attribute(key, value) for key, value in attributes.items())
    if element in _WITHOUT_END:
        return Markup(f"<{element}{start}>")
    return Markup(f"<{element}{start}>{_content(children)}</{element}>")


def json_script(data: Any) -> Markup:
    """Data for the script of the page: an element that no browser runs, whatever is in it."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(f'<script type="application/json">{text}</script>')


def _attribute(key: str, value: Any) -> str:
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


def _escape(value: Any) -> str:
    # Half a surrogate pair, which JSON can name, can't be written as UTF-8.
    text = str(value).encode("utf-8", "backslashreplace").decode("utf-8")
    return html.escape(escapes.escape_controls(text))
