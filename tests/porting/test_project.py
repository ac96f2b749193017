import ast
import importlib
import pathlib
import shutil
import sys

import pytest

from official_lite import porting
from official_lite.common import errors
from official_lite.porting import project as project_files
from official_lite.porting import symbol_map

PROJECTS = pathlib.Path(__file__).parents[1] / "ports" / "projects"


@pytest.fixture
def project(tmp_path: pathlib.Path) -> pathlib.Path:
    for name in ("subclassed.py", "multitask.py"):
        shutil.copy(PROJECTS / f"{name}.txt", tmp_path / name)
    return tmp_path


def test_porting_a_ported_project_again_changes_no_file(project: pathlib.Path) -> None:
    before = {path: path.read_text() for path in project.glob("*.py")}
    port = porting.port_project([str(project)])
    assert {path: path.read_text() for path in before} == before, (
        "Files must not change before `write` is called."
    )
    port.write()
    again = porting.port_project([str(project)])
    assert again.diff() == ""
    assert again.remaining == port.remaining


def test_port_changes_only_lines_with_old_names_or_idioms(project: pathlib.Path) -> None:
    for file in porting.port_project([str(project)]).files:
        before, after = file.before.decode().splitlines(), file.after.decode().splitlines()
        changed = [line for line in after if line not in before]
        words = (
            "official_lite",
            "import",
            "keras",
            "reset_state",
            "scale_loss",
            ".compiled",
            "Lenient",
        )
        assert [line for line in changed if not any(word in line for word in words)] == []
        ast.parse(file.after)


def test_port_keeps_the_line_endings_and_encoding_of_a_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "old.py"
    path.write_bytes(
        "# -*- coding: latin-1 -*-\r\nimport tf_keras\r\nx = 'é'\r\n".encode("latin-1")
    )
    porting.port_project([str(path)]).write()
    text = path.read_bytes().decode("latin-1")
    assert text == "# -*- coding: latin-1 -*-\r\nimport keras\r\nx = 'é'\r\n"


def test_invalid_python_file_is_reported_and_all_valid_files_are_ported(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "bad.py").write_text("print 'old'\n")
    (tmp_path / "good.py").write_text("import tf_keras\n")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "foreign.py").write_text("import tf_keras\n")
    port = porting.port_project([str(tmp_path)])
    assert list(port.skipped) == [str(tmp_path / "bad.py")]
    assert [file.path.name for file in port.files] == ["good.py"]
    assert port.files[0].changed


def test_names_in_gin_and_yaml_files_are_translated(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.gin").write_text(
        "import official.core.base_trainer\nofficial.core.base_trainer.Trainer.x = 1  # official\n"
    )
    (tmp_path / "b.yaml").write_text(
        "# of official\nloss: tf_keras.losses.MSE\npath: a/official.x\n"
    )
    porting.port_project([str(tmp_path)]).write()
    assert (tmp_path / "a.gin").read_text() == (
        "import official_lite.core.base_trainer\n"
        "official_lite.core.base_trainer.Trainer.x = 1  # official\n"
    )
    assert (tmp_path / "b.yaml").read_text() == (
        "# of official\nloss: keras.losses.mean_squared_error\npath: a/official.x\n"
    )


@pytest.mark.parametrize("place", ["a package", "a folder of a package", "no package"])
def test_copied_model_garden_modules_can_be_imported_inside_and_outside_a_package(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    garden = tmp_path / "site" / "official" / "toys"
    garden.mkdir(parents=True)
    for folder in (garden, garden.parent):
        (folder / "__init__.py").write_text("")
    (garden / "sizes.py").write_text("SIZE = 3\n")
    (garden / "boxes.py").write_text("from official.toys import sizes\nSIZE = sizes.SIZE\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    symbol_map.package_folder.cache_clear()
    project = tmp_path / "moved" / "inner" if "folder of" in place else tmp_path / "moved"
    project.mkdir(parents=True)
    if place == "a package":
        (project / "__init__.py").write_text("")
    of_package = "from moved.inner import sizes\n" if "folder of" in place else ""
    (project / "sizes.py").write_text("")
    (project / "task.py").write_text(
        f"import official.toys.boxes\n{of_package}SIZE = official.toys.boxes.SIZE\n"
    )
    porting.port_project([str(project)], alongside="garden").write()
    symbol_map.package_folder.cache_clear()

    monkeypatch.syspath_prepend(project if place == "no package" else tmp_path)
    names = {"a package": "moved.task", "no package": "task"}
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    assert importlib.import_module(names.get(place, "moved.inner.task")).SIZE == 3


def test_project_modules_below_official_are_not_listed_as_manual_work(
    tmp_path: pathlib.Path,
) -> None:
    files = {
        "__init__.py": "",
        "mine/__init__.py": "from official.mine.layers import *\n",
        "mine/layers.py": "class Block:\n  sizes = {}\n",
        "mine/heads/__init__.py": "from official.mine.layers import Block\n",
        "mine/task.py": (
            "import official.mine\n"
            "from official.mine import heads, layers\n"
            "from official.mine.layers import Block\n"
            "layers.Block.sizes.keys\n"
            "official.mine.layers.Block.sizes\n"
            "official.mine.Block.sizes\n"
            "heads.Block.sizes\n"
            "heads.Missing\n"
            "official.mine.heads.missing.Block\n"
            "from official.other import task\n"
        ),
    }
    for name, text in files.items():
        path = tmp_path / "official" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = porting.port_project([str(tmp_path)]).remaining
    assert [(one.line, one.what.partition("`")[2].partition("`")[0]) for one in found] == [
        (8, "official.mine.heads.Missing"),
        (9, "official.mine.heads.missing.Block"),
        (10, "official.other.task"),
    ]


@pytest.mark.parametrize(("path", "alongside"), [("nowhere.py", ""), (".", "official")])
def test_missing_path_or_reserved_package_name_raises(path: str, alongside: str) -> None:
    with pytest.raises(errors.ConfigValueError, match=alongside or path):
        porting.port_project([path], alongside=alongside)


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
    symbol_map.package_folder.cache_clear()
    monkeypatch.syspath_prepend(tmp_path)
    yield
    symbol_map.package_folder.cache_clear()


@pytest.mark.usefixtures("installed")
def test_only_needed_modules_of_the_model_garden_are_copied() -> None:
    texts = project_files.gather(["from official.toys import small\n"])
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
def test_copied_model_garden_packages_import_only_the_names_that_are_used() -> None:
    texts = project_files.gather(["from official import toys\ntoys.shelf.Tin\n"])
    assert "official.toys.shelf.tins" in texts
    assert "official.toys.shelf.boxes" not in texts
    assert texts["official.toys"].endswith("\nfrom official.toys import shelf\n")
