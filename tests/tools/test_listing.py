import json
import math

import pytest

from official_lite.tools import listing

ROWS = [
    {"name": "a" * 40, "loss": 0.123456789, "step": 10, "note": None},
    {"name": "b", "loss": math.nan, "step": 2000, "note": [1, 2]},
]


def test_columns_stand_below_one_another_and_what_is_missing_is_a_dash() -> None:
    text, left_out = listing.table(ROWS, ["name", "loss", "step", "note"])
    lines = text.splitlines()
    assert [line[42:].split() for line in lines] == [
        ["loss", "step", "note"],
        ["0.12346", "10", "-"],
        ["-", "2000", "1,", "2"],
    ]
    assert len({line.index(end) for line, end in zip(lines, ("note", "-", "1,"), strict=True)}) == 1
    assert left_out == []


def test_long_names_are_shortened_before_columns_are_left_out() -> None:
    text, left_out = listing.table(ROWS, ["name", "loss", "step"], width=40)
    assert left_out == []
    assert max(map(len, text.splitlines())) == 40
    assert "…aaa" in text
    text, left_out = listing.table(ROWS, ["name", "loss", "step"], width=20)
    assert left_out == ["loss", "step"]
    assert max(map(len, text.splitlines())) <= 20


def test_of_a_path_the_end_is_kept_and_of_a_sentence_the_beginning() -> None:
    row = {"path": "trainer.optimizer_config.optimizer.type", "text": "Some words that go on"}
    text, _ = listing.table([row], ["path", "text"], width=38)
    assert text.splitlines()[1] == "…ig.optimizer.type  Some words that g…"
    text, _ = listing.table([{"path": "界" * 20}], ["path"], width=16)
    assert text.splitlines()[1] == "…" + "界" * 7


def test_text_from_elsewhere_gives_no_commands_to_the_terminal() -> None:
    text, _ = listing.table([{"name": "a\x1b[31m\nb"}], ["name"])
    assert text.splitlines() == ["name", "a\\x1b[31m b"]


def test_json_is_one_document_without_what_json_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    listing.print_json([{"a": math.inf, "b": (1, {"c": math.nan})}])
    assert json.loads(capsys.readouterr().out) == [{"a": None, "b": [1, {"c": None}]}]


def test_quantities_are_shown_in_their_units() -> None:
    assert listing.bytes_text(1_400_000) == "1.4 MB"
    assert [listing.duration_text(s) for s in (2.5, 3700, None)] == ["2.5 s", "1:01:40", "-"]
    assert listing.time_text(0).startswith(("1970-01-01", "1969-12-31"))
