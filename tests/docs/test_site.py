"""The site is built without a complaint: no broken link, no page that is not in the navigation."""

import pathlib
import re
import subprocess
import sys

import pytest
import yaml

from tests import chromium
from tests.docs import blocks

DOCS = blocks.ROOT / "docs"
CONFIG = DOCS / "site" / "mkdocs.yml"


def test_navigation_has_each_page_once() -> None:
    listed = re.findall(r"[\w/]+\.(?:md|ipynb)", str(yaml.safe_load(CONFIG.read_text())["nav"]))
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    pages = [page for page in pages if not page.startswith("decisions/")]
    assert sorted(listed) == sorted([*pages, "notebook.ipynb"])


@pytest.mark.slow
def test_site_is_built_with_a_reference_from_docstrings(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    command += ["--config-file", str(CONFIG), "--site-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    reference = (tmp_path / "reference" / "core.html").read_text()
    assert (
        "Base class of tasks, which define training and evaluation on a single replica."
        in reference
    )
    assert (tmp_path / "repository" / "deploy" / "kubernetes" / "workers.yaml").exists()
    _require_search_from_files(tmp_path)


def _require_search_from_files(site: pathlib.Path) -> None:
    """Searches the site as readers do who have opened a page from a file."""
    results = "[...document.querySelectorAll('.md-search-result__link')].map(link => link.href)"
    with chromium.started() as browser:
        tab = browser.open(site / "how_to" / "regression.html")
        tab.evaluate("document.querySelector('.md-search__input').focus()")
        tab.call("Input.insertText", text="GraphSummary")
        # The search starts when a key is released.
        tab.press("Shift")
        found = tab.wait_for(f"{results}.length && {results}")
        assert any(link.startswith((site / "reference").as_uri()) for link in found)
        assert tab.problems == []
