"""Checksums of input files: every byte of small ones, samples of large ones, sizes of the rest."""

import pathlib

import pytest

from official_lite.common import files
from official_lite.data import file_patterns


def _differences(described: list[dict]) -> list[str]:
    return [path for each in described for path, *_ in file_patterns.find_differences(each)]


def test_byte_of_a_small_file_is_found(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("1,2")
    described = file_patterns.describe([f"{tmp_path}/*.csv"])
    assert described[0]["files"][0]["hashed"] == "whole"
    assert _differences(described) == []
    file.write_text("1,3")
    assert _differences(described) == [str(file)]


@pytest.mark.parametrize("place", [0, -1])
def test_ends_of_a_large_file_are_sampled(tmp_path: pathlib.Path, place: int) -> None:
    file = tmp_path / "large"
    content = bytearray(3 << 20)
    file.write_bytes(content)
    described = file_patterns.describe([str(tmp_path)])
    assert described[0]["files"][0]["hashed"] == "sampled"
    content[place] = 1
    file.write_bytes(content)
    assert _differences(described) == [str(file)]


def test_files_that_are_not_listed_are_compared_by_size(tmp_path: pathlib.Path) -> None:
    for number in range(1100):
        (tmp_path / f"{number:04}").touch()
    described = file_patterns.describe([str(tmp_path)])
    assert described[0]["num_files"] == 1100
    assert len(described[0]["files"]) == 1000
    (tmp_path / "1099").write_text("more")
    assert _differences(described) == [str(tmp_path)]


def test_remote_files_are_named_only() -> None:
    (described,) = file_patterns.describe(["gs://bucket/train*"])
    assert (described["pattern"], described["num_files"]) == ("gs://bucket/train*", 0)


def test_file_that_can_not_be_read_is_compared_by_size(tmp_path: pathlib.Path) -> None:
    link = tmp_path / "unreadable"
    link.symlink_to("/proc/self/mem")  # A regular file; its first byte can't be read.
    described = file_patterns.describe([str(tmp_path)])
    (file,) = described[0]["files"]
    assert (file["hashed"], file["sha256"]) == ("unreadable", None)
    assert _differences(described) == []
    link.unlink()
    assert _differences(described) == [str(link)]


def test_file_that_can_no_longer_be_read_differs(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "a.csv"
    file.touch()
    described = file_patterns.describe([str(file)])
    file.unlink()
    file.symlink_to("/proc/self/mem")
    assert _differences(described) == [str(file)]


def test_file_that_vanishes_meanwhile_is_left_out(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).touch()
    read_size = files.size

    def vanish(path: str) -> int:
        (tmp_path / "a").unlink(missing_ok=True)
        return read_size(path)

    monkeypatch.setattr(files, "size", vanish)
    (described,) = file_patterns.describe([str(tmp_path)])
    assert [file["path"] for file in described["files"]] == [str(tmp_path / "b")]
    assert described["num_files"] == 1
