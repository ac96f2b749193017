"""What the site has beside the pages of `docs/`: a reference, and files that pages link to.

The reference has a page for each package, with the docstrings of its modules. A link that leaves
`docs/`, such as to a manifest or the README of an experiment, leads to a copy under `repository/`.
"""

import pathlib
import posixpath
import re
from collections.abc import Iterator
from typing import Any

from mkdocs.structure.files import File, Files

DOCS = pathlib.Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
PACKAGE = ROOT / "official_lite"

_COPIES = "repository"
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")


def on_config(config: Any) -> None:
    """List the pages of the folders that the navigation names."""
    listed = {
        "decisions/": sorted(f"decisions/{path.name}" for path in DOCS.glob("decisions/*.md")),
        "reference/": list(_reference_pages()),
    }
    for section in config.nav:
        for entries in section.values():
            for entry in entries:
                if isinstance(entry, dict):
                    entry.update({k: listed.get(v, v) for k, v in entry.items()})


def on_files(files: Files, config: Any) -> Files:
    """Add the reference, the copies, and the script that the search needs in files."""
    worker = str(DOCS / "site" / "iframe-worker.js")
    files.append(File.generated(config, "assets/iframe-worker.js", abs_src_path=worker))
    for uri, content in _reference_pages().items():
        files.append(File.generated(config, uri, content=content))
    pages = [pathlib.Path(f.abs_src_path) for f in files.documentation_pages() if f.abs_src_path]
    for path in _linked_outside(pages):
        files.append(File.generated(config, _uri(path), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lets links that leave `docs/`, or come from a copy, lead to where the files are now."""
    source = page.file.abs_src_path
    if source is None:
        return markdown
    start = posixpath.dirname(page.file.src_uri)

    def moved(match: re.Match[str]) -> str:
        target = _target(pathlib.Path(source), match[1])
        return posixpath.relpath(_uri(target), start) if target else match[1]

    return _LINK.sub(moved, markdown)


def _reference_pages() -> dict[str, str]:
    """Content by page: a package, then its modules."""
    pages = {}
    for init in sorted(PACKAGE.rglob("__init__.py")):
        package = ".".join(init.parent.relative_to(ROOT).parts)
        modules = sorted(path.stem for path in init.parent.glob("[a-z]*.py"))
        lines = [f"# {package}", f"::: {package}\n    options: {{members: false}}"]
        lines += [f"::: {package}.{module}" for module in modules]
        pages[f"reference/{package.removeprefix('official_lite.')}.md"] = "\n\n".join(lines)
    return pages


def _linked_outside(pages: list[pathlib.Path]) -> Iterator[pathlib.Path]:
    """Files outside of `docs/` that a page links to, or a page among those files."""
    seen: set[pathlib.Path] = set()
    while pages:
        page = pages.pop()
        if page.suffix != ".md":
            continue
        targets = {_target(page, link) for link in _LINK.findall(page.read_text("utf-8"))}
        for target in targets - seen:
            if target is not None and not target.is_relative_to(DOCS):
                seen.add(target)
                pages.append(target)
                yield target


def _target(page: pathlib.Path, link: str) -> pathlib.Path | None:
    """Return the file that a link points to, or a folder's README; None if there is none."""
    path = (page.parent / link).resolve()
    path = path / "README.md" if path.is_dir() else path
    return path if path.is_file() and path.is_relative_to(ROOT) else None


def _uri(path: pathlib.Path) -> str:
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    return f"{_COPIES}/{path.relative_to(ROOT).as_posix()}"
