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

from official_lite.telemetry import run_writers as run_writers
from official_lite.telemetry.console_writer import (
    ConsoleWriter as ConsoleWriter,
    ProgressWriter as ProgressWriter,
    build_console_writer as build_console_writer,
    summary_table as summary_table,
)
from official_lite.telemetry.event_storage import (
    Events as Events,
    EventStorage as EventStorage,
    ScalarHistory as ScalarHistory,
    get_event_storage as get_event_storage,
    name_scope as name_scope,
    put_histogram as put_histogram,
    put_image as put_image,
    put_scalar as put_scalar,
)
from official_lite.telemetry.mlflow_writer import MlflowWriter as MlflowWriter
from official_lite.telemetry.record import (
    Histogram as Histogram,
    Record as Record,
    Values as Values,
    numbers as numbers,
)
from official_lite.telemetry.run_writers import RunInfo as RunInfo
from official_lite.telemetry.tensorboard_writer import (
    TensorBoardWriter as TensorBoardWriter,
    histogram_summary as histogram_summary,
    image_summary as image_summary,
    scalar_summary as scalar_summary,
    write_hparams as write_hparams,
    write_media as write_media,
)
from official_lite.telemetry.text_file_writers import (
    CsvWriter as CsvWriter,
    JsonLinesWriter as JsonLinesWriter,
    to_json as to_json,
)
from official_lite.telemetry.wandb_writer import WandbWriter as WandbWriter
from official_lite.telemetry.writer import (
    AsyncWriter as AsyncWriter,
    LastRecordsWriter as LastRecordsWriter,
    MultiWriter as MultiWriter,
    Writer as Writer,
)
