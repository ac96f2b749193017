import json
import math

import pytest
import rich.text

from official_lite.tools import listing

ROWS = [
    {"name": "a" * 40, "loss": 0.123456789, "step": 10, "note": None},
    {"name": "b", "loss": math.nan, "step": 2000, "note": [1, 2]},
]


def test_table_has_aligned_columns_and_dashes_for_missing_values(
    capsys: pytest.CaptureFixture[str],
) -> None:
    listing.print_table(ROWS, ["name", "loss", "step", "note"])
    lines = capsys.readouterr().out.splitlines()
    assert [line[42:].split() for line in lines] == [
        ["loss", "step", "note"],
        ["0.12346", "10", "-"],
        ["-", "2000", "1,", "2"],
    ]
    # Text is left-aligned and numbers are right-aligned.
    assert len({line.index(end) for line, end in zip(lines, ("note", "-", "1,"), strict=True)}) == 1
    assert (
        len({line.index(end) for line, end in zip(lines, ("p ", "0  -", "0  1"), strict=True)}) == 1
    )


def test_table_written_to_a_pipe_does_not_wrap_or_shorten_long_values(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    row = {"path": "/a/long/path" * 30, "step": 1}
    listing.print_table([row], ["path", "step"])
    assert capsys.readouterr().out.splitlines()[1].split() == [row["path"], "1"]


def test_table_wraps_long_values_on_a_narrow_terminal_without_losing_characters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # This makes rich treat stdout as a terminal.
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "20")
    listing.print_table(ROWS, ["name", "loss", "step"])
    shown = rich.text.Text.from_ansi(capsys.readouterr().out).plain
    assert max(map(len, shown.splitlines())) <= 20
    assert shown.count("a") == 41
    listing.print_table([{"path": "界" * 20}], ["path"])
    assert capsys.readouterr().out.count("界") == 20


def test_table_escapes_control_characters_and_prints_markup_literally(
    capsys: pytest.CaptureFixture[str],
) -> None:
    listing.print_table([{"name": "a\x1b[31m\nb [red]c"}], ["name"])
    assert capsys.readouterr().out.splitlines() == ["name", "a\\x1b[31m b [red]c"]


def test_json_output_has_null_for_non_finite_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    listing.print_json([{"a": math.inf, "b": (1, {"c": math.nan})}])
    assert json.loads(capsys.readouterr().out) == [{"a": None, "b": [1, {"c": None}]}]


def test_sizes_durations_and_times_have_human_readable_formats() -> None:
    assert listing.bytes_text(1_400_000) == "1.4 MB"
    assert [listing.duration_text(s) for s in (2.5, 3700, None)] == ["2.5 s", "1:01:40", "-"]
    assert listing.time_text(0).startswith(("1970-01-01", "1969-12-31"))
