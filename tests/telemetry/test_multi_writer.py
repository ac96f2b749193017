import pytest

from official_lite import telemetry

RECORD = telemetry.Record(step=1, split="train", values={})


class Recorder(telemetry.Writer):
    def __init__(self, name, calls, failure=None):
        self.name, self.calls, self.failure = name, calls, failure

    def write(self, record):
        self._note("write")

    def flush(self):
        self._note("flush")

    def close(self):
        self._note("close")

    def _note(self, act):
        self.calls.append(f"{act} {self.name}")
        if self.failure:
            raise self.failure


def test_everything_reaches_everyone_in_order():
    calls = []
    with telemetry.MultiWriter([Recorder("a", calls), Recorder("b", calls)]) as writer:
        writer.write(RECORD)
        writer.flush()
    assert calls == ["write a", "write b", "flush a", "flush b", "close a", "close b"]


@pytest.mark.parametrize("act", ["write", "flush", "close"])
def test_failing_writer_does_not_stop_the_others(act):
    calls = []
    bad = Recorder("bad", calls, OSError("disk full"))
    writer = telemetry.MultiWriter([bad, Recorder("good", calls)])
    with pytest.raises(OSError, match="disk full"):
        writer.write(RECORD) if act == "write" else getattr(writer, act)()
    assert calls == [f"{act} bad", f"{act} good"]
