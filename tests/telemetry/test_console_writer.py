from absl import logging

from official_lite import telemetry


def test_record_is_one_line_of_the_log(monkeypatch):
    lines = []
    monkeypatch.setattr(logging, "info", lambda text, *args: lines.append(text % args))
    values = {"loss": 0.123456789, "count": 1234567, "clean": {"accuracy": 0.5}}
    telemetry.ConsoleWriter().write(telemetry.Record(step=100, split="train", values=values))
    assert lines == ["train | step 100 | loss 0.12346 | count 1234567 | clean/accuracy 0.5"]


def test_chosen_fields_come_in_their_order_with_the_time_left(monkeypatch):
    lines = []
    monkeypatch.setattr(logging, "info", lambda text, *args: lines.append(text % args))
    writer = telemetry.ConsoleWriter(["rate", "*loss", "eta"], total_steps=700)
    values = {"loss": 0.5, "accuracy": 1, "rate": 0.1, "steps_per_second": 10.0}
    writer.write(telemetry.Record(step=100, split="train", values=values))
    writer.write(telemetry.Record(step=100, split="validation", values={"accuracy": 0.5}))
    assert lines == [
        "train | step 100 | rate 0.1 | loss 0.5 | eta 0:01:00",
        "validation | step 100 | accuracy 0.5",
    ]
