import ast
import pathlib
import shutil

import pytest

from official_lite import porting
from official_lite.common import errors

PROJECTS = pathlib.Path(__file__).parents[1] / "ports" / "projects"


@pytest.fixture
def project(tmp_path: pathlib.Path) -> pathlib.Path:
    for name in ("subclassed.py", "multitask.py"):
        shutil.copy(PROJECTS / f"{name}.txt", tmp_path / name)
    return tmp_path


def test_port_is_done_once_and_for_all(project: pathlib.Path) -> None:
    before = {path: path.read_text() for path in project.glob("*.py")}
    port = porting.port_project([str(project)])
    assert {path: path.read_text() for path in before} == before, "Nothing was asked to be written."
    port.write()
    again = porting.port_project([str(project)])
    assert again.diff() == ""
    assert again.remaining == port.remaining


def test_no_line_changes_without_need(project: pathlib.Path) -> None:
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


def test_line_ends_and_encoding_stay(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "old.py"
    path.write_bytes(
        "# -*- coding: latin-1 -*-\r\nimport tf_keras\r\nx = 'é'\r\n".encode("latin-1")
    )
    porting.port_project([str(path)]).write()
    text = path.read_bytes().decode("latin-1")
    assert text == "# -*- coding: latin-1 -*-\r\nimport keras\r\nx = 'é'\r\n"


def test_what_is_no_python_is_named_and_the_rest_is_ported(tmp_path: pathlib.Path) -> None:
    (tmp_path / "bad.py").write_text("print 'old'\n")
    (tmp_path / "good.py").write_text("import tf_keras\n")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "foreign.py").write_text("import tf_keras\n")
    port = porting.port_project([str(tmp_path)])
    assert list(port.skipped) == [str(tmp_path / "bad.py")]
    assert [file.path.name for file in port.files] == ["good.py"]
    assert port.files[0].changed


def test_path_that_is_not_there_is_an_error() -> None:
    with pytest.raises(errors.ConfigValueError, match=r"nowhere\.py does not exist"):
        porting.port_project(["nowhere.py"])


def test_package_for_what_is_brought_along_needs_a_name_of_its_own(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.ConfigValueError, match="'official' is not a valid package name"):
        porting.port_project([str(tmp_path)], alongside="official")


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
