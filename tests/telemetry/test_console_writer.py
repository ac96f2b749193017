from absl import logging

from official_lite import telemetry


def test_record_is_one_line_of_the_log(monkeypatch):
    lines = []
    monkeypatch.setattr(logging, "info", lambda text, *args: lines.append(text % args))
    values = {"loss": 0.123456789, "count": 1234567, "clean": {"accuracy": 0.5}}
    telemetry.ConsoleWriter().write(telemetry.Record(step=100, split="train", values=values))
    assert lines == ["train | step 100 | loss 0.12346 | count 1234567 | clean/accuracy 0.5"]
