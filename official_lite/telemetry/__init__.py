"""Metrics reporting: an `EventStorage` that collects values, and writers that publish them.

Any code that runs inside a step, and every hook, can record values::

    class Encoder(keras.layers.Layer):
        def call(self, inputs, training=False):
            outputs = self.mix(inputs)
            if training:
                telemetry.put_scalar("encoder/norm", tf.norm(outputs))
            return outputs

Values recorded since the last report become part of the next `Record`, which every `Writer`
receives::

    with telemetry.MultiWriter([
        telemetry.JsonLinesWriter("runs/mnist/metrics.json"),
        telemetry.TensorBoardWriter("runs/mnist"),
        telemetry.build_console_writer(total_steps=1000),
    ]) as writer:
        writer.write(telemetry.Record(step=10, split="train", values={"loss": 0.5}))

To add a custom destination, subclass `Writer` and implement `write`.
"""

from official_lite.telemetry import run_writers
from official_lite.telemetry.console_writer import (
    ConsoleWriter,
    ProgressWriter,
    build_console_writer,
    summary_table,
)
from official_lite.telemetry.event_storage import (
    Events,
    EventStorage,
    ScalarHistory,
    get_event_storage,
    name_scope,
    put_histogram,
    put_image,
    put_scalar,
)
from official_lite.telemetry.mlflow_writer import MlflowWriter
from official_lite.telemetry.record import Histogram, Record, Values, numbers
from official_lite.telemetry.run_writers import RunInfo
from official_lite.telemetry.tensorboard_writer import (
    TensorBoardWriter,
    histogram_summary,
    image_summary,
    scalar_summary,
    write_media,
)
from official_lite.telemetry.text_file_writers import CsvWriter, JsonLinesWriter, to_json
from official_lite.telemetry.wandb_writer import WandbWriter
from official_lite.telemetry.writer import AsyncWriter, LastRecordsWriter, MultiWriter, Writer

__all__ = [
    "EventStorage",
    "Events",
    "Histogram",
    "ScalarHistory",
    "get_event_storage",
    "name_scope",
    "put_histogram",
    "put_image",
    "put_scalar",
    "Record",
    "RunInfo",
    "Values",
    "numbers",
    "Writer",
    "AsyncWriter",
    "ConsoleWriter",
    "CsvWriter",
    "JsonLinesWriter",
    "LastRecordsWriter",
    "MlflowWriter",
    "MultiWriter",
    "ProgressWriter",
    "TensorBoardWriter",
    "WandbWriter",
    "build_console_writer",
    "histogram_summary",
    "image_summary",
    "run_writers",
    "scalar_summary",
    "summary_table",
    "to_json",
    "write_media",
]
