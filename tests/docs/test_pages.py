"""Tests that the code and commands on pages run, or that their parsers at least accept them."""

import importlib.util
import json
import operator
import os
import pathlib
import pkgutil
import re
import tomllib
import types
from collections.abc import Sequence

import pytest
import yaml

import official_lite
from official_lite.core import exp_factory
from official_lite.tools import new
from tests.docs import blocks, reviewed, session, shown_commands

WRITTEN = {page for pages in reviewed.SESSIONS for page in pages}
BLOCKS = [block for page in blocks.PAGES for block in blocks.blocks_of(page)]
LANGUAGES = {"", "bash", "console", "diff", "indented", "json", "python", "text", "toml", "yaml"}
SECTIONS = ("trainer", "runtime", "pipeline")
PACKAGES = [
    "official_lite",
    *(
        module.name
        for module in pkgutil.walk_packages(official_lite.__path__, "official_lite.")
        if module.ispkg
    ),
]
# Objects and other libraries whose methods and functions pages name.
OTHER_RECEIVERS = re.compile(
    "ctx|dataclasses|dataset|envs|examples|gin|keras|metric|model|nni|np|params|run|self|shape|"
    "storage|strategy|sys|tf|trainer|variable"
)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "pages",
    [
        pytest.param(pages, id=pages[-1], marks=[pytest.mark.slow] * (pages[-1] in reviewed.SLOW))
        for pages in reviewed.SESSIONS
    ],
)
def test_commands_and_code_on_each_documentation_page_run_without_errors(
    pages: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    reader = session.Session(tmp_path)
    for page in pages:
        reader.read(blocks.blocks_of(page))


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "page", sorted({b.page for b in BLOCKS if b.language == "python"} - WRITTEN)
)
def test_python_code_on_each_documentation_page_runs_without_errors(
    page: str, tmp_path: pathlib.Path
) -> None:
    shown = [block for block in blocks.blocks_of(page) if block.language == "python"]
    session.Session(tmp_path).read(shown)


@pytest.mark.parametrize("page", blocks.PAGES)
def test_commands_on_documentation_pages_are_accepted_by_their_argument_parsers(page: str) -> None:
    shown = blocks.blocks_of(page)
    for block in shown:
        if block.language == "bash" and page not in WRITTEN and not session.why_not_run(block):
            for command in block.commands:
                shown_commands.check(command)
    for line in [x for b in shown if not b.language for x in b.commands] + blocks.spans_of(page):
        if line.startswith("python "):
            # Text after two spaces or after a pipe is not part of the command.
            shown_commands.check(re.split(r"  | \|", line)[0])


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "console"], ids=str)
def test_console_blocks_on_documentation_pages_show_the_actual_output(
    block: blocks.Block, tmp_path: pathlib.Path
) -> None:
    session.Session(tmp_path).converse(block)


def test_flags_shown_on_documentation_pages_are_accepted_by_train_py() -> None:
    flags = [b.text for b in BLOCKS if b.language == "indented" and b.text.startswith("--")]
    for text in flags:
        (flag,) = shown_commands.words(text)
        shown_commands.check_train_flags(["--experiment=vision/digits_mlp", flag])
    assert flags


def test_config_fields_named_on_documentation_pages_exist() -> None:
    pattern = rf"(?:--set=)?((?:{'|'.join(SECTIONS)})\.[a-z_.*]+)(?:[:=].*)?"
    named = [
        (page, found[1])
        for page in blocks.PAGES
        for span in blocks.spans_of(page)
        if (found := re.fullmatch(pattern, span))
    ]
    assert [one for one in named if not shown_commands.is_a_path(one[1])] == []


@pytest.mark.parametrize(
    "block", [b for b in BLOCKS if b.language in ("yaml", "json", "toml")], ids=str
)
def test_yaml_json_and_toml_blocks_on_documentation_pages_parse_and_hold_valid_configs(
    block: blocks.Block,
) -> None:
    if block.language == "yaml":
        config = yaml.safe_load(block.text)
        params = exp_factory.get_exp_config("vision/digits_mlp")
        params.override({k: v for k, v in config.items() if k != "search"})
    elif block.language == "json":
        json.loads(block.text)
    else:
        tomllib.loads(block.text)


def test_pyproject_lines_on_the_packaging_page_occur_in_a_generated_project(
    tmp_path: pathlib.Path,
) -> None:
    page = "docs/how_to/own_package.md"
    (shown,) = [block for block in BLOCKS if block.page == page and block.language == "toml"]
    new.write_project(tmp_path / "speech")
    written = (tmp_path / "speech" / "pyproject.toml").read_text()
    assert set(shown.text.splitlines()) <= set(written.splitlines())


def test_package_functions_named_on_documentation_pages_exist() -> None:
    calls = [
        (page, found[1])
        for page in blocks.PAGES
        for span in blocks.spans_of(page)
        if (found := re.match(r"([a-z_]\w*(?:\.\w+)+)\(", span))
        and not OTHER_RECEIVERS.fullmatch(found[1].partition(".")[0])
    ]
    assert [call for call in calls if not _is_in_the_package(call[1])] == []
    assert not _is_in_the_package("optimizer_factory.prepare_optimizers")
    assert not _is_in_the_package("preparation.prepare_optimizer")


def _is_in_the_package(call: str) -> bool:
    """Return whether a module of the package has the function that a call such as `a.b` names."""
    begin, *names = call.split(".")
    modules = (
        f"{package}.{begin}"
        for package in PACKAGES
        if importlib.util.find_spec(f"{package}.{begin}")
    )
    return any(_has(importlib.import_module(module), names) for module in modules)


def _has(module: types.ModuleType, names: Sequence[str]) -> bool:
    try:
        operator.attrgetter(".".join(names))(module)
    except AttributeError:
        return False
    return True


def test_relative_links_on_documentation_pages_have_existing_targets() -> None:
    targets = [
        (page, link.partition("#")[0])
        for page in blocks.PAGES
        for link in blocks.links_of(page)
        if "://" not in link
    ]
    missing = [one for one in targets if not ((blocks.ROOT / one[0]).parent / one[1]).exists()]
    assert missing == []


def test_every_documentation_code_block_has_a_supported_language() -> None:
    assert [str(block) for block in BLOCKS if block.language not in LANGUAGES] == []


def test_documentation_examples_that_are_not_run_or_run_elsewhere_still_exist() -> None:
    reviewed_blocks = [
        (page, beginning)
        for page, beginning in reviewed.NOT_RUN
        if any(b.page == page and b.text.startswith(beginning) for b in BLOCKS)
    ]
    assert reviewed_blocks == list(reviewed.NOT_RUN)
    for page, test in reviewed.OWN_TESTS.items():
        text = (blocks.ROOT / test).read_text()
        assert os.path.basename(page) in text or f'"{pathlib.Path(page).stem}"' in text
