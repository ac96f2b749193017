"""Tests of `python -m official_lite.tools port`."""

import json
import pathlib

import pytest

from official_lite.tools import __main__ as tools

OLD = "import tf_keras\n\nx = tf_keras.backend.gradients(a, b)\n"
NEW = "import keras\n\nx = keras.backend.gradients(a, b)\n"


def _write(path: pathlib.Path) -> pathlib.Path:
    path.write_text(OLD)
    return path


def test_port_shows_changes_and_writes_them_only_with_the_write_flag(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _write(tmp_path / "old.py")
    assert tools.main(["port", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "-import tf_keras\n+import keras\n" in shown
    assert f"tf.GradientTape`\n    {path}:3\n" in shown
    assert path.read_text() == OLD
    assert tools.main(["port", str(path), "--write"]) == 0
    assert path.read_text() == NEW


def test_port_prints_files_and_manual_work_as_one_json_object(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _write(tmp_path / "old.py")
    assert tools.main(["port", str(tmp_path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [file["path"] for file in report["files"] if file["changed"]] == [str(path)]
    assert [(one["path"], one["line"]) for one in report["by_hand"]] == [(str(path), 3)]
    assert report["written"] is False


def test_port_writes_all_valid_files_and_then_fails_if_one_file_is_invalid_python(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _write(tmp_path / "old.py")
    (tmp_path / "bad.py").write_text("print 'old'\n")
    assert tools.main(["port", str(tmp_path), "--write"]) == 1
    assert f"{tmp_path}/bad.py: skipped" in capsys.readouterr().err
    assert path.read_text() == NEW


def test_port_check_writes_no_files_and_groups_the_manual_work(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [_write(tmp_path / name) for name in ("a.py", "b.py")]
    (tmp_path / "c.py").write_text("import tf_keras\n")
    assert tools.main(["port", str(tmp_path), "--check"]) == 1
    shown = capsys.readouterr().out
    assert "-import" not in shown
    assert shown.count("`keras.backend.gradients` was removed") == 1
    assert "".join(f"    {path}:3\n" for path in paths) in shown
    assert "3 of 3 files would change" in shown
    assert [path.read_text() for path in paths] == [OLD, OLD]
    assert tools.main(["port", str(tmp_path / "c.py"), "--check"]) == 0
