import io
import logging as python_logging
import subprocess
import sys

from absl import logging

from official_lite.common import terminal

_PRINT = """
import os
from official_lite.common import terminal
terminal.show_short_lines()
with terminal.without_startup_messages():
    os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called are ...\\n")
    os.write(2, b"I0000 00:00:1.2 3 port.cc:153] oneDNN custom operations are on. You may ...\\n")
    os.write(2, b"F0000 00:00:1.2 3 cpu.cc:1] something that matters\\n")
    {then}
os.write(2, b"afterwards\\n")
"""


def test_terminal_hides_log_records_marked_as_details(monkeypatch) -> None:
    handler = logging.get_absl_handler().python_handler
    # `monkeypatch` restores these attributes after the test.
    monkeypatch.setattr(handler, "formatter", handler.formatter)
    monkeypatch.setattr(handler, "filters", [])
    monkeypatch.setattr(handler, "stream", stream := io.StringIO())
    terminal.show_short_lines()
    for level in ("INFO", "WARNING"):
        number = python_logging.getLevelName(level)
        record = python_logging.LogRecord("absl", number, __file__, 1, "a %s", ("text",), None)
        handler.handle(record)
        record.is_detail = True
        handler.handle(record)
    assert stream.getvalue() == "a text\nWARNING: a text\n"


def test_only_the_startup_messages_of_tensorflow_are_hidden() -> None:
    code = [sys.executable, "-c", _PRINT.format(then="pass")]
    result = subprocess.run(code, capture_output=True, text=True, check=True)
    assert result.stderr == ("F0000 00:00:1.2 3 cpu.cc:1] something that matters\nafterwards\n")


def test_fatal_tensorflow_messages_are_shown_if_the_process_crashes() -> None:
    code = [sys.executable, "-c", _PRINT.format(then="os.abort()")]
    result = subprocess.run(code, capture_output=True, text=True, check=False)
    assert result.returncode < 0
    assert "something that matters" in result.stderr


def test_log_records_marked_as_details_reach_handlers_other_than_the_terminal() -> None:
    records: list[bool] = []

    class Handler(python_logging.Handler):
        def emit(self, record) -> None:
            records.append(record.is_detail)

    logger = logging.get_absl_logger()
    logger.addHandler(handler := Handler())
    try:
        logging.error("x", extra=terminal.DETAIL)
    finally:
        logger.removeHandler(handler)
    assert records == [True]


def test_escape_controls_escapes_control_characters_and_keeps_printable_text() -> None:
    assert (
        terminal.escape_controls("\x1b[2Jloss\r\x9b1m\u202e\0") == r"\x1b[2Jloss\r\x9b1m\u202e\x00"
    )
    text = "two lines:\n\tgröße ≤ 5 µs 模型"
    assert terminal.escape_controls(text) == text


def test_warn_once_logs_each_distinct_warning_once(caplog) -> None:
    for name in ("first", "second", "first"):
        terminal.warn_once("The %s of two.", name)
    assert [record.getMessage() for record in caplog.records] == [
        "The first of two.",
        "The second of two.",
    ]
