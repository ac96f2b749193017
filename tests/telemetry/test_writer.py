import pytest

from official_lite import telemetry


class Recorder(telemetry.Writer):
    def __init__(self):
        self.calls = []

    def write(self, record):
        self.calls.append("write")

    def flush(self):
        self.calls.append("flush")


def test_writer_closes_itself_even_after_an_error():
    writer = Recorder()
    with pytest.raises(ZeroDivisionError), writer:
        raise ZeroDivisionError
    assert writer.calls == ["flush"]


def test_write_is_all_that_a_writer_needs():
    with pytest.raises(TypeError, match="write"):
        telemetry.Writer()


def test_writer_that_buffers_is_flushed_before_a_checkpoint_counts():
    writer = Recorder()
    writer.sync()
    assert writer.calls == ["flush"]
