import pathlib

import pytest

from official_lite.common import errors, files
from official_lite.data import file_patterns


@pytest.fixture
def folder(tmp_path):
    for name in ("b-1", "b-0", "a-0", "data[old]"):
        (tmp_path / name).write_text("x")
    return tmp_path


def matched(folder, *patterns):
    files = file_patterns.match_files([f"{folder}/{pattern}" for pattern in patterns])
    return [file.rsplit("/", 1)[1] for file in files]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("b-*", ["b-0", "b-1"]),
        ("[ab]-0", ["a-0", "b-0"]),
        ("b-1", ["b-1"]),
        ("data[old]", ["data[old]"]),
    ],
)
def test_files_matching_a_pattern_are_in_alphabetical_order(folder, pattern, names):
    assert matched(folder, pattern) == names


def test_files_of_several_patterns_keep_the_order_of_the_patterns(folder):
    assert matched(folder, "b-*", "a-0") == ["b-0", "b-1", "a-0"]
    both = file_patterns.match_files(f"{folder}/b-1 ,{folder}/a-0, ")
    assert both == [f"{folder}/b-1", f"{folder}/a-0"]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [("c-*", "0 examples matched"), ("c-0", "c-0` does not exist"), ("", "is a directory")],
)
def test_path_or_pattern_that_matches_no_file_is_named_in_the_error(folder, pattern, message):
    with pytest.raises(errors.DataError, match=message):
        matched(folder, pattern)


def test_input_pattern_is_refused_only_if_all_matching_files_are_empty(folder):
    (folder / "c-0").touch()
    assert matched(folder, "[ac]-0") == ["a-0", "c-0"]
    with pytest.raises(errors.DataError, match="0 examples matched"):
        matched(folder, "c-*")


def test_input_path_that_contains_no_file_name_is_refused():
    for path in (None, 3, [3], {"a": "b"}):
        with pytest.raises(errors.ConfigValueError, match="`input_path`"):
            file_patterns.match_files(path)
    with pytest.raises(errors.DataError, match="`input_path`"):
        file_patterns.match_files(" , ")


def _differences(described: list[dict]) -> list[str]:
    return [path for each in described for path, *_ in file_patterns.find_differences(each)]


def test_changed_byte_in_a_small_file_is_detected(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("1,2")
    described = file_patterns.describe([f"{tmp_path}/*.csv"])
    assert described[0]["files"][0]["hashed"] == "whole"
    assert _differences(described) == []
    file.write_text("1,3")
    assert _differences(described) == [str(file)]


@pytest.mark.parametrize("place", [0, -1])
def test_changed_first_or_last_byte_of_a_large_file_is_detected(
    tmp_path: pathlib.Path, place: int
) -> None:
    file = tmp_path / "large"
    content = bytearray(3 << 20)
    file.write_bytes(content)
    described = file_patterns.describe([str(tmp_path)])
    assert described[0]["files"][0]["hashed"] == "sampled"
    content[place] = 1
    file.write_bytes(content)
    assert _differences(described) == [str(file)]


def test_input_files_after_the_first_1000_are_compared_only_by_size(tmp_path: pathlib.Path) -> None:
    for number in range(1100):
        (tmp_path / f"{number:04}").touch()
    described = file_patterns.describe([str(tmp_path)])
    assert described[0]["num_files"] == 1100
    assert len(described[0]["files"]) == 1000
    (tmp_path / "1099").write_text("more")
    assert _differences(described) == [str(tmp_path)]


def test_remote_input_files_are_recorded_only_by_their_pattern() -> None:
    (described,) = file_patterns.describe(["gs://bucket/train*"])
    assert (described["pattern"], described["num_files"]) == ("gs://bucket/train*", 0)


def test_unreadable_input_file_is_compared_only_by_its_size(tmp_path: pathlib.Path) -> None:
    link = tmp_path / "unreadable"
    link.symlink_to("/proc/self/mem")  # This is a regular file whose first byte can't be read.
    described = file_patterns.describe([str(tmp_path)])
    (file,) = described[0]["files"]
    assert (file["hashed"], file["sha256"]) == ("unreadable", None)
    assert _differences(described) == []
    link.unlink()
    assert _differences(described) == [str(link)]


def test_input_file_that_has_become_unreadable_is_reported_as_changed(
    tmp_path: pathlib.Path,
) -> None:
    file = tmp_path / "a.csv"
    file.touch()
    described = file_patterns.describe([str(file)])
    file.unlink()
    file.symlink_to("/proc/self/mem")
    assert _differences(described) == [str(file)]


def test_input_file_deleted_while_the_files_are_recorded_is_omitted(
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
