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


def test_records_wait_and_summaries_do_not(recording_writer):
    manager, outlet = Remembers(), reports.Reports([recording_writer])
    outlet.take({"loss": 0.5}, step=3, split="train", summary_manager=manager)
    assert manager.written == [{"loss": 0.5}]
    assert manager.flushes == 1
    assert not recording_writer.records
    outlet.write()
    expected = telemetry.Record(step=3, split="train", values={"loss": 0.5})
    assert recording_writer.records == [expected]


def test_record_is_written_once_even_if_writing_fails(recording_writer):
    class Full(telemetry.Writer):
        def write(self, record):
            raise OSError("disk full")

    outlet = reports.Reports([Full(), recording_writer])
    outlet.take({"loss": 0.5}, step=3, split="train", summary_manager=Remembers())
    with pytest.raises(OSError, match="disk full"):
        outlet.write()
    outlet.write()
    assert len(recording_writer.records) == 1


def test_as_numpy_copies_and_keeps_the_nesting():
    output = {"a": tf.constant(1.0), "b": {"c": 2}}
    converted = reports.as_numpy(output)
    assert converted == {"a": 1.0, "b": {"c": 2}}
    assert not tf.is_tensor(converted["a"])
    assert converted is not output
