"""Extraction of code blocks, inline code and links from the documentation pages."""

import dataclasses
import pathlib
import re
import textwrap
from collections.abc import Iterator

import markdown_it

ROOT = pathlib.Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "experiments/**/*.md", "deploy/**/*.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md"
)

_COMMENT = re.compile(r"<!-- (\S+) -->")
_FILE = re.compile(r"(?:# |<!-- )([\w/]+\.(?:py|yaml))(?: -->)?")


@dataclasses.dataclass(frozen=True)
class Block:
    """A code block on a documentation page.

    Attributes:
        page: The path of its page, relative to the repository root.
        line: The zero-based number of its first line.
        language: The word after the three backticks; `indented` for an indented block.
        text: The code.
        comment: The text of the HTML comment directly above the block; empty if there is none.
    """

    page: str
    line: int
    language: str
    text: str
    comment: str = ""

    @property
    def file(self) -> str | None:
        """The file that the block shows, as named in its first line or in its comment."""
        first_line, _, _ = self.text.partition("\n")
        for sign in (first_line, f"<!-- {self.comment} -->"):
            if named := _FILE.fullmatch(sign):
                return named[1]
        return None

    @property
    def commands(self) -> list[str]:
        """The commands of a shell block, or the lines of a console block that begin with `$`."""
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return [line for line in lines if line.strip() and not line.startswith("#")]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: str) -> list[Block]:
    """Return the code blocks of a page in order."""
    found = []
    comment = ""
    for token in _tokens(page):
        if token.type in ("fence", "code_block"):
            is_fence = token.type == "fence"
            language = token.info.strip() if is_fence else "indented"
            line = token.map[0] + is_fence
            text = textwrap.dedent(token.content)
            found.append(Block(page, line, language, text, comment))
        matched = _COMMENT.fullmatch(token.content.strip()) if token.type == "html_block" else None
        comment = matched[1] if matched else ""
    return found


def spans_of(page: str) -> list[str]:
    """Return the inline code of a page."""
    parts = [part for token in _tokens(page) for part in token.children or []]
    return [part.content for part in parts if part.type == "code_inline"]


def links_of(page: str) -> Iterator[str]:
    """Yield the targets of the links and images of a page."""
    for token in _tokens(page):
        for child in token.children or []:
            if target := child.attrs.get("href") or child.attrs.get("src"):
                yield str(target)


def _tokens(page: str) -> list[markdown_it.token.Token]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return markdown_it.MarkdownIt("commonmark").enable("table").parse(text)
