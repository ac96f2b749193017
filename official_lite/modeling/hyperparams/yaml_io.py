"""The text of configs: YAML without tags, overrides such as `a.b=1,c=2`, and paths into a config.

YAML is read in bounded time and memory. Mappings record the file and the line of each key.
"""

from __future__ import annotations

import dataclasses
import numbers
import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, SupportsFloat, TypeGuard

import yaml

from official_lite.common import errors, files

Scalar = str | int | float | bool | None
# A Python scalar, or a scalar of a library such as NumPy.
ForeignScalar = str | SupportsFloat | None

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}

_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")

_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")

_FLOAT = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


def resolve_scalar(text: str, where: str) -> Scalar:
    """Return the value of an unquoted text; `where` starts any error message.

    Raises:
        ConfigValueError: An integer has a leading zero, so it could be octal, or exceeds 64 bits.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return _bounded_int(text, where)
    if _LEADING_ZERO.fullmatch(text):
        raise errors.ConfigValueError(
            f"{where}: {text} could be decimal or octal. "
            f"Write {text.lstrip('+-0') or '0'}, or '{text}' in quotes if it is text."
        )
    return float(text) if _FLOAT.fullmatch(text) else text


def is_plain_text(text: str) -> bool:
    """Return whether `text`, unquoted, resolves to itself."""
    return text not in _WORDS and not any(
        pattern.fullmatch(text) for pattern in (_INTEGER, _LEADING_ZERO, _FLOAT)
    )


def _bounded_int(text: str, where: str) -> int:
    # Python refuses to parse integers with thousands of digits, so check the length first.
    value = int(text) if len(text) <= 20 else INT64_MAX + 1
    if not INT64_MIN <= value <= INT64_MAX:
        raise errors.ConfigValueError(
            f"{where}: the integer {text[:30]} does not fit into 64 bits. Write a float, with an "
            "exponent, instead."
        )
    return value


class LocatedDict(dict[str, Any]):
    """Mapping read from a text that records the line of each key for error messages.

    `empty` contains the keys that are followed by nothing in the text, not even `null`.
    """

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.lines: dict[str, int] = {}
        self.empty: set[str] = set()


class ListItems(dict[int, Any]):
    """New values for some elements of a list, by index: the effect of `a[0]=1,a[2].b=3` on `a`."""

    def over(self, current: object, cursor: Cursor) -> list[tuple[Any, Any]]:
        """Return a pair (new value, current value) for each element of the resulting list.

        An index equal to the length appends.

        Raises:
            ConfigValueError: An index is greater than the length.
        """
        present = list(current) if isinstance(current, list | tuple) else []
        pairs = [(value, value) for value in present]
        for index in sorted(self):
            if index > len(pairs):
                raise errors.ConfigValueError(
                    f"{cursor.item(index)}: the list has {len(pairs)} elements, so the next free "
                    f"index is {len(pairs)}. Pass all values of the list in order."
                )
            old = present[index] if index < len(present) else None
            pairs[index : index + 1] = [(self[index], old)]
        return pairs


@dataclasses.dataclass(frozen=True)
class Text:
    """Command-line value, which a field reads as YAML, or as text if it accepts only text.

    Attributes:
        text: The text.
        parsed: The text parsed as YAML.
        problem: The error raised by parsing the text as YAML, or None.
    """

    text: str
    parsed: Any = None
    problem: errors.ConfigValueError | None = None

    @property
    def value(self) -> Any:
        """The parsed value, or the text if it is not valid YAML."""
        return self.parsed if self.problem is None else self.text


@dataclasses.dataclass(frozen=True)
class Replaced:
    """Current value that a new value replaces; only the classes of its configs are reused."""

    value: Any


class Cursor(NamedTuple):
    """Position in a config tree where an override applies, and whether it is strict.

    Attributes:
        root: The name of the class at the root of the tree.
        path: The dotted path from the root.
        source: File and line, if the value was read from a file.
        strict: Whether new keys are errors.
    """

    root: str
    path: str = ""
    source: str = ""
    strict: bool = True

    def key(self, key: str, mapping: Mapping[str, Any] | None = None) -> Cursor:
        """Return the cursor one key deeper; a `LocatedDict` also provides the file and line."""
        source = self.source
        if isinstance(mapping, LocatedDict):
            source = f"{mapping.source}:{mapping.lines[key]}"
        path = f"{self.path}.{key}" if self.path else str(key)
        return Cursor(self.root, path, source, self.strict)

    def item(self, position: int) -> Cursor:
        return self._replace(path=f"{self.path}[{position}]")

    def __str__(self) -> str:
        source = f" ({self.source})" if self.source else ""
        return (f"`{self.path}` of {self.root}" if self.path else self.root) + source


def pair_elements(
    value: list[Any] | tuple[Any, ...] | ListItems, current: object, cursor: Cursor
) -> list[tuple[Any, Any]]:
    """Pair each new element with the current element that it changes or replaces, or with None.

    `ListItems` are merged into the elements at their positions. A list replaces the old one.
    """
    if isinstance(value, ListItems):
        return value.over(current, cursor)
    current = current.value if isinstance(current, Replaced) else current
    replaced = [Replaced(old) for old in current] if isinstance(current, list | tuple) else []
    rest = [None] * max(0, len(value) - len(replaced))
    return list(zip(value, [*replaced, *rest], strict=False))


def merge(old: Any, new: Any, cursor: Cursor) -> Any:
    """Merge two overrides into one with the same effect, whatever their order.

    If both set the same field, the new value wins.

    Raises:
        ConfigValueError: One override sets a path, and the other sets a path below it that the
            first value cannot contain.
    """
    if not isinstance(old, Mapping) and not isinstance(new, Mapping):
        return new
    old, new = (one.value if isinstance(one, Text) else one for one in (old, new))
    if isinstance(old, ListItems) and isinstance(new, list | tuple):
        old, new = new, old
    if isinstance(old, list | tuple) and isinstance(new, ListItems):
        return [
            merge(present, value, cursor) if _are_mergeable(present, value) else value
            for value, present in new.over(old, cursor)
        ]
    if not _are_mergeable(old, new):
        raise errors.ConfigValueError(
            f"{cursor}: the same override sets this value and also a part of it. Set only one of "
            "them."
        )
    is_of_items = isinstance(old, ListItems)
    merged: dict[Any, Any] = ListItems(old) if is_of_items else dict(old)
    for key, value in new.items():
        below = cursor.item(key) if is_of_items else cursor.key(key)
        merged[key] = merge(merged[key], value, below) if key in merged else value
    return merged


def _are_mergeable(old: object, new: object) -> bool:
    is_each = isinstance(old, Mapping) and isinstance(new, Mapping)
    return is_each and isinstance(old, ListItems) == isinstance(new, ListItems)


def unboxed(value: Any) -> Any:
    """Convert a NumPy scalar to a Python scalar, and return any other value unchanged."""
    # If the program has not imported NumPy, the value is not a NumPy scalar.
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.generic):
        return value
    plain = value.item()
    # `item` returns a `longdouble` unchanged, because Python has no such type.
    return float(plain) if isinstance(plain, numbers.Real) and type(plain) is type(value) else plain


def is_scalar(value: object) -> TypeGuard[ForeignScalar]:
    return value is None or isinstance(unboxed(value), str | numbers.Real)


def plain_scalar(value: ForeignScalar, cursor: Cursor) -> Scalar:
    """Convert numbers and strings of other libraries, and string enums, to Python's own types."""
    value = unboxed(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if not isinstance(value, numbers.Integral):
        return float(value)
    number = int(value)
    if not INT64_MIN <= number <= INT64_MAX:
        raise errors.ConfigValueError(
            f"{cursor}: the integer does not fit into 64 bits. Use a float instead."
        )
    return number


def rename(
    mapping: Mapping[str, Any], aliases: Mapping[str, str], cursor: Cursor
) -> Mapping[str, Any]:
    """Return the mapping with its keys renamed by `aliases` (alias -> key); line numbers are kept.

    Raises:
        ConfigValueError: Two keys refer to the same field.
    """
    if not aliases.keys() & mapping.keys():
        return mapping
    renamed = LocatedDict(mapping.source) if isinstance(mapping, LocatedDict) else {}
    origins: dict[str, str] = {}
    for given, value in mapping.items():
        key = aliases.get(given, given)
        if key in origins:
            raise errors.ConfigValueError(
                f"{cursor.key(given, mapping)}: `{origins[key]}` and `{given}` are the same "
                "field. Set only one of them."
            )
        origins[key] = given
        renamed[key] = value
        if isinstance(renamed, LocatedDict) and isinstance(mapping, LocatedDict):
            renamed.lines[key] = mapping.lines[given]
            renamed.empty |= {key} if given in mapping.empty else set()
    return renamed


MAX_BYTES = 1 << 20

MAX_DEPTH = 100

MAX_NODES = 50_000

# Matches `{workspace}/file`, which YAML would parse as a mapping.
_PLACEHOLDER = re.compile(r"(?<!\S)\{\w+\}[^\s,}\]]")

_TUPLE_TAG = "tag:yaml.org,2002:python/tuple"

_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")


class ConfigFileError(errors.ConfigError, OSError):
    """Error for a config file that is missing or cannot be opened."""


def read_yaml(file_path: str | os.PathLike[str]) -> LocatedDict:
    """Return the mapping in a local or remote YAML or JSON file; empty if the file is empty.

    Raises:
        ConfigFileError: The file cannot be opened.
        ConfigValueError: The file is not a single plain YAML mapping in UTF-8 within the limits of
            this module; the message names file and line.
    """
    path = os.fspath(file_path)
    try:
        with files.open_file(path, "rb") as file:
            # Limit the read, because the size of a remote or special file is not known in advance.
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        hint = ". Repeat --config_file for each of several files" if "," in path else ""
        raise ConfigFileError(f"Can't read the config file {path}: {error}{hint}") from error
    return parse_yaml(_decode(content, path), path)


def parse_yaml(text: str, source: str) -> LocatedDict:
    """Return the mapping in a YAML text; `source` precedes the line number in messages.

    Raises:
        ConfigValueError: As for `read_yaml`.
    """
    node = _compose(text, source)
    if node is None:
        return LocatedDict(source)
    value = _Builder(source).build(node)
    if value is None:
        return LocatedDict(source)
    if not isinstance(value, LocatedDict):
        kind = "a list" if isinstance(value, list) else f"the value {value!r:.40}"
        raise errors.ConfigValueError(
            f"{source}: {kind} is at the top level, where `key: value` pairs are expected."
            + (" Pass a gin file as --gin_file." if source.endswith(".gin") else "")
        )
    return value


def parse_value(text: str, source: str) -> Any:
    """Return one value: a quoted string, a flow list or mapping, or a plain scalar."""
    stripped = text.strip()
    if _PLACEHOLDER.match(stripped):
        return stripped
    if not stripped.startswith(("'", '"', "[", "{")):
        return resolve_scalar(stripped, source)
    node = _compose(stripped, source)
    return _Builder(source).build(node) if node is not None else None


def to_yaml(mapping: Mapping[str, Any]) -> str:
    """Return YAML text that `parse_yaml` reads back as the same values (tuples as lists).

    Raises:
        ConfigTypeError: A value is not a mapping, list, tuple, string, number, boolean or None.
    """
    try:
        return yaml.dump(
            dict(mapping),
            Dumper=_Dumper,
            default_flow_style=False,
            sort_keys=False,
            allow_unicode=True,
            width=10_000,
        )
    except yaml.representer.RepresenterError as error:
        raise errors.ConfigTypeError(f"Can't write the value to a config file: {error}") from error


# The text that replaces a password in a URL.
MASK = "***"

# The user and the password in `scheme://user:password@host`. A password may contain an `@`.
_PASSWORD = re.compile(r"(?<=://)([^\s:/@\"']*):[^\s/\"']+@")


def mask_passwords(text: str) -> str:
    """Replace the passwords of URLs by `***`, as in `postgresql://user:***@host/database`."""
    return _PASSWORD.sub(rf"\1:{MASK}@", text)


def _decode(content: bytes, path: str) -> str:
    if len(content) > MAX_BYTES:
        raise errors.ConfigValueError(
            f"{path} is larger than {MAX_BYTES:,} bytes, the limit for config files. Make sure "
            "that it is a config file, and shorten it."
        )
    if content.startswith(_BYTE_ORDER_MARKS):
        raise errors.ConfigValueError(
            f"{path}:1: the file starts with a byte order mark. Save it as UTF-8 without the mark."
        )
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise errors.ConfigValueError(
            f"{path}:{line}: the byte 0x{content[error.start]:02x} is not UTF-8. "
            "Save the file as UTF-8."
        ) from error


class _Loader(yaml.SafeLoader):
    """Loader that composes one document and rejects tags and excessive depth or size."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._count = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        # PyYAML's type stubs do not annotate this method.
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self._refuse_tag(event)
        self._depth += 1
        self._count += 1
        if self._depth > MAX_DEPTH:
            raise _problem(
                f"the nesting is deeper than {MAX_DEPTH} levels; reduce it", event.start_mark
            )
        if self._count > MAX_NODES:
            raise _problem(
                f"there are more than {MAX_NODES:,} values; remove some", event.start_mark
            )
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def _refuse_tag(self, event: yaml.Event) -> None:
        tag = getattr(event, "tag", None)
        # Configs written by the Model Garden use the tag `python/tuple` for tuples.
        is_tuple = tag == _TUPLE_TAG and isinstance(event, yaml.SequenceStartEvent)
        if tag is not None and not is_tuple:
            shown = tag.replace("tag:yaml.org,2002:", "!!")
            raise _problem(
                f"the tag {shown} is not allowed; remove it, because configs contain only plain "
                "values",
                event.start_mark,
            )


class _Builder:
    """Builder of plain values from YAML nodes; each use of an alias counts toward `MAX_NODES`."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._count = 0

    def build(self, node: yaml.Node, depth: int = 0) -> Any:
        self._count += 1
        if depth > MAX_DEPTH or self._count > MAX_NODES:
            raise self._error(
                node, f"the aliases expand to more than {MAX_NODES:,} values; use fewer aliases"
            )
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(child, depth + 1) for child in node.value]
        return self._mapping(node, depth)

    def _scalar(self, node: yaml.ScalarNode) -> Scalar:
        text: str = node.value
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise self._error(
                node, "the text contains half of a surrogate pair; write the character itself"
            )
        if node.style is not None:
            return text
        return resolve_scalar(text, self._at(node))

    def _mapping(self, node: yaml.Node, depth: int) -> LocatedDict:
        result = LocatedDict(self._source)
        merged: list[LocatedDict] = []
        for key_node, value_node in node.value:
            value = self.build(value_node, depth + 1)
            if _is_merge_key(key_node):
                merged.extend(self._mappings_to_merge(value, key_node))
                continue
            key = self._key(key_node)
            if key in result:
                raise self._error(
                    key_node,
                    f"the key {key!r} is already set in line {result.lines[key]}; remove one of "
                    "the two",
                )
            result[key] = value
            result.lines[key] = _line(key_node)
            if isinstance(value_node, yaml.ScalarNode) and not (
                value_node.value or value_node.style
            ):
                result.empty.add(key)
        for mapping in merged:
            for key in mapping.keys() - result.keys():
                result[key] = mapping[key]
                result.lines[key] = mapping.lines[key]
                result.empty |= mapping.empty & {key}
        return result

    def _key(self, node: yaml.Node) -> str:
        key = self._scalar(node) if isinstance(node, yaml.ScalarNode) else None
        if not isinstance(key, str):
            raise self._error(node, f"the key {node.value!s:.40} is not text; put it in quotes")
        return key

    def _mappings_to_merge(self, value: object, node: yaml.Node) -> list[LocatedDict]:
        values = value if isinstance(value, list) else [value]
        mappings = [one for one in values if isinstance(one, LocatedDict)]
        if len(mappings) < len(values):
            raise self._error(
                node, "`<<` can merge only mappings; give it a mapping or a list of mappings"
            )
        return mappings

    def _error(self, node: yaml.Node, problem: str) -> errors.ConfigValueError:
        return errors.ConfigValueError(f"{self._at(node)}: {problem}.")

    def _at(self, node: yaml.Node) -> str:
        return f"{self._source}:{_line(node)}"


