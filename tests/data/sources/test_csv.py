import numpy as np
import pytest

from official_lite.common import errors
from official_lite.data.sources import registry


@pytest.fixture
def open_text(tmp_path, monkeypatch):
    """A function that writes a text and opens it as a CSV source in small chunks."""
    monkeypatch.setattr(registry, "CHUNK_BYTES", 64)

    def open_text(text, columns=()):
        path = tmp_path / "table.csv"
        path.write_bytes(text.encode())
        return registry._open.__wrapped__("csv", (str(path),), tuple(columns), ())

    return open_text


def _read(opened):
    chunks = [opened.read(chunk) for chunk in range(len(opened.chunk_rows))]
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in opened.specs}


def test_line_breaks_and_quotes_within_values(open_text):
    texts = [f'{i} "quoted"\nin, two lines' if i % 3 else str(i) for i in range(100)]
    lines = ['"' + text.replace('"', '""') + f'",{i}' for i, text in enumerate(texts)]
    read = _read(open_text("text,number\n" + "\n".join(lines)))
    assert [text.decode() for text in read["text"]] == texts
    assert read["number"].tolist() == list(range(100))


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "x"])
def test_empty_lines_are_no_rows(open_text, line_break, last):
    lines = ["x", *(str(i) if i % 4 else "" for i in range(100)), "7" if last else ""]
    opened = open_text(line_break.join(lines))
    expected = [i for i in range(100) if i % 4] + [7] * bool(last)
    assert _read(opened)["x"].tolist() == expected


def test_empty_values_are_nan(open_text):
    read = _read(open_text("x,y\n1,a\n,b\n2.5,\n"))
    np.testing.assert_array_equal(read["x"], [1, np.nan, 2.5])
    assert read["y"].tolist() == [b"a", b"b", b""]


def test_a_value_of_another_dtype_names_its_place(open_text):
    opened = open_text("x\n" + "1\n" * 100 + "1.5\n")
    with pytest.raises(errors.DataError, match=r"table.csv` .* bytes .* int64.* first 4 MiB"):
        opened.read(len(opened.chunk_rows) - 1)


def test_compressed_files_are_refused(tmp_path):
    path = tmp_path / "table.csv.gz"
    path.write_bytes(b"\x1f\x8b\x08\x00\n1")
    with pytest.raises(errors.DataError, match="is compressed"):
        registry.open_source("csv", [str(path)])


def test_a_file_with_a_header_only_has_no_rows(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("x,y\n")
    with pytest.raises(errors.DataError, match="No rows"):
        registry.open_source("csv", [str(path)])
