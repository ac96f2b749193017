"""The wheel has valid metadata, a console script and all files of the package."""

import configparser
import importlib.metadata
import pathlib
import subprocess
import sys
import tomllib
import zipfile

import pytest
from packaging import metadata, requirements, specifiers, version

import official_lite

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, ROOT]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if "No matching distribution found for hatchling" in done.stderr:
        pytest.skip("no package index to take the build backend from")
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def _dist_info(wheel: zipfile.ZipFile, name: str) -> str:
    (path,) = [one for one in wheel.namelist() if one.endswith(f".dist-info/{name}")]
    return wheel.read(path).decode()


@pytest.mark.slow
def test_wheel_metadata_are_valid_and_match_pyproject(wheel: zipfile.ZipFile) -> None:
    # `from_email` raises an error if a field is unknown or its value violates the specification.
    found = metadata.Metadata.from_email(_dist_info(wheel, "METADATA"), validate=True)
    assert (found.name, found.version) == (
        "official-lite",
        version.Version(official_lite.__version__),
    )
    assert found.summary == PROJECT["description"]
    assert found.description_content_type == "text/markdown"
    assert found.description == (ROOT / "README.md").read_text()
    assert found.requires_python == specifiers.SpecifierSet(PROJECT["requires-python"])
    assert found.classifiers == sorted(PROJECT["classifiers"])
    releases = [c.rpartition(" ")[2] for c in found.classifiers if "Python :: 3." in c]
    assert len(releases) > 1
    assert [one for one in releases if one not in found.requires_python] == []
    assert set(found.provides_extra) == set(PROJECT["optional-dependencies"])
    needed = {one.name.lower() for one in found.requires_dist if one.marker is None}
    assert needed == {requirements.Requirement(o).name.lower() for o in PROJECT["dependencies"]}


@pytest.mark.slow
def test_console_script_of_the_wheel_can_be_loaded(wheel: zipfile.ZipFile) -> None:
    parser = configparser.ConfigParser()
    parser.read_string(_dist_info(wheel, "entry_points.txt"))
    assert parser.sections() == ["console_scripts"]
    ((name, value),) = parser["console_scripts"].items()
    assert name == "official-lite"
    entry = importlib.metadata.EntryPoint(name=name, value=value, group="console_scripts")
    assert callable(entry.load())


@pytest.mark.slow
def test_wheel_contains_exactly_the_files_of_the_package(wheel: zipfile.ZipFile) -> None:
    files = [path for path in (ROOT / "official_lite").rglob("*") if path.is_file()]
    expected = {
        path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts
    }
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == expected
