"""On a Model Garden of the test's own."""

import pathlib

import pytest

from official_lite.porting import project

FILES = {
    "__init__.py": "",
    "toys/__init__.py": "from official.toys import big, small\n",
    "toys/small.py": (
        "from official.core import base_task\nfrom official.toys import shelf\nshelf.Box\n"
    ),
    "toys/big.py": "import no_such_module\n",
    "toys/shelf/__init__.py": (
        "from official.toys.shelf.boxes import *\nfrom official.toys.shelf.tins import Tin\n"
    ),
    "toys/shelf/boxes.py": "class Box: pass\n",
    "toys/shelf/tins.py": "class Tin: pass\n",
}


@pytest.fixture
def installed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in FILES.items():
        path = tmp_path / "official" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    project.package_folder.cache_clear()
    monkeypatch.syspath_prepend(tmp_path)
    yield
    project.package_folder.cache_clear()


@pytest.mark.usefixtures("installed")
def test_what_is_needed_is_taken_and_no_more() -> None:
    texts = project.gather(["from official.toys import small\n"])
    assert sorted(texts) == [
        "official",
        "official.toys",
        "official.toys.shelf",
        "official.toys.shelf.boxes",
        "official.toys.small",
    ]
    assert texts["official.toys.small"] == FILES["toys/small.py"]
    assert texts["official.toys.shelf"].endswith("\nfrom official.toys.shelf.boxes import Box\n")


@pytest.mark.usefixtures("installed")
def test_packages_bind_what_is_reached_through_them() -> None:
    texts = project.gather(["from official import toys\ntoys.shelf.Tin\n"])
    assert "official.toys.shelf.tins" in texts
    assert "official.toys.shelf.boxes" not in texts
    assert texts["official.toys"].endswith("\nfrom official.toys import shelf\n")
