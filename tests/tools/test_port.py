"""`python -m official_lite.tools port`."""

import json
import pathlib

import pytest

from official_lite.tools import __main__ as tools

OLD = "import tf_keras\n\nx = tf_keras.backend.switch(a, b, c)\n"
NEW = "import keras\n\nx = keras.backend.switch(a, b, c)\n"


def _write(path: pathlib.Path) -> pathlib.Path:
    path.write_text(OLD)
    return path


def test_change_is_shown_first_and_written_when_asked(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _write(tmp_path / "old.py")
    assert tools.main(["port", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "-import tf_keras\n+import keras\n" in shown
    assert f"{path}:3: `keras.backend.switch` was removed" in shown
    assert path.read_text() == OLD
    assert tools.main(["port", str(path), "--write"]) == 0
    assert path.read_text() == NEW


def test_json_is_one_object(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _write(tmp_path / "old.py")
    assert tools.main(["port", str(tmp_path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [file["path"] for file in report["files"] if file["changed"]] == [str(path)]
    assert [(one["path"], one["line"]) for one in report["by_hand"]] == [(str(path), 3)]
    assert report["written"] is False


def test_file_that_is_no_python_makes_it_fail_at_the_end(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _write(tmp_path / "old.py")
    (tmp_path / "bad.py").write_text("print 'old'\n")
    assert tools.main(["port", str(tmp_path), "--write"]) == 1
    assert f"{tmp_path}/bad.py: skipped" in capsys.readouterr().err
    assert path.read_text() == NEW
