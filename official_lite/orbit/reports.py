"""Where the numbers of a run go."""

from collections.abc import Sequence

import tensorflow as tf

from official_lite import telemetry
from official_lite.orbit import runner, utils


class Reports:
    """Takes outputs as they come up, and hands records to the writers when told to.

    Args:
      writers: Take the records; the log, if there are none.
    """

    def __init__(self, writers: Sequence[telemetry.Writer] = ()) -> None:
        self._writer = telemetry.MultiWriter(writers or [telemetry.ConsoleWriter()])
        self._records: list[telemetry.Record] = []

    def take(
        self,
        logs: runner.Output,
        *,
        step: int,
        split: str,
        summary_manager: utils.SummaryManagerInterface,
        events: telemetry.Events | None = None,
        total_steps: int | None = None,
    ) -> None:
        """Writes summaries at once, since their manager reads the step itself; keeps a record."""
        events = events or telemetry.Events()
        summary_manager.write_summaries(logs)
        with summary_manager.summary_writer().as_default():
            telemetry.write_media(events, step=step)
        summary_manager.flush()
        self._records.append(
            telemetry.Record(
                step=step,
                split=split,
                values=telemetry.numbers(logs),
                images=events.images,
                histograms=events.histograms,
                total_steps=total_steps,
            )
        )

    def write(self) -> None:
        """Hands the records that have come up to the writers, and flushes them."""
        records, self._records = self._records, []
        for record in records:
            self._writer.write(record)
        if records:
            self._writer.flush()


def as_numpy(output: runner.Output) -> runner.Output:
    """A copy of an output with NumPy values for tensors."""
    return tf.nest.map_structure(utils.get_value, output)
