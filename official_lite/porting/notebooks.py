"""Notebooks as modules: their code cells are ported together, because they share their imports."""

import json
from typing import Any

__all__ = ["Notebook"]

_CELL = "# The cell "
# A statement, since a line for IPython may be all that a block contains.
_FOR_IPYTHON = "pass  # For IPython: "


class Notebook:
    """The code of a Jupyter notebook.

    Cells that begin with `%%` are left out. Lines that begin with `%` or `!` become statements
    without effect.

    Args:
        text: The content of the file.

    Raises:
        ValueError: The file is not a notebook.
    """

    def __init__(self, text: bytes) -> None:
        try:
            self._content: dict[str, Any] = json.loads(text)
            cells = list(self._content["cells"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"not a notebook: {error}") from error
        self._text = text.decode()
        self._cells = {
            index: cell
            for index, cell in enumerate(cells)
            if cell["cell_type"] == "code" and not "".join(cell["source"]).startswith("%%")
        }

    @property
    def code(self) -> str:
        """The code of all cells as a module."""
        lines = []
        for index, cell in self._cells.items():
            lines.append(f"{_CELL}{index}")
            lines += map(_without_magic, "".join(cell["source"]).split("\n"))
        return "\n".join(lines) + "\n"

    def with_code(self, code: str) -> bytes:
        """Return the notebook with the ported `code` in its cells."""
        sources: dict[int, list[str]] = {}
        # What was inserted before the first cell belongs to it.
        before: list[str] = []
        for line in code.removesuffix("\n").split("\n"):
            if line.startswith(_CELL):
                sources[int(line.removeprefix(_CELL))] = current = before
                before = []
            elif sources:
                current.append(_with_magic(line))
            else:
                before.append(line)
        for index, lines in sources.items():
            cell, text = self._cells[index], "\n".join(lines)
            is_list = isinstance(cell["source"], list)
            cell["source"] = text.splitlines(keepends=True) if is_list else text
        return self._dumped().encode()

    def place_of(self, code: str, line: int) -> tuple[int, int]:
        """Return the cell and the line in it, both counted from 1, for a line of `code`."""
        lines = code.split("\n")[:line]
        start = max((i for i, text in enumerate(lines, 1) if text.startswith(_CELL)), default=0)
        cell = int(lines[start - 1].removeprefix(_CELL)) if start else 0
        return cell + 1, line - start

    def _dumped(self) -> str:
        end = "\n" if self._text.endswith("\n") else ""
        for is_ascii in (False, True):
            for indent in (1, 2, 4, None):
                original = json.dumps(json.loads(self._text), indent=indent, ensure_ascii=is_ascii)
                if original + end == self._text:
                    return json.dumps(self._content, indent=indent, ensure_ascii=is_ascii) + end
        return json.dumps(self._content, indent=1, ensure_ascii=False) + end


def _without_magic(line: str) -> str:
    stripped = line.lstrip()
    if not stripped.startswith(("%", "!")):
        return line
    return line[: len(line) - len(stripped)] + _FOR_IPYTHON + stripped


def _with_magic(line: str) -> str:
    return line.replace(_FOR_IPYTHON, "", 1) if line.lstrip().startswith(_FOR_IPYTHON) else line
