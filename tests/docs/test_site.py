"""Tests that the site builds without warnings and that its navigation contains every page."""

import dataclasses
import json
import pathlib
import re
import runpy
import subprocess
import sys

import pytest
import yaml

from official_lite.modeling import hyperparams
from tests import chromium
from tests.docs import blocks

DOCS = blocks.ROOT / "docs"
CONFIG = DOCS / "site" / "mkdocs.yml"


def test_site_navigation_contains_each_page_exactly_once() -> None:
    listed = re.findall(r"[\w/]+\.(?:md|ipynb)", str(yaml.safe_load(CONFIG.read_text())["nav"]))
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    pages = [page for page in pages if not page.startswith("decisions/")]
    assert sorted(listed) == sorted([*pages, "notebook.ipynb"])


def _subclasses(cls: type) -> set[type]:
    return {cls}.union(*map(_subclasses, cls.__subclasses__()))


def test_config_fields_page_lists_every_field_of_every_config_class_with_its_default() -> None:
    page = runpy.run_path(str(DOCS / "site" / "config_fields.py"))["fields_page"]()
    sections = re.split(r"^## (?:`.*`: )?(\w+)$", page, flags=re.MULTILINE)[1:]
    shown = dict(zip(sections[::2], sections[1::2], strict=True))
    assert len(shown) == len(sections) / 2
    classes = [c for c in _subclasses(hyperparams.Config) if dataclasses.fields(c)]
    packages = ("core.config_definitions", "config.", "modeling.", "nas.", "search.")
    for cls in classes:
        module = cls.__module__.removeprefix("official_lite.")
        if not module.startswith(packages) or module.endswith("test_utils"):
            continue
        # The page shows the fields of a base class in its subclasses.
        listed = [one for one in _subclasses(cls) if one.__name__ in shown]
        assert listed, cls
        for field in dataclasses.fields(cls):
            heading = rf"<code>([\w.]+\.|.*\[\]\.)?{field.name}</code></h3>\n\n`.+`, default \S"
            assert all(
                re.search(heading, "".join(shown.get(c.__name__, "") for c in one.__mro__))
                for one in listed
            ), (cls, field.name)


def test_config_fields_page_describes_each_of_several_fields_that_share_a_description() -> None:
    page = runpy.run_path(str(DOCS / "site" / "config_fields.py"))["fields_page"]()
    for path in ("trainer.one_shot.arch_beta_1", "trainer.one_shot.arch_beta_2"):
        _, _, field = page.partition(f'<h3 id="{path}">')
        assert "Decay rates of that optimizer." in field.partition("<h3")[0], path


@pytest.mark.slow
def test_site_builds_with_an_api_reference_from_docstrings_and_a_working_search(
    tmp_path: pathlib.Path,
) -> None:
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
    (entry,) = [
        one
        for one in json.loads((tmp_path / "search" / "search_index.json").read_text())["docs"]
        if one["location"] == "config_fields.html#trainer.steps_per_loop"
    ]
    assert "default 1000" in re.sub("<.*?>", "", entry["text"])
    _require_search_from_files(tmp_path)


def _require_search_from_files(site: pathlib.Path) -> None:
    """Assert that the search works on a page that was opened from a file."""
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
