import errno
import json
import math
import os
import pathlib
import threading

import numpy as np
import pytest

from official_lite.common import errors, files


def test_text_written_to_a_file_is_read_back(tmp_path: pathlib.Path) -> None:
    path = os.fspath(tmp_path / "a" / "b.txt")
    files.makedirs(os.path.dirname(path))
    files.write_text(path, "größe\n")
    assert files.exists(path)
    assert files.read_text(path) == "größe\n"


def test_reader_never_sees_a_partially_written_file(tmp_path: pathlib.Path) -> None:
    path, texts = os.fspath(tmp_path / "x"), ("a" * 100_000, "b" * 100_000)
    files.write_text(path, texts[0])
    seen = set()
    writer = threading.Thread(target=lambda: [files.write_text(path, t) for t in texts * 20])
    writer.start()
    while writer.is_alive():
        seen.add(files.read_text(path))
    assert seen <= set(texts)
    assert os.listdir(tmp_path) == ["x"]


def test_write_text_syncs_the_file_before_renaming_it(tmp_path: pathlib.Path, monkeypatch) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: events.append("sync") or fsync(file))
    monkeypatch.setattr(os, "replace", lambda *paths: events.append("rename") or replace(*paths))
    files.write_text(os.fspath(tmp_path / "x"), "text")
    assert events == ["sync", "rename"]


def test_failed_write_of_a_file_leaves_no_temporary_file(tmp_path: pathlib.Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(errors.NotAFileError, match="is a directory"):
        files.write_text(os.fspath(tmp_path / "taken"), "text")
    assert os.listdir(tmp_path) == ["taken"]


def test_is_remote_is_true_only_for_paths_with_a_url_scheme() -> None:
    assert files.is_remote("gs://bucket/run")
    assert not files.is_remote("/tmp/run")


def test_list_names_returns_sorted_names_and_size_returns_bytes(tmp_path: pathlib.Path) -> None:
    files.write_text(os.fspath(tmp_path / "b"), "größe")
    files.write_text(os.fspath(tmp_path / "a"), "")
    assert files.list_names(os.fspath(tmp_path)) == ["a", "b"]
    assert files.list_names(os.fspath(tmp_path / "a")) == []
    assert files.list_names(os.fspath(tmp_path / "nowhere")) == []
    assert files.size(os.fspath(tmp_path / "b")) == 7


def test_create_text_raises_if_the_file_exists(tmp_path: pathlib.Path) -> None:
    path = os.fspath(tmp_path / "x")
    files.create_text(path, "first")
    with pytest.raises(FileExistsError):
        files.create_text(path, "second")
    assert files.read_text(path) == "first"


def test_failed_creation_of_a_file_leaves_no_file(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        files.create_text(os.fspath(tmp_path / "x"), "\ud800")
    assert os.listdir(tmp_path) == []


def test_create_text_works_on_a_file_system_without_hard_links(
    tmp_path: pathlib.Path, monkeypatch
) -> None:
    def link(source: str, target: str) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), source)

    monkeypatch.setattr("os.link", link)
    files.create_text(os.fspath(tmp_path / "x"), "text")
    assert (tmp_path / "x").read_text() == "text"
    assert os.listdir(tmp_path) == ["x"]


def test_renaming_a_file_replaces_an_existing_target(tmp_path: pathlib.Path) -> None:
    old, new = os.fspath(tmp_path / "old"), os.fspath(tmp_path / "new")
    files.write_text(old, "old")
    files.write_text(new, "new")
    files.rename(old, new)
    assert files.read_text(new) == "old"
    files.remove(new)
    assert files.list_names(os.fspath(tmp_path)) == []


def test_remove_temporaries_removes_only_matching_files_of_a_killed_process(tmp_path, monkeypatch):
    def killed(source, target):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", killed)
        patch.setattr(files, "remove", lambda path: None)
        for name in ("run.json", "run.eval.json"):
            with pytest.raises(KeyboardInterrupt):
                files.write_text(str(tmp_path / name), "{}")
    (tmp_path / "mine.tmp").write_text("")
    assert len(files.list_names(str(tmp_path))) == 3
    files.remove_temporaries(str(tmp_path), lambda name: name == "run.json")
    [left, mine] = files.list_names(str(tmp_path))[::-1]
    assert left.startswith("run.eval.json.")
    assert mine == "mine.tmp"


def test_truncate_shortens_a_file_to_the_given_size(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    files.truncate(str(tmp_path / "f"), 2)
    assert (tmp_path / "f").read_bytes() == b"ab"


def test_remove_all_removes_files_directories_and_links_but_not_link_targets(tmp_path):
    target = tmp_path / "target"
    (target / "inside").mkdir(parents=True)
    (tmp_path / "link").symlink_to(target)
    (tmp_path / "nested").mkdir()
    (tmp_path / "nested" / "link").symlink_to(target)
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("link/", "nested", "file", "dangling"):
        files.remove_all(str(tmp_path / name))
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert (target / "inside").is_dir()
    files.remove_all(str(target))
    assert not target.exists()


@pytest.mark.parametrize(
    "act",
    [
        files.exists,
        files.makedirs,
        files.read_text,
        files.remove,
        files.remove_all,
        files.size,
        lambda path: files.rename(path, path),
        lambda path: files.write_text(path, ""),
    ],
)
def test_remote_file_system_errors_are_raised_as_os_errors(act) -> None:
    with pytest.raises(OSError, match="nowhere"):
        act("nowhere://bucket/file")


def test_to_json_writes_nan_and_infinity_as_null() -> None:
    value = {
        "nan": [math.nan, {"inf": -math.inf}],
        "numpy": [np.float32(0.5), np.int64(3), np.float64("inf")],
        "others": [True, 2, "é", None, ("a",)],
    }
    expected = {
        "nan": [None, {"inf": None}],
        "numpy": [0.5, 3, None],
        "others": [True, 2, "é", None, ["a"]],
    }
    assert json.loads(files.to_json(value)) == expected
