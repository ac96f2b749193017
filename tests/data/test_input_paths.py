"""Checksums of input files: every byte of small ones, samples of large ones, sizes of the rest."""

import pathlib

import pytest

from official_lite.data import input_paths


def _differences(described: list[dict]) -> list[str]:
    return [path for each in described for path, *_ in input_paths.find_differences(each)]


def test_byte_of_a_small_file_is_found(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("1,2")
    described = input_paths.describe([f"{tmp_path}/*.csv"])
    assert described[0]["files"][0]["hashed"] == "whole"
    assert _differences(described) == []
    file.write_text("1,3")
    assert _differences(described) == [str(file)]


@pytest.mark.parametrize("place", [0, -1])
def test_ends_of_a_large_file_are_sampled(tmp_path: pathlib.Path, place: int) -> None:
    file = tmp_path / "large"
    content = bytearray(3 << 20)
    file.write_bytes(content)
    described = input_paths.describe([str(tmp_path)])
    assert described[0]["files"][0]["hashed"] == "sampled"
    content[place] = 1
    file.write_bytes(content)
    assert _differences(described) == [str(file)]


def test_files_that_are_not_listed_are_compared_by_size(tmp_path: pathlib.Path) -> None:
    for number in range(1100):
        (tmp_path / f"{number:04}").touch()
    described = input_paths.describe([str(tmp_path)])
    assert described[0]["num_files"] == 1100
    assert len(described[0]["files"]) == 1000
    (tmp_path / "1099").write_text("more")
    assert _differences(described) == [str(tmp_path)]


def test_remote_files_are_named_only() -> None:
    (described,) = input_paths.describe(["gs://bucket/train*"])
    assert (described["pattern"], described["num_files"]) == ("gs://bucket/train*", 0)
