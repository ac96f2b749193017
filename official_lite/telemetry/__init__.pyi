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
from official_lite.telemetry.tracking_writers import (
    MlflowWriter as MlflowWriter,
    WandbWriter as WandbWriter,
)
from official_lite.telemetry.writer import (
    AsyncWriter as AsyncWriter,
    Histogram as Histogram,
    LastRecordsWriter as LastRecordsWriter,
    MultiWriter as MultiWriter,
    Record as Record,
    RunInfo as RunInfo,
    Values as Values,
    Writer as Writer,
    numbers as numbers,
)
