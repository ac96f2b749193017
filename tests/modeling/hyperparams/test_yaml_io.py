import contextlib
import os
import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from official_lite.common import errors, files
from official_lite.modeling.hyperparams import yaml_io


def parse(text):
    return yaml_io.parse_yaml(text, "exp.yaml")


def test_scalars_keep_the_meaning_that_the_eye_sees():
    text = "a: 1e-3\nb: 1.5e6\nc: off\nd: 12:30\ne: 2024-01-01\nf: 1_000\ng: '5'\nh: True\non: 1\n"
    values = [1e-3, 1.5e6, "off", "12:30", "2024-01-01", "1_000", "5", True]
    assert parse(text) == dict(zip("abcdefgh", values, strict=True)) | {"on": 1}


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "---\n", "null\n"])
def test_empty_file_is_an_empty_override(text):
    assert parse(text) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "exp.yaml:3: the key 'a' is already given in line 1"),
        ("a:\n  b: 010\n", "exp.yaml:2: 010 could be"),
        ("a: 99999999999999999999999\n", "exp.yaml:1: the integer 9999"),
        ("- 1\n- 2\n", r"exp\.yaml: a list is at the top"),
        ("just text\n", r"exp\.yaml: the value 'just text' is at the top"),
        ("a: 1\n---\nb: 2\n", "exp.yaml:2: a second document"),
        ("a:\n\tb: 1\n", r"exp\.yaml:2: found a tab where"),
        ("a: [1, 2\n", "exp.yaml:2: expected ',' or ']'"),
        ("a: *missing\n", "exp.yaml:1: found undefined alias"),
        ("1: a\n", "exp.yaml:1: the key 1 is not text"),
        ("? [a]\n: 1\n", "exp.yaml:1: the key .* is not text"),
        ("a: 1\nb: \x01\n", r"exp.yaml:2: the character '\\x01'"),
        ('a: "\\ud800"\n', "exp.yaml:1: half of a surrogate pair"),
        ('a: "\\UFFFFFFFF"\n', "an escape sequence is not a valid character"),
        ("<<: 5\n", "`<<` can only merge mappings"),
    ],
)
def test_refusals_name_the_line(text, message):
    with pytest.raises(errors.ConfigValueError, match=message):
        parse(text)


@pytest.mark.parametrize(
    "value",
    [
        "!!python/object/apply:os.system [touch x]",
        "!!python/name:os.system",
        "!!python/tuple 5",
        "!!str 5",
        "!!set {a}",
        "!custom 1",
        "! 1",
    ],
)
def test_every_tag_is_refused(value):
    with pytest.raises(errors.ConfigValueError, match=r"exp\.yaml:2: the tag !.* is refused"):
        parse(f"b: 1\na: {value}\n")


def test_tuple_tag_of_the_model_garden_is_a_list():
    assert parse("a: !!python/tuple\n- 1\n- 2\n") == {"a": [1, 2]}


def test_anchors_and_merge_keys_work():
    parsed = parse("base: &base {a: 1, b: 2}\nother:\n  <<: *base\n  b: 3\n")
    assert parsed["other"] == {"a": 1, "b": 3}


def alias_bomb():
    levels = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
    return "\n".join(["a0: &a0 [lol]", *levels])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (alias_bomb(), "the aliases expand to more than"),
        ("a: &x [*x]", "the aliases expand to more than"),
        ("a: " + "[" * 10_000, "deeper than 100 levels"),
        ("".join(" " * i + "a:\n" for i in range(1000)), "deeper than 100 levels"),
    ],
    ids=["aliases", "cycle", "flow depth", "block depth"],
)
def test_bombs_are_refused_at_once(text, message):
    # Of this thread's time on the processor: others may be at work.
    start = time.thread_time()
    with pytest.raises(errors.ConfigValueError, match=message):
        parse(text)
    assert time.thread_time() - start < 1


def test_too_many_values_are_refused():
    with pytest.raises(errors.ConfigValueError, match="more than 50,000 values"):
        parse("a: [" + "1," * 50_001 + "]")


