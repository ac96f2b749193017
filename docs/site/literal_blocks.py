"""Docstrings announce an indented block by `::`; in Markdown the indentation alone says it."""

import re
from typing import Any

import griffe


class LiteralBlocks(griffe.Extension):
    """Takes the second colon, and both where they stand alone."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = re.sub(r"(?m)^\s*::$", "", obj.docstring.value)
            obj.docstring.value = re.sub(r"(?m)::$", ":", text)
