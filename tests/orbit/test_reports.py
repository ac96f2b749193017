import pytest
import tensorflow as tf

from official_lite import telemetry
from official_lite.orbit import reports, utils


class Remembers(utils.SummaryManagerInterface):
    def __init__(self):
        self.written, self.flushes = [], 0

    def flush(self):
        self.flushes += 1

    def summary_writer(self, relative_path=""):
        return tf.summary.create_noop_writer()

    def write_summaries(self, summary_dict):
        self.written.append(summary_dict)


@pytest.fixture
def storage():
    return telemetry.EventStorage()


@pytest.fixture
def manager():
    return Remembers()


@pytest.fixture
def make_reports(storage, manager):
    return lambda *writers: reports.Reports(storage, writers, manager, Remembers())


def test_records_wait_and_summaries_do_not(recording_writer, make_reports, manager):
    outlet = make_reports(recording_writer)
    outlet.report_training({"loss": 0.5}, step=3, total_steps=9)
    assert manager.written == [{"loss": 0.5}]
    assert manager.flushes == 1
    assert not recording_writer.records
    outlet.write()
    expected = telemetry.Record(step=3, split="train", values={"loss": 0.5}, total_steps=9)
    assert recording_writer.records == [expected]


def test_what_the_trainer_reports_wins_over_the_storage(recording_writer, make_reports, storage):
    outlet = make_reports(recording_writer)
    for name in ("loss", "norm"):
        storage.put_scalar(name, 7.0)
    outlet.report_training({"loss": 0.5}, step=3, total_steps=9)
    assert outlet.train_logs == {"loss": 0.5, "norm": 7.0}


def test_nothing_is_written_where_nothing_came_up(recording_writer, make_reports):
    outlet = make_reports(recording_writer)
    outlet.report_training({}, step=3, total_steps=9)
    outlet.report_what_is_left(step=3)
    outlet.write()
    assert recording_writer.records == []


def test_writer_that_fails_takes_no_record_from_the_others(recording_writer, make_reports):
    class Full(telemetry.Writer):
        def write(self, record):
            if record.split == "train":
                raise OSError("disk full")

    outlet = make_reports(Full(), recording_writer)
    outlet.report_training({"loss": 0.5}, step=3, total_steps=9)
    outlet.report_evaluation({"loss": 0.4}, step=3)
    with pytest.raises(OSError, match="disk full"):
        outlet.write()
    outlet.write()
    assert [record.split for record in recording_writer.records] == ["train", "validation"]


def test_as_numpy_copies_and_keeps_the_nesting():
    output = {"a": tf.constant(1.0), "b": {"c": 2}}
    converted = reports.as_numpy(output)
    assert converted == {"a": 1.0, "b": {"c": 2}}
    assert not tf.is_tensor(converted["a"])
    assert converted is not output