def test_huge_file_is_refused_without_reading_it(tmp_path):
    path = tmp_path / "huge.yaml"
    path.touch()
    os.truncate(path, 1 << 30)
    start = time.process_time()
    with pytest.raises(errors.ConfigValueError, match="larger than 1,048,576 bytes"):
        yaml_io.read_yaml(path)
    assert time.thread_time() - start < 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: 1".encode("utf-8-sig"), r"x\.yaml:1: the file starts with a byte order mark"),
        ("a: 1".encode("utf-16"), r"x\.yaml:1: the file starts with a byte order mark"),
        ("a: 1\nb: café".encode("latin-1"), r"x\.yaml:2: the byte 0xe9 is not UTF-8"),
        ("a: 1".encode("utf-16-le"), r"x\.yaml:1: the character '\\x00'"),
    ],
)
def test_only_plain_utf8_is_read(tmp_path, content, message):
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    with pytest.raises(errors.ConfigValueError, match=message):
        yaml_io.read_yaml(path)


def test_missing_file_and_folder_are_config_errors(tmp_path):
    for path in (tmp_path / "absent.yaml", tmp_path):
        with pytest.raises(yaml_io.ConfigFileError, match=str(path)):
            yaml_io.read_yaml(path)


def test_remote_path_goes_through_tensorflow(tmp_path):
    path = f"file://{tmp_path}/remote.yaml"
    files.write_text(path, "a: 1\n")
    assert yaml_io.read_yaml(path) == {"a": 1}
    with pytest.raises(yaml_io.ConfigFileError, match=r"absent\.yaml"):
        yaml_io.read_yaml(f"file://{tmp_path}/absent.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("[1, 2e3]", [1, 2e3]),
        ("{a: off}", {"a": "off"}),
        ("'5'", "5"),
        ("a: b #c", "a: b #c"),
    ],
)
def test_single_values(text, value):
    assert yaml_io.parse_value(text, "here") == value


leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.sampled_from(
        ["off", "1e-3", "010", "12:30", "<<", "=", "!a", "&a", "- a", "a: b", "#", ""]
    )
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(st.dictionaries(st.text(), values, max_size=5))
def test_written_yaml_reads_back_the_same(mapping):
    text = yaml_io.to_yaml(mapping)
    assert parse(text) == mapping
    assert yaml_io.to_yaml(parse(text)) == text


@given(st.text())
def test_no_text_breaks_the_reader(text):
    with contextlib.suppress(errors.ConfigValueError):
        assert isinstance(parse(text), dict)


def test_written_texts_are_texts_for_any_yaml_reader():
    texts = ["off", "12:30", "2024-01-01", "1_000", "1e-3", "010"]
    assert yaml.safe_load(yaml_io.to_yaml({"a": texts})) == {"a": texts}


def test_values_that_no_config_holds_are_not_written():
    with pytest.raises(errors.ConfigTypeError, match="Can't write the value to a config file"):
        yaml_io.to_yaml({"a": object()})


def test_global_state_of_pyyaml_is_untouched():
    assert yaml.safe_load("a: 1e-3") == {"a": "1e-3"}
    assert yaml.safe_dump({"a": [1]}) == "a:\n- 1\n"


def test_placeholder_at_the_beginning_is_text_in_an_override():
    assert yaml_io.parse_value("{workspace}/a.py:B", "x") == "{workspace}/a.py:B"
    assert yaml_io.parse_value("{a: 1}", "x") == {"a": 1}


def test_placeholder_in_a_file_is_answered_with_quotes():
    with pytest.raises(errors.ConfigValueError, match=r"f:1: .*in quotes"):
        yaml_io.parse_yaml("a: {workspace}/a.py:B", "f")


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("postgresql://me:se@cr:et@host/db", "postgresql://me:***@host/db"),
        ("https://:secret@host:80/a", "https://:***@host:80/a"),
        ("--set=x=mysql://me:secret@host", "--set=x=mysql://me:***@host"),
        ("https://host:80/a@b", "https://host:80/a@b"),
        ("mysql://me@host/db", "mysql://me@host/db"),
    ],
)
def test_passwords_of_urls_are_masked(url: str, masked: str) -> None:
    assert yaml_io.mask_passwords(f"a {url} b") == f"a {masked} b"
