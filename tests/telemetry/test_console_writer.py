import io

from official_lite import telemetry


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_terminal_gets_a_bar_and_a_file_gets_lines():
    assert isinstance(telemetry.build_console_writer(10, Terminal()), telemetry.ProgressWriter)
    assert isinstance(telemetry.build_console_writer(10, io.StringIO()), telemetry.ConsoleWriter)


def test_notebook_gets_lines_on_stdout(monkeypatch, capsys):
    monkeypatch.setattr("builtins.get_ipython", lambda: None, raising=False)
    writer = telemetry.build_console_writer(10, io.StringIO())
    writer.write(telemetry.Record(step=3, split="train", values={"loss": 0.5}))
    assert capsys.readouterr().out == "train | step 3 | loss 0.5\n"


def test_bar_shows_steps_metrics_rate_and_time_left(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    terminal = Terminal()
    with telemetry.ProgressWriter(1000, terminal) as writer:
        values = {"loss": 0.5, "steps_per_second": 10.0}
        writer.write(telemetry.Record(step=400, split="train", values=values))
        writer.flush()
    for part in ("400/1000", "loss 0.5", "10.0 steps/s", "ETA 0:01:00"):
        assert part in terminal.getvalue()


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


def test_bar_shows_the_chosen_fields(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    terminal = Terminal()
    with telemetry.build_console_writer(10, terminal, fields=["loss", "eta"]) as writer:
        values = {"loss": 0.5, "accuracy": 0.25, "steps_per_second": 1.0}
        writer.write(telemetry.Record(step=5, split="train", values=values))
        writer.flush()
    assert "loss 0.5" in terminal.getvalue()
    assert "ETA 0:00:05" in terminal.getvalue()
    assert "accuracy" not in terminal.getvalue()


def test_bar_moves_between_records(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    terminal = Terminal()
    with telemetry.ProgressWriter(1000, terminal) as writer:
        writer.progress(100)
        writer.progress(300)
        writer.flush()
    assert "300/1000" in terminal.getvalue()
    assert "steps/s, ETA" in terminal.getvalue()


def test_narrow_terminal_shows_the_metric_and_no_bar(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    terminal = Terminal()
    with telemetry.ProgressWriter(1000, terminal) as writer:
        values = {"loss": 0.5, "steps_per_second": 10.0}
        writer.write(telemetry.Record(step=400, split="train", values=values))
        writer.flush()
    assert "loss 0.5" in terminal.getvalue()
    assert "━" not in terminal.getvalue()


def test_40_columns_show_the_loss(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    stream = Terminal()
    with telemetry.ProgressWriter(1500, stream) as writer:
        writer.write(telemetry.Record(step=900, split="train", values={"training_loss": 0.034025}))
    assert "training_loss 0.034025" in stream.getvalue()
