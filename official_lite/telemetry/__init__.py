"""Numbers on their way out of a run: one `Record` a report, and the writers that take it.

::

    with telemetry.MultiWriter([
        telemetry.JsonLinesWriter("runs/mnist/metrics.json"),
        telemetry.TensorBoardWriter("runs/mnist"),
        telemetry.build_console_writer(total_steps=1000),
    ]) as writer:
        writer.write(telemetry.Record(step=10, split="train", values={"loss": 0.5}))

A destination of your own is a subclass of `Writer` with a `write` method.
"""

from official_lite.telemetry.console_writer import ConsoleWriter
from official_lite.telemetry.json_lines_writer import JsonLinesWriter, to_json
from official_lite.telemetry.last_records_writer import LastRecordsWriter
from official_lite.telemetry.multi_writer import MultiWriter
from official_lite.telemetry.progress_writer import ProgressWriter, build_console_writer
from official_lite.telemetry.record import Record, Values, numbers
from official_lite.telemetry.summary_table import summary_table
from official_lite.telemetry.tensorboard_writer import TensorBoardWriter, scalar_summary
from official_lite.telemetry.writer import Writer

__all__ = [
    "Record",
    "Values",
    "numbers",
    "Writer",
    "ConsoleWriter",
    "JsonLinesWriter",
    "LastRecordsWriter",
    "MultiWriter",
    "ProgressWriter",
    "TensorBoardWriter",
    "build_console_writer",
    "scalar_summary",
    "summary_table",
    "to_json",
]
