"""Appends the fields of the config classes to the page `config_fields.md`.

The headings of fields are HTML: the search of the site finds them, and the table of contents, which
lists only the blocks, stays short.
"""

import dataclasses
import inspect
import re
import typing
from collections.abc import Iterator
from typing import Any

import griffe

from official_lite.core import config_definitions as cfg
from official_lite.modeling import hyperparams
from official_lite.modeling.multitask import configs as multitask
from official_lite.nas import configs as nas
from official_lite.search import search_config

PAGE = "config_fields.md"

# Where the page begins; the blocks below follow.
ROOTS = (
    ("", cfg.ExperimentConfig),
    ("search", search_config.SearchConfig),
    ("trainer", nas.OneShotTrainerConfig),
    ("task", nas.ArchTaskConfig),
    ("", multitask.MultiTaskExperimentConfig),
    ("", multitask.MultiEvalExperimentConfig),
)

# A subclass of these is shown with its own fields only.
_REPLACED = {cfg.ExperimentConfig, cfg.TrainerConfig, cfg.TaskConfig}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Append the blocks to their page."""
    return f"{markdown}\n\n{fields_page()}" if page.file.src_uri == PAGE else markdown


def fields_page() -> str:
    """Return the Markdown of all blocks."""
    path_of: dict[type, str] = {}
    anchors: set[str] = set()
    blocks = [block for root in ROOTS for block in _blocks(*root, path_of)]
    return "\n\n".join(line for block in blocks for line in _lines(*block, path_of, anchors))


def _blocks(path: str, cls: type, path_of: dict[type, str]) -> Iterator[tuple[str, type]]:
    """Yield a class and those of the blocks below it, each once, with their paths."""
    path_of[cls] = path
    yield path, cls
    hints = typing.get_type_hints(cls)
    for field in _own_fields(cls):
        for below in _config_classes(hints[field.name]):
            if below not in path_of and dataclasses.fields(below):
                is_list = typing.get_origin(hints[field.name]) in (list, tuple)
                yield from _blocks(_joined(path, field.name) + "[]" * is_list, below, path_of)


def _own_fields(cls: type) -> list[Any]:
    """Return the fields of a class, without those of the class that it replaces in the tree."""
    fields = dataclasses.fields(cls)
    if not _REPLACED.intersection(cls.__mro__[1:]):
        return list(fields)
    return [field for field in fields if field.name in inspect.get_annotations(cls)]


def _config_classes(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and issubclass(hint, hyperparams.Config):
        yield hint
    for argument in typing.get_args(hint):
        yield from _config_classes(argument)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _lines(path: str, cls: type, path_of: dict[type, str], anchors: set[str]) -> Iterator[str]:
    summary, descriptions = _docstring(cls)
    yield f"## {f'`{path}`: ' if path else ''}{cls.__name__}"
    yield summary
    hints = typing.get_type_hints(cls)
    for field in _own_fields(cls):
        full = _joined(path, field.name)
        anchor = full if full not in anchors else f"{cls.__name__}.{field.name}"
        anchors.add(anchor)
        yield f'<h3 id="{anchor}"><code>{full}</code></h3>'
        annotation = re.sub(r"\b(?:\w+\.)+(?=\w)", "", inspect.formatannotation(hints[field.name]))
        yield f"`{annotation}`, default {_default(field, path_of)}"
        if field.name in descriptions:
            yield descriptions[field.name]


def _default(field: Any, path_of: dict[type, str]) -> str:
    is_made = field.default is dataclasses.MISSING
    value = field.default_factory() if is_made else field.default
    if not isinstance(value, hyperparams.Config):
        return f"`{value!r}`"
    if type(value) in path_of:
        first = _joined(path_of[type(value)], _own_fields(type(value))[0].name)
        return f"[the fields of {type(value).__name__}](#{first})"
    return "empty"


def _docstring(cls: type) -> tuple[str, dict[str, str]]:
    """Return the text of a class and the descriptions of its fields, own and inherited."""
    descriptions: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        for section in griffe.parse_google(griffe.Docstring(base.__doc__ or ""), warnings=False):
            if section.kind is griffe.DocstringSectionKind.attributes:
                descriptions |= {
                    name: one.description for one in section.value for name in _names(one)
                }
    sections = griffe.parse_google(griffe.Docstring(inspect.getdoc(cls) or ""), warnings=False)
    texts = [s.value for s in sections if s.kind is griffe.DocstringSectionKind.text]
    return "\n\n".join(texts), descriptions


def _names(attribute: Any) -> list[str]:
    """Return the fields that an entry such as `beta_1, beta_2: Decay rates.` describes."""
    if not attribute.name.endswith(","):
        return [attribute.name]
    # The parser takes the names after the first one for a type.
    return [attribute.name.rstrip(","), *str(attribute.annotation).split(", ")]