class _Dumper(yaml.SafeDumper):
    """Dumper that writes tuples as lists and quotes any string that a YAML reader might convert."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = None if is_plain_text(text) else "'"
    # Use double quotes for text with line breaks, which PyYAML would change in single quotes.
    if any(line_break in text for line_break in "\n\r\x85\u2028\u2029"):
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _represent_sequence(
    dumper: yaml.SafeDumper, sequence: list[Any] | tuple[Any, ...]
) -> yaml.Node:
    on_one_line = not any(isinstance(element, dict) for element in sequence)
    return dumper.represent_sequence(
        "tag:yaml.org,2002:seq", list(sequence), flow_style=on_one_line
    )


def _represent_mapping(dumper: yaml.SafeDumper, mapping: Mapping[str, Any]) -> yaml.Node:
    return dumper.represent_dict(mapping)


_Dumper.add_representer(str, _represent_text)

_Dumper.add_representer(list, _represent_sequence)

_Dumper.add_representer(tuple, _represent_sequence)

_Dumper.add_representer(LocatedDict, _represent_mapping)


def _compose(text: str, source: str) -> yaml.Node | None:
    try:
        return _Loader(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        lines = text.splitlines()[line - 1 : line]
        shown = f" The line is {lines[0].strip()[:60]!r}." if lines and lines[0].strip() else ""
        raise errors.ConfigValueError(
            f"{source}:{line}: {_explain_yaml(error)}.{shown}{_hint(lines)}"
        ) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise errors.ConfigValueError(
            f"{source}:{line}: the character {chr(int(error.character))!r} is not allowed in YAML. "
            "Remove it, or write it as an escape sequence in double quotes."
        ) from error
    except (ValueError, OverflowError) as error:
        # PyYAML does not catch the error that `chr` raises for an escape such as "\Uffffffff".
        raise errors.ConfigValueError(
            f"{source}: an escape sequence is not a valid character: {error}. Correct it."
        ) from error


def _hint(lines: list[str]) -> str:
    if any(_PLACEHOLDER.search(line) for line in lines):
        return " Put quotes around a string that starts with a placeholder such as {workspace}."
    return ""


def _explain_yaml(error: yaml.MarkedYAMLError) -> str:
    problem = f"{error.problem or error.context}"
    if "'\\t'" in problem:
        return "found a tab where YAML allows only spaces; indent with spaces"
    if "another document" in problem:
        return "a second document starts here; a config file can contain only one"
    for said, meaning in _MEANINGS.items():
        if said in problem:
            return meaning
    return problem


# Maps PyYAML messages about common mistakes to an explanation and a remedy.
_MEANINGS = {
    "mapping values are not allowed": (
        "a key is indented deeper than the key above it, which already has a value; or the line "
        "above has no `:` after its key; or a text that contains `: ` has no quotes. Start all "
        "keys of a block in the same column"
    ),
    "expected <block end>": (
        "the indentation does not match the lines above. Start all keys of a block in the same "
        "column"
    ),
    "could not find expected ':'": "a key has no `:` after it. Write `key: value`",
}


def _problem(problem: str, mark: Any) -> yaml.composer.ComposerError:
    return yaml.composer.ComposerError(None, None, problem, mark)


def _is_merge_key(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.style is None and node.value == "<<"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


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
    """Return the nested override that `text` describes; `a[0]` becomes `ListItems`.

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


