import argparse
import pathlib
import sys

import pytest

from official_lite.common import errors
from official_lite.core import exp_factory
from official_lite.tools import sources

MODULE = """
from official_lite.core import config_definitions, exp_factory
exp_factory.register_config_factory("tests/{name}")(config_definitions.ExperimentConfig)
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory of another project, and nothing registered."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "registry_imports", raising=False)
    monkeypatch.setattr(exp_factory, "_REGISTERED_CONFIGS", {})


def test_registrations_of_the_directory_and_named_modules_are_imported(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "registry_imports.py").write_text(MODULE.format(name="here"))
    (tmp_path / "mine.py").write_text(MODULE.format(name="mine"))
    parser = argparse.ArgumentParser()
    sources.add_import_argument(parser)
    try:
        sources.load_registrations(parser.parse_args(["--import=mine.py"]).imports)
    finally:
        sys.modules.pop("registry_imports", None)
    assert {"tests/here", "tests/mine"} <= {*exp_factory.list_experiments()}


def test_directory_without_registrations_needs_none() -> None:
    sources.load_registrations([])
    with pytest.raises(errors.UnknownNameError, match="no module"):
        sources.load_registrations(["no_such_module"])
