"""The console output of a run in a terminal, a log and a notebook."""

import dataclasses
import io

import pytest
from absl import logging

from official_lite import telemetry
from official_lite.telemetry import console_writer

TRAIN = telemetry.Record(
    step=100,
    split="train",
    values={"a_loss": 0.5, "b_loss": 2, "auc[0]": 0.001, "steps_per_second": 10.0},
    total_steps=700,
)
EVAL = telemetry.Record(
    step=100, split="validation", values={"accuracy": 0.5, "steps_per_second": 5.0}
)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_terminal_output_is_a_progress_bar_and_file_output_is_plain_lines():
    assert isinstance(telemetry.build_console_writer(10, Terminal()), telemetry.ProgressWriter)
    assert isinstance(telemetry.build_console_writer(10, io.StringIO()), telemetry.ConsoleWriter)


def test_console_writer_prints_plain_lines_to_stdout_in_a_notebook(monkeypatch, capsys):
    monkeypatch.setattr("builtins.get_ipython", object, raising=False)
    writer = telemetry.build_console_writer(10, io.StringIO())
    writer.write(telemetry.Record(step=3, split="train", values={"loss": 0.5}))
    assert capsys.readouterr().out == "train | step 3 | loss 0.5\n"


def test_console_log_line_contains_exactly_the_configured_fields(monkeypatch):
    lines = []
    monkeypatch.setattr(logging, "info", lambda text, *args: lines.append(text % args))
    run = telemetry.RunInfo(model_dir="/run", total_steps=700, config={})
    record = telemetry.Record(
        step=100, split="train", values={"loss": 0.5, "other": 1.0, "steps_per_second": 10.0}
    )
    console_writer.console_of(run, fields=["loss", "eta"]).write(record)
    assert lines == ["train | step 100 | loss 0.5 | eta 0:01:00"]


@pytest.mark.parametrize(
    ("record", "fields", "expected"),
    [
        (TRAIN, None, ["a_loss 0.5", "b_loss 2", "auc[0] 0.001", "steps_per_second 10"]),
        (TRAIN, ["auc[0]", "*_loss"], ["auc[0] 0.001", "a_loss 0.5", "b_loss 2"]),
        (TRAIN, ["b_loss", "*_loss"], ["b_loss 2", "a_loss 0.5"]),
        (TRAIN, ["eta", "steps_per_second"], ["eta 0:01:00", "steps_per_second 10"]),
        (TRAIN, ["absent"], []),
        # An evaluation without any of the configured fields is shown in full.
        (EVAL, ["a_loss", "eta"], ["accuracy 0.5", "steps_per_second 5"]),
        (EVAL, ["acc*"], ["accuracy 0.5"]),
    ],
)
def test_console_shows_fields_in_their_configured_order(record, fields, expected):
    shown = console_writer.shown_fields(record, fields)
    assert [f"{name} {text}" for name, text in shown.items()] == expected


@pytest.fixture
def drawn(monkeypatch):
    """Return a function that draws records and steps on a terminal and returns the output."""

    def draw(columns, *records, **options):
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", str(columns))
        terminal = Terminal()
        with telemetry.build_console_writer(1000, terminal, **options) as writer:
            for record in records:
                if isinstance(record, int):
                    writer.progress(record)
                elif isinstance(record, dict):
                    writer.write(telemetry.Record(step=400, split="train", values=record))
                else:
                    writer.write(record)
            writer.flush()
        return terminal.getvalue()

    return draw


def test_progress_bar_shows_steps_rate_remaining_time_and_the_chosen_metrics(drawn):
    values = {"loss": 0.5, "accuracy": 0.25, "steps_per_second": 10.0}
    shown = drawn(160, values, fields=["loss"])
    for part in ("400/1000", "loss 0.5", "10.0 steps/s", "ETA 0:01:00"):
        assert part in shown
    assert "accuracy" not in shown


def test_evaluation_line_stays_above_the_progress_bar(drawn):
    shown = drawn(160, telemetry.Record(step=5, split="validation", values={"[x]": 0.5}))
    assert "validation | step 5 | [x] 0.5" in shown


def test_progress_bar_moves_between_records(drawn):
    shown = drawn(160, 100, 300)
    assert "300/1000" in shown
    assert "steps/s, ETA" in shown


def test_console_log_line_contains_the_epoch_and_the_evaluation_results_of_its_step(monkeypatch):
    lines = []
    monkeypatch.setattr(logging, "info", lambda text, *args: lines.append(text % args))
    run = telemetry.RunInfo(model_dir="/run", total_steps=700, config={}, train_epochs=14)
    with console_writer.console_of(run, fields=["*loss", "accuracy"]) as writer:
        for step in (25, 100):
            writer.write(telemetry.Record(step=step, split="train", values={"loss": 0.5}))
        writer.write(EVAL)
        writer.flush()
        writer.write(telemetry.Record(step=700, split="train", values={"loss": 0.25}))
    assert lines == [
        "train | epoch 0.5/14 | step 25 | loss 0.5",
        "train | epoch 2/14 | step 100 | loss 0.5 | validation | accuracy 0.5",
        "train | epoch 14/14 | step 700 | loss 0.25",
    ]


def test_terminal_shows_one_line_per_evaluated_epoch_above_the_progress_bar(drawn):
    shown = drawn(160, {"loss": 0.5}, dataclasses.replace(EVAL, step=400), train_epochs=5)
    assert "train | epoch 2/5 | step 400 | loss 0.5 | validation | accuracy 0.5" in shown
    last_bar = shown.rpartition("epoch 2/5")[2]
    assert "400/1000" in last_bar


@pytest.mark.parametrize("columns", [40, 80])
def test_narrow_terminal_shows_the_metric_without_a_progress_bar(drawn, columns):
    shown = drawn(columns, {"training_loss": 0.034025, "steps_per_second": 10.0})
    assert "training_loss 0.034025" in shown
    assert "━" not in shown


def test_summary_table_shows_every_row_once_and_is_written_to_stderr_by_default(
    monkeypatch, capsys
):
    monkeypatch.setenv("COLUMNS", "100")
    rows = {"model_dir": "/runs/[a]", "best": {"accuracy": 0.987654321}, "steps": 100}
    telemetry.summary_table(rows, title="mnist")
    captured = capsys.readouterr()
    for part in ("mnist", "/runs/[a]", "best/accuracy", "0.98765", "100"):
        assert captured.err.count(part) == 1
    assert captured.out == ""
