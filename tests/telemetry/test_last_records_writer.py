from official_lite import telemetry


def test_last_record_of_each_split_is_remembered():
    writer = telemetry.LastRecordsWriter()
    for step, split, loss in [(1, "train", 3.0), (2, "validation", 2.0), (3, "train", 1.0)]:
        writer.write(telemetry.Record(step=step, split=split, values={"loss": loss}))
    assert writer.rows() == {
        "train": {"step": 3, "loss": 1.0},
        "validation": {"step": 2, "loss": 2.0},
    }


def test_later_numbers_of_the_same_step_join_those_before():
    writer = telemetry.LastRecordsWriter()
    for step, values in [
        (1, {"early": 0.0}),
        (2, {"loss": 3.0, "clean": {"f1": 0.5}}),
        (2, {"swa/loss": 2.0, "clean": {"recall": 1.0}}),
    ]:
        writer.write(telemetry.Record(step=step, split="train", values=values))
    row = {"step": 2, "loss": 3.0, "clean/f1": 0.5, "swa/loss": 2.0, "clean/recall": 1.0}
    assert writer.rows() == {"train": row}


def test_records_after_the_restored_step_are_forgotten():
    writer = telemetry.LastRecordsWriter()
    for step, split in ((10, "train"), (20, "validation")):
        writer.write(telemetry.Record(step=step, split=split, values={"loss": 1.0}))
    writer.rewind(10)
    assert list(writer.rows()) == ["train"]
