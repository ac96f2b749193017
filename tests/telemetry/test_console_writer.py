import io

import pytest

from official_lite import telemetry


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_terminal_gets_a_bar_and_a_file_gets_lines():
    assert isinstance(telemetry.build_console_writer(10, Terminal()), telemetry.ProgressWriter)
    assert isinstance(telemetry.build_console_writer(10, io.StringIO()), telemetry.ConsoleWriter)


def test_notebook_gets_lines_on_stdout(monkeypatch, capsys):
    monkeypatch.setattr("builtins.get_ipython", object, raising=False)
    writer = telemetry.build_console_writer(10, io.StringIO())
    writer.write(telemetry.Record(step=3, split="train", values={"loss": 0.5}))
    assert capsys.readouterr().out == "train | step 3 | loss 0.5\n"


@pytest.fixture
def drawn(monkeypatch):
    """Draws records on a terminal of a number of columns, and returns what it shows."""

    def draw(columns, *records, fields=None):
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", str(columns))
        terminal = Terminal()
        with telemetry.build_console_writer(1000, terminal, fields=fields) as writer:
            for record in records:
                if isinstance(record, int):
                    writer.progress(record)
                else:
                    writer.write(telemetry.Record(step=400, split="train", values=record))
            writer.flush()
        return terminal.getvalue()

    return draw


def test_bar_shows_steps_metrics_rate_and_time_left(drawn):
    shown = drawn(160, {"loss": 0.5, "steps_per_second": 10.0})
    for part in ("400/1000", "loss 0.5", "10.0 steps/s", "ETA 0:01:00"):
        assert part in shown


def test_evaluation_stays_above_the_bar(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    with telemetry.ProgressWriter(10, terminal) as writer:
        writer.write(telemetry.Record(step=5, split="validation", values={"[x]": 0.5}))
    assert "validation | step 5 | [x] 0.5" in terminal.getvalue()


def test_closed_bar_can_be_closed_again():
    writer = telemetry.ProgressWriter(10, Terminal())
    writer.write(telemetry.Record(step=5, split="train", values={}))
    writer.close()
    writer.close()


def test_bar_shows_the_chosen_fields(drawn):
    values = {"loss": 0.5, "accuracy": 0.25, "steps_per_second": 1.0}
    shown = drawn(160, values, fields=["loss", "eta"])
    assert "loss 0.5" in shown
    assert "ETA 0:10:00" in shown
    assert "accuracy" not in shown


def test_bar_moves_between_records(drawn):
    shown = drawn(160, 100, 300)
    assert "300/1000" in shown
    assert "steps/s, ETA" in shown


@pytest.mark.parametrize("columns", [40, 80])
def test_narrow_terminal_shows_the_metric_and_no_bar(drawn, columns):
    shown = drawn(columns, {"training_loss": 0.034025, "steps_per_second": 10.0})
    assert "training_loss 0.034025" in shown
    assert "━" not in shown
