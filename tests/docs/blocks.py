"""What a page shows: its blocks of code, and the code within its lines."""

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
    """A block of code.

    Attributes:
        page: Its page, from the root of the repository.
        line: Where its first line is, from 0.
        language: After the three backticks; `indented` if there are none.
        text: The code.
        comment: What an HTML comment right above it says.
    """

    page: str
    line: int
    language: str
    text: str
    comment: str = ""

    @property
    def file(self) -> str | None:
        """The file that it is, if its first line or the comment above it says so."""
        first_line, _, _ = self.text.partition("\n")
        for sign in (first_line, f"<!-- {self.comment} -->"):
            if named := _FILE.fullmatch(sign):
                return named[1]
        return None

    @property
    def commands(self) -> list[str]:
        """The commands of a block for a shell, each in a line; of a console, those typed in."""
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return [line for line in lines if line.strip() and not line.startswith("#")]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: str) -> list[Block]:
    """The blocks of a page in their order."""
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
    """The code within the lines of a page."""
    parts = [part for token in _tokens(page) for part in token.children or []]
    return [part.content for part in parts if part.type == "code_inline"]


def links_of(page: str) -> Iterator[str]:
    """Where the links and pictures of a page lead."""
    for token in _tokens(page):
        for child in token.children or []:
            if target := child.attrs.get("href") or child.attrs.get("src"):
                yield str(target)


def _tokens(page: str) -> list[markdown_it.token.Token]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return markdown_it.MarkdownIt("commonmark").enable("table").parse(text)