def nest(steps: list[str | int], value: object) -> Any:
    """Wrap `value` in a mapping, or in `ListItems`, for each step of a path."""
    for step in reversed(steps):
        value = ListItems({step: value}) if isinstance(step, int) else {step: value}
    return value


def nest_all(values: Iterable[tuple[list[str | int], object]], cursor: Cursor) -> dict[str, Any]:
    """Return one nested override for several paths, given as steps; their order does not matter.

    Raises:
        ConfigValueError: One path is below another path whose value cannot contain it.
    """
    merged: dict[str, Any] = {}
    for steps, value in values:
        merged = merge(merged, nest(steps, value), cursor)
    return merged


def malformed(text: str, position: int) -> errors.ConfigValueError:
    """Return an error that points at the character where `text` becomes malformed."""
    line = text.replace("\n", " ").replace("\t", " ")
    start = max(0, position - 40)
    return errors.ConfigValueError(
        f"Malformed override at position {position}:\n"
        f"  {line[start : position + 60]}\n"
        f"  {' ' * (position - start)}^\n"
        f"{_csv_hint(text[position:])}"
    )


def _csv_hint(rest: str) -> str:
    if re.match(rf"\s*{_PATH}\s*:", rest):
        return "Write `name=value`, with `=` instead of `:`."
    if re.match(rf"\s*{_PATH}\s*=\s*\[[^\]]*\[", rest):
        return "A list in a list can't be written in this syntax; use a YAML file."
    if re.match(rf"\s*{_PATH}\s*=", rest):
        return "Close the quote or the bracket and put a comma after it."
    return (
        "Expected `name=value` pairs separated by commas, as in `a.b=1,c=[1,2],d='x,y'`. Put a "
        "value that contains a comma in quotes."
    )


