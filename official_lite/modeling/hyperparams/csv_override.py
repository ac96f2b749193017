"""Parser of the one-line override syntax: `a.b=1,c=[1,2],d[0].e=3,f='x,y'`."""

import re
from typing import Any

from official_lite.common import errors
from official_lite.modeling.hyperparams import overrides, yaml_io, yaml_scalars

_NAME = r"[A-Za-z_][\w-]*(?:\[[0-9]+\])*"
_PATH = rf"{_NAME}(?:\.{_NAME})*"
_STEP = re.compile(r"([A-Za-z_][\w-]*)|\[([0-9]+)\]")
_START = re.compile(rf"\s*{_PATH}\s*=")
_ASSIGNMENT = re.compile(
    rf"""
    \s* (?P<path>{_PATH}) \s* = \s*
    (?P<value>
        '(?:[^']|'')*'              # in single quotes
      | "(?:[^"\\]|\\.)*"           # in double quotes
      | \[[^\[\]]*\]                # a list of plain values
      | (?!['"\[]) [^,]*?           # anything else ends at the next comma
    )
    \s* (?:,|$)
    """,
    re.VERBOSE | re.DOTALL,
)
_NEEDS_NO_QUOTES = re.compile(r"[\w./+-][\w ./+-]*")


def is_csv(text: str) -> bool:
    """Return whether `text` starts like an override, with `name=`."""
    return _START.match(text) is not None


def parse_csv(text: str) -> dict[str, Any]:
    """Return the nested override that `text` describes; `a[0]` becomes `overrides.ListItems`.

    Raises:
      ConfigValueError: The text is malformed; the message shows the text and the position.
    """
    return _parse_leaves(_tree(text))


def nested_csv_str_to_json_str(csv_str: str) -> str:
    """Convert `a=1,b.c=2` to the YAML flow mapping `{a : 1, b : {c : 2}}`; empty text is unchanged.

    Raises:
      ConfigValueError: The text is malformed, contains a nested list, or omits a list element.
    """
    return _render(_tree(csv_str), csv_str) if csv_str else ""


def parse_path(path: str) -> list[str | int]:
    """Split `task_routines[0].task_weight` into `["task_routines", 0, "task_weight"]`.

    Raises:
      ConfigValueError: The text is not a path.
    """
    stripped = path.strip()
    if not re.fullmatch(_PATH, stripped):
        raise errors.ConfigValueError(
            f"{path!r} is not a path into a config. Paths look like `trainer.train_steps` or "
            "`task_routines[0].task_weight`."
        )
    return [int(index) if index else name for name, index in _STEP.findall(stripped)]


def nest(steps: list[str | int], value: Any) -> Any:
    """Wrap `value` in a mapping, or in `ListItems`, for each step of a path."""
    for step in reversed(steps):
        value = overrides.ListItems({step: value}) if isinstance(step, int) else {step: value}
    return value


def malformed(text: str, position: int) -> errors.ConfigValueError:
    """Return an error that points at the character where `text` becomes malformed."""
    line = text.replace("\n", " ").replace("\t", " ")
    start = max(0, position - 40)
    return errors.ConfigValueError(
        f"Malformed override at position {position}:\n"
        f"  {line[start : position + 60]}\n"
        f"  {' ' * (position - start)}^\n"
        f"{_hint(text[position:])}"
    )


def _hint(rest: str) -> str:
    if re.match(rf"\s*{_PATH}\s*:", rest):
        return "Write `name=value`, with `=` in place of `:`."
    if re.match(rf"\s*{_PATH}\s*=\s*\[[^\]]*\[", rest):
        return "A list in a list can't be written in this syntax; use a YAML file."
    if re.match(rf"\s*{_PATH}\s*=", rest):
        return "Close the quote or the bracket, and put a comma behind it."
    return (
        "Wanted: `name=value` pairs, joined by commas, as in `a.b=1,c=[1,2],d='x,y'`. "
        "A value with a comma stands in quotes."
    )


def _tree(text: str) -> dict[str, Any]:
    """Return nested mappings whose leaves are the unparsed values."""
    tree: dict[str, Any] = {}
    position = 0
    while position < len(text.rstrip()):
        match = _ASSIGNMENT.match(text, position)
        if match is None:
            raise malformed(text, position)
        _insert(tree, match["path"], match["value"])
        position = match.end()
    return tree


def _insert(tree: dict[Any, Any], path: str, value: str) -> None:
    *parents, last = steps = parse_path(path)
    for step, following in zip(parents, steps[1:], strict=True):
        kind = overrides.ListItems if isinstance(following, int) else dict
        tree = tree.setdefault(step, kind())
        if type(tree) is not kind:
            raise errors.ConfigValueError(f"The override sets `{path}` and also a part above it.")
    if last in tree:
        raise errors.ConfigValueError(f"The override sets `{path}` twice.")
    tree[last] = value


def _parse_leaves(tree: Any) -> Any:
    if isinstance(tree, str):
        return yaml_io.parse_value(tree, f"In the override, {tree!r}")
    return type(tree)({key: _parse_leaves(child) for key, child in tree.items()})


def _render(tree: Any, csv_str: str) -> str:
    if isinstance(tree, str):
        return _quoted_if_needed(tree)
    if not isinstance(tree, overrides.ListItems):
        return "{" + ", ".join(f"{key} : {_render(tree[key], csv_str)}" for key in tree) + "}"
    if sorted(tree) != list(range(len(tree))):
        raise errors.ConfigValueError(f"An element of a list is left out in {csv_str!r}.")
    return "[" + ", ".join(_render(tree[index], csv_str) for index in sorted(tree)) + "]"


def _quoted_if_needed(text: str) -> str:
    is_text = yaml_scalars.is_plain_text(text) and not text.startswith(("'", '"', "[", "{"))
    if is_text and not _NEEDS_NO_QUOTES.fullmatch(text):
        return "'" + text.replace("'", "''") + "'"
    return text
