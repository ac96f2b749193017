"""Provenance of a run: the user's code, repository state and installed packages."""

import os
import pathlib
import subprocess
import sys
import types

import pytest

from official_lite.run import provenance


def _import(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text("x = 1\n")
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    monkeypatch.setitem(sys.modules, path.stem, module)


def test_imported_user_code_is_recorded_and_changes_to_it_are_detected(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, generated = tmp_path / "my_task.py", tmp_path / "__autograph_generated_fileab12.py"
    _import(own, monkeypatch)
    _import(generated, monkeypatch)
    described = provenance.describe_code()
    assert str(own) in described["files"]
    assert str(generated) not in described["files"]
    assert not any("site-packages" in path for path in described["files"])
    own.write_text("x = 2\n")
    assert [path for path, *_ in provenance.find_code_differences(described)] == [str(own)]


def test_commit_and_uncommitted_changes_of_a_repository_are_recorded(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "my_code.py"
    _import(own, monkeypatch)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=me", "-c", "user.email=me@localhost"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *arguments], check=True)
    clean = provenance.describe_code()["git"][str(tmp_path)]
    assert len(clean["commit"]) == 40
    assert clean["changes_sha256"] is None
    own.write_text("x = 3\n")
    changed = provenance.describe_code()["git"][str(tmp_path)]
    assert changed["commit"] == clean["commit"]
    assert changed["changes_sha256"] is not None


def test_package_missing_from_the_record_is_reported_as_a_difference() -> None:
    described = provenance.describe_environment()
    assert list(provenance.find_environment_differences(described)) == []
    del described["packages"]["pytest"]
    ((name, recorded, _),) = provenance.find_environment_differences(described)
    assert (name, recorded) == ("pytest", "not installed")


def test_unreadable_code_file_differs_only_if_it_no_longer_exists(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "my_lost_task.py"
    _import(own, monkeypatch)
    own.unlink()
    own.symlink_to("/proc/self/mem")  # A regular file; its first byte can't be read.
    described = provenance.describe_code()
    assert described["files"][str(own)] is None
    assert list(provenance.find_code_differences(described)) == []
    own.unlink()
    assert [path for path, *_ in provenance.find_code_differences(described)] == [str(own)]


def test_unreadable_package_directory_is_skipped(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = provenance.describe_environment()
    list_names = os.listdir

    def refuse(path: str) -> list[str]:
        if path == str(tmp_path):
            raise PermissionError(path)
        return list_names(path)

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(os, "listdir", refuse)
    assert provenance.describe_environment() == described
