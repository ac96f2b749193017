import io

from official_lite import telemetry


def test_table_shows_every_row_once(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    stream = io.StringIO()
    rows = {"model_dir": "/runs/[a]", "best": {"accuracy": 0.987654321}, "steps": 100}
    telemetry.summary_table(rows, title="mnist", stream=stream)
    for part in ("mnist", "/runs/[a]", "best/accuracy", "0.98765", "100"):
        assert stream.getvalue().count(part) == 1


def test_table_goes_to_stderr(capsys):
    telemetry.summary_table({"steps": 1})
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "steps" in captured.err
