import itertools
import json
import threading

import pytest

from official_lite import telemetry
from tests import commands, waiting


def record(step):
    return telemetry.Record(step=step, split="train", values={})


class Recorder(telemetry.Writer):
    """A writer that records its calls, can be blocked and fails at some steps."""

    def __init__(self, failing=()):
        self.calls = []
        self.may_write = threading.Event()
        self.may_write.set()
        self._failing = failing

    def write(self, record):
        self.may_write.wait(timeout=waiting.SECONDS)
        self.calls.append(record.step)
        if record.step in self._failing:
            raise OSError(f"disk full at {record.step}")

    def flush(self):
        self.calls.append("flush")

    def close(self):
        self.calls.append("close")


def test_async_writer_writes_and_flushes_in_the_order_of_the_calls():
    inner = Recorder()
    with telemetry.AsyncWriter(inner) as writer:
        for step in range(50):
            writer.write(record(step))
        writer.flush()
        writer.write(record(50))
    assert inner.calls == [*range(50), "flush", 50, "close"]


def test_async_write_and_flush_return_immediately_and_only_close_waits():
    inner = Recorder()
    inner.may_write.clear()
    with telemetry.AsyncWriter(inner) as writer:
        writer.write(record(1))
        writer.flush()
        assert inner.calls == []
        inner.may_write.set()
    assert inner.calls == [1, "flush", "close"]


def test_async_write_blocks_while_the_queue_is_full():
    inner = Recorder()
    inner.may_write.clear()
    writer = telemetry.AsyncWriter(inner, max_records=1)
    written = []

    def write():
        for step in range(5):
            writer.write(record(step))
            written.append(step)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join(timeout=0.2)
    # One record is being written, one is queued, and there is no room for a third.
    assert len(written) <= 2
    inner.may_write.set()
    thread.join()
    writer.close()
    assert inner.calls == [*range(5), "close"]


def _call_until_it_fails(call):
    numbers = itertools.count(1)
    waiting.wait_for(lambda: call(next(numbers)))


def test_async_flush_raises_an_earlier_write_error_and_later_records_are_written():
    inner = Recorder(failing=[1])
    inner.may_write.clear()
    writer = telemetry.AsyncWriter(inner)
    for step in (1, 2, 3):
        writer.write(record(step))
    inner.may_write.set()
    with pytest.raises(OSError, match="disk full at 1"):
        _call_until_it_fails(lambda _: writer.flush())
    writer.close()
    assert [call for call in inner.calls if call != "flush"] == [1, 2, 3, "close"]


def test_async_write_that_raises_an_earlier_error_still_writes_the_new_record():
    inner = Recorder(failing=[1])
    writer = telemetry.AsyncWriter(inner)
    written = []

    def write(step):
        written.append(step)
        writer.write(record(step))

    with pytest.raises(OSError, match="disk full at 1"):
        _call_until_it_fails(write)
    writer.close()
    assert inner.calls == [*written, "close"]


def test_async_close_after_errors_writes_remaining_records_and_raises_all_errors():
    inner = Recorder(failing=[1, 3])
    inner.may_write.clear()
    writer = telemetry.AsyncWriter(inner)
    for step in (1, 2, 3, 4):
        writer.write(record(step))
    inner.may_write.set()
    with pytest.raises(ExceptionGroup) as caught:
        writer.close()
    assert [str(error) for error in caught.value.exceptions] == [
        "disk full at 1",
        "disk full at 3",
    ]
    assert inner.calls == [1, 2, 3, 4, "close"]
    assert not [thread for thread in threading.enumerate() if thread.name == "telemetry"]


def run_script(path, body):
    """Run `body` in its own process; return the steps it wrote and how often it closed."""
    script = f"""
import atexit, os, sys, time
from official_lite import telemetry

class Inner(telemetry.JsonLinesWriter):
    def close(self):
        super().close()
        with open(sys.argv[1] + ".closed", "a") as file:
            file.write("closed\\n")

def write(step):
    writer.write(telemetry.Record(step=step, split="train", values={{}}))

writer = telemetry.AsyncWriter(Inner(sys.argv[1]))
{body}
"""
    path.with_suffix(".py").write_text(script)
    done = commands.run([path.with_suffix(".py"), path])
    assert done.returncode == 0, done.stderr
    steps = [json.loads(line)["step"] for line in path.read_text().splitlines()]
    return steps, path.with_suffix(".closed").read_text().count("closed")


def test_async_writer_loses_no_record_if_the_process_exits_without_close(tmp_path):
    steps, num_closed = run_script(tmp_path / "m", "for step in range(100): write(step)")
    assert (steps, num_closed) == ([*range(100)], 1)


def test_forked_process_waits_for_its_async_writer_only_if_it_has_written_a_record(tmp_path):
    body = """
for step in range(20): write(step)
while not os.path.exists(sys.argv[1]) or sum(1 for _ in open(sys.argv[1])) < 20:
    time.sleep(0.001)
for to_write in ([], [20]):
    child = os.fork()
    if child == 0:
        for step in to_write: write(step)
        # Exit without the exit of TensorFlow, which can't be forked.
        atexit._run_exitfuncs()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
    steps, num_closed = run_script(tmp_path / "m", body)
    assert (steps, num_closed) == ([*range(21)], 2)


def test_async_writer_sync_waits_until_earlier_writes_and_rewinds_are_done():
    class Durable(Recorder):
        def sync(self):
            self.calls.append("sync")

        def rewind(self, step):
            self.calls.append(f"rewind {step}")

    inner = Durable()
    with telemetry.AsyncWriter(inner) as writer:
        writer.write(record(1))
        writer.rewind(0)
        writer.write(record(2))
        writer.sync()
        assert inner.calls == [1, "rewind 0", 2, "sync"]
