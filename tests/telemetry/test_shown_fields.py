import pytest

from official_lite import telemetry
from official_lite.telemetry import console_writer

TRAIN = telemetry.Record(
    step=100,
    split="train",
    values={"a_loss": 0.5, "b_loss": 2, "rate": 0.001, "steps_per_second": 10.0},
    total_steps=700,
)
EVAL = telemetry.Record(
    step=100, split="validation", values={"accuracy": 0.5, "steps_per_second": 5.0}
)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (None, {"a_loss": "0.5", "b_loss": "2", "rate": "0.001", "steps_per_second": "10"}),
        (["rate", "*_loss"], {"rate": "0.001", "a_loss": "0.5", "b_loss": "2"}),
        (["b_loss", "*_loss"], {"b_loss": "2", "a_loss": "0.5"}),
        (["eta", "steps_per_second"], {"eta": "0:01:00", "steps_per_second": "10"}),
        (["absent"], {}),
    ],
)
def test_fields_are_chosen_in_their_order(fields, expected):
    assert list(console_writer.shown_fields(TRAIN, fields).items()) == list(expected.items())


def test_evaluation_of_which_nothing_is_named_is_shown_whole():
    shown = console_writer.shown_fields(EVAL, ["a_loss", "eta", "steps_per_second"])
    assert list(shown) == ["accuracy", "steps_per_second"]
    assert list(console_writer.shown_fields(EVAL, ["acc*"])) == ["accuracy"]


def test_name_with_brackets_is_found_as_it_is():
    record = telemetry.Record(step=1, split="train", values={"auc[0]": 1})
    assert console_writer.shown_fields(record, ["auc[0]"]) == {"auc[0]": "1"}
