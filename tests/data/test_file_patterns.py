import pytest

from official_lite.common import errors
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
        ("?-0", ["a-0", "b-0"]),
        ("[ab]-0", ["a-0", "b-0"]),
        ("b-1", ["b-1"]),
        ("data[old]", ["data[old]"]),
    ],
)
def test_a_pattern_matches_in_alphabetical_order(folder, pattern, names):
    assert matched(folder, pattern) == names


def test_patterns_keep_the_order_they_are_given_in(folder):
    assert matched(folder, "b-*", "a-0") == ["b-0", "b-1", "a-0"]
    both = file_patterns.match_files(f"{folder}/b-1 ,{folder}/a-0, ")
    assert both == [f"{folder}/b-1", f"{folder}/a-0"]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("c-*", "0 examples matched .*does not match any files"),
        ("c-0", "input file .* does not exist"),
        ("", "is a directory"),
    ],
)
def test_what_is_not_there_is_named(folder, pattern, message):
    with pytest.raises(errors.DataError, match=message):
        matched(folder, pattern)


def test_files_without_a_byte_are_refused_but_one_empty_shard_is_not(folder):
    (folder / "c-0").touch()
    assert matched(folder, "[ac]-0") == ["a-0", "c-0"]
    with pytest.raises(errors.DataError, match="0 examples matched"):
        matched(folder, "c-*")


@pytest.mark.parametrize("path", [None, 3, [3], {"a": "b"}])
def test_anything_but_strings_is_refused(path):
    with pytest.raises(errors.ConfigValueError, match="`input_path` should be"):
        file_patterns.match_files(path)


def test_nothing_at_all_is_refused():
    with pytest.raises(errors.DataError, match="contains no file names"):
        file_patterns.match_files(" , ")