def _tree(text: str) -> dict[str, Any]:
    """Split an override into nested mappings whose leaves are the unparsed values."""
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
        kind = ListItems if isinstance(following, int) else dict
        tree = tree.setdefault(step, kind())
        if type(tree) is not kind:
            raise errors.ConfigValueError(
                f"The override sets `{path}` and also one of its parents. Set only one of them."
            )
    if last in tree:
        raise errors.ConfigValueError(f"The override sets `{path}` twice. Set it only once.")
    tree[last] = value


def _parse_leaves(tree: str | dict[Any, Any]) -> Any:
    if isinstance(tree, str):
        return parse_value(tree, f"In the override, {tree!r}")
    return type(tree)({key: _parse_leaves(child) for key, child in tree.items()})


def _render(tree: str | dict[Any, Any], csv_str: str) -> str:
    if isinstance(tree, str):
        return _quoted_if_needed(tree)
    if not isinstance(tree, ListItems):
        return "{" + ", ".join(f"{key} : {_render(tree[key], csv_str)}" for key in tree) + "}"
    if sorted(tree) != list(range(len(tree))):
        raise errors.ConfigValueError(
            f"A list element is missing in {csv_str!r}. Set all elements, starting from index 0."
        )
    return "[" + ", ".join(_render(tree[index], csv_str) for index in sorted(tree)) + "]"


def _quoted_if_needed(text: str) -> str:
    is_text = is_plain_text(text) and not text.startswith(("'", '"', "[", "{"))
    if is_text and not _NEEDS_NO_QUOTES.fullmatch(text):
        return "'" + text.replace("'", "''") + "'"
    return text
