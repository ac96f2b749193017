"""TensorBoard's own readers read tags, steps, wall times and values from our event files."""

import math
import pathlib
import time
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("tensorboard", reason="needs `pip install tensorboard`")

from tensorboard import context
from tensorboard.backend.event_processing import (
    data_provider,
    event_accumulator,
    plugin_event_multiplexer,
)
from tensorboard.plugins import base_plugin
from tensorboard.plugins.histogram import metadata as histogram_metadata
from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups
from tensorboard.plugins.image import metadata as image_metadata
from tensorboard.plugins.scalar import metadata as scalar_metadata
from tensorboard.plugins.text import metadata as text_metadata

from official_lite import telemetry
from official_lite.telemetry import writer
from tests import rounding

_CONTEXT = context.RequestContext()
_STEPS = [0, 1, 10, 2**31, 2**40]
_SCALARS = {
    "loss": 0.5,
    "a/b/c": -1.0,
    "a b": 1.0,
    "größe": 2.0,
    "of_numpy": np.float64(0.25),
    "of_bfloat16": tf.bfloat16.as_numpy_dtype(1.5),
    "of_int": 3,
    "of_bool": True,
    "large": 1e30,
    "small": 1e-30,
    "nan": math.nan,
    "inf": math.inf,
}
_IMAGES = {
    "gray": np.arange(6, dtype=np.uint8).reshape(2, 3, 1),
    "rgb": np.arange(18, dtype=np.uint8).reshape(2, 3, 3),
    "rgba": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    "tall": np.full([9, 1, 3], 7, np.uint8),
}
_SAMPLES = {
    "normal": np.random.default_rng(0).normal(size=1000),
    "constant": np.full(10, 3.0),
    "zeros": np.zeros(10),
    "negative": -np.geomspace(1e-3, 1e3, 50),
    "of_ints": np.arange(-5, 6),
}


def _provide(directory: pathlib.Path) -> data_provider.MultiplexerDataProvider:
    """Return the data provider from which TensorBoard's pages read a directory."""
    multiplexer = plugin_event_multiplexer.EventMultiplexer(
        tensor_size_guidance={"scalars": 0, "images": 0, "histograms": 0, "text": 0}
    ).AddRunsFromDirectory(str(directory))
    return data_provider.MultiplexerDataProvider(multiplexer.Reload(), str(directory))


def _accumulate(directory: pathlib.Path) -> event_accumulator.EventAccumulator:
    guidance = {event_accumulator.TENSORS: 0}
    return event_accumulator.EventAccumulator(str(directory), guidance).Reload()


def _histogram(values: np.ndarray) -> telemetry.Histogram:
    return writer.histogram_of(writer.bucket_counts(values).numpy())


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("events")
    with telemetry.TensorBoardWriter(directory) as writer:
        for step in _STEPS:
            writer.write_values(
                {**_SCALARS, "step": float(step)},
                step=tf.constant(step, tf.int64),
                relative_path="train",
            )
        for step in (1, 2):
            writer.write(
                telemetry.Record(
                    step=step,
                    split="validation",
                    values={"loss": 1.0 / step, "other": {"loss": 2.0}},
                    images=_IMAGES,
                    histograms={name: _histogram(one) for name, one in _SAMPLES.items()},
                )
            )
        writer.write_values(
            {"note": "**bold**"}, step=3, relative_path="text", summary_fn=tf.summary.text
        )
    return directory


@pytest.fixture(scope="module")
def provider(directory: pathlib.Path) -> data_provider.MultiplexerDataProvider:
    return _provide(directory)


def test_tensorboard_runs_are_named_after_splits_and_list_their_plugins(provider: Any) -> None:
    runs = provider.list_runs(_CONTEXT, experiment_id="")
    assert {run.run_name for run in runs} == {"train", "validation", "validation/other", "text"}
    assert all(0 <= time.time() - run.start_time < 3600 for run in runs)
    plugins = provider.list_plugins(_CONTEXT, experiment_id="")
    assert set(plugins) == {"scalars", "images", "histograms", "text"}


def test_tensorboard_reads_scalars_with_the_written_values_steps_and_wall_times(
    provider: Any, directory: pathlib.Path
) -> None:
    plugin = {"experiment_id": "", "plugin_name": scalar_metadata.PLUGIN_NAME}
    read = provider.read_scalars(_CONTEXT, **plugin, downsample=100)["train"]
    listed = provider.list_scalars(_CONTEXT, **plugin)["train"]
    accumulated = _accumulate(directory / "train")
    for tag, written in _SCALARS.items():
        events = accumulated.Tensors(tag)
        own = [float(tf.make_ndarray(event.tensor_proto)) for event in events]
        assert [each.step for each in read[tag]] == [event.step for event in events] == _STEPS
        for values in ([each.value for each in read[tag]], own):
            if math.isfinite(written):
                rounding.assert_close(values, float(written), roundings=4)
            else:
                np.testing.assert_equal(values, [written] * len(_STEPS))
        times = [each.wall_time for each in read[tag]]
        assert times == sorted(times)
        assert 0 <= time.time() - times[-1] < 3600
        known = listed[tag]
        assert (known.max_step, known.display_name, known.description) == (_STEPS[-1], "", "")


def test_tensorboard_reads_images_as_written(provider: Any) -> None:
    read = provider.read_blob_sequences(
        _CONTEXT, experiment_id="", plugin_name=image_metadata.PLUGIN_NAME, downsample=100
    )["validation"]
    for tag, image in _IMAGES.items():
        assert [each.step for each in read[tag]] == [1, 2]
        for each in read[tag]:
            width, height, png = (
                provider.read_blob(_CONTEXT, blob_key=one.blob_key) for one in each.values
            )
            assert (int(height), int(width)) == image.shape[:2]
            np.testing.assert_array_equal(tf.io.decode_png(png), image)


def test_histogram_bins_count_each_value_once_and_cover_the_range_of_values(provider: Any) -> None:
    read = provider.read_tensors(
        _CONTEXT, experiment_id="", plugin_name=histogram_metadata.PLUGIN_NAME, downsample=100
    )["validation"]
    for tag, sample in _SAMPLES.items():
        assert [each.step for each in read[tag]] == [1, 2]
        left, right, counts = read[tag][-1].numpy.T
        assert counts.sum() == sample.size
        assert (left < right).all()
        np.testing.assert_array_equal(left[1:], right[:-1])
        assert ((sample >= left[0]) & (sample <= right[-1])).all()
        assert min(counts[0], counts[-1]) > 0


def test_tensorboard_reads_text_summaries_as_written(provider: Any) -> None:
    [note] = provider.read_tensors(
        _CONTEXT, experiment_id="", plugin_name=text_metadata.PLUGIN_NAME, downsample=100
    )["text"]["note"]
    assert (note.step, note.numpy.item()) == (3, b"**bold**")


def test_tensorboard_downsampling_keeps_the_last_step(provider: Any) -> None:
    read = provider.read_scalars(
        _CONTEXT, experiment_id="", plugin_name=scalar_metadata.PLUGIN_NAME, downsample=2
    )["train"]["step"]
    assert len(read) == 2
    assert (read[-1].step, read[-1].value) == (_STEPS[-1], float(_STEPS[-1]))


def test_tensorboard_reads_each_flushed_step_of_an_event_file_that_is_still_open(
    tmp_path: pathlib.Path,
) -> None:
    read = event_accumulator.EventAccumulator(str(tmp_path))
    with telemetry.TensorBoardWriter(tmp_path) as writer:
        for step in (1, 2, 3):
            writer.write_values({"loss": 1.0}, step=step)
            writer.flush()
            assert [event.step for event in read.Reload().Tensors("loss")][-1] == step


@pytest.mark.parametrize("back_to", [10, 30])
def test_tensorboard_reads_each_step_once_after_a_resume(
    tmp_path: pathlib.Path, back_to: int
) -> None:
    def write(writer: telemetry.TensorBoardWriter, steps: list[int]) -> None:
        for step in steps:
            writer.write(telemetry.Record(step=step, split="train", values={"loss": float(step)}))
        writer.flush()

    write(telemetry.TensorBoardWriter(tmp_path), [10, 20, 30])
    with telemetry.TensorBoardWriter(tmp_path) as writer:
        writer.rewind(back_to)
        write(writer, [step for step in (10, 20, 30, 40) if step > back_to])
    read = _provide(tmp_path).read_scalars(
        _CONTEXT, experiment_id="", plugin_name=scalar_metadata.PLUGIN_NAME, downsample=100
    )
    assert [each.step for each in read["train"]["loss"]] == [10, 20, 30, 40]


def _list_hparams(directory: pathlib.Path) -> dict[str, tuple[dict[str, Any], dict[str, float]]]:
    """Return the hyperparameters and the metrics that the HParams page shows for each run."""
    backend = backend_context.Context(base_plugin.TBContext(data_provider=_provide(directory)))
    statuses = list(api_pb2.Status.values())
    request = api_pb2.ListSessionGroupsRequest(allowed_statuses=statuses, slice_size=100)
    answer = list_session_groups.Handler(_CONTEXT, backend, "", request).run()
    return {
        group.sessions[0].name: (
            {name: getattr(v, v.WhichOneof("kind")) for name, v in group.hparams.items()},
            {f"{v.name.group}/{v.name.tag}": v.value for v in group.sessions[0].metric_values},
        )
        for group in answer.session_groups
    }


def test_hparams_dashboard_lists_hyperparameters_with_the_metrics_of_their_run(
    tmp_path: pathlib.Path,
) -> None:
    for number, rate in enumerate((0.1, 0.2)):
        run = tmp_path / f"run{number}"
        values = {"rate": rate, "steps": 10, "is_fast": True, "none": None, "größe": "a" * 300}
        # The second call replaces the hyperparameters that the first call wrote.
        telemetry.write_hparams(str(run), {**values, "rate": 7.0, "old": 1})
        telemetry.write_hparams(str(run), values)
        with telemetry.TensorBoardWriter(run) as writer:
            writer.write(telemetry.Record(step=3, split="train", values={"training_loss": number}))
    found = _list_hparams(tmp_path)
    assert found == {
        f"run{number}": (
            {"rate": rate, "steps": 10.0, "is_fast": True, "größe": "a" * 300},
            {"train/training_loss": number, "train/loss": number},
        )
        for number, rate in enumerate((0.1, 0.2))
    }


def test_losses_of_all_splits_share_the_tensorboard_tag_loss(tmp_path: pathlib.Path) -> None:
    with telemetry.TensorBoardWriter(tmp_path) as writer:
        for split, values in {
            "train": {"training_loss": 0.5},
            "validation": {"validation_loss": 0.7, "noisy": {"validation_loss": 0.9}},
            "other": {"validation_loss": 1.0, "loss": 2.0},
        }.items():
            writer.write(telemetry.Record(step=1, split=split, values=values))
    read = _provide(tmp_path).read_scalars(
        _CONTEXT, experiment_id="", plugin_name=scalar_metadata.PLUGIN_NAME, downsample=10
    )
    found = {run: {tag: data[0].value for tag, data in tags.items()} for run, tags in read.items()}
    assert {run: tags.pop("loss") for run, tags in found.items()} == pytest.approx(
        {"train": 0.5, "validation": 0.7, "validation/noisy": 0.9, "other": 2.0}
    )
    # The Model Garden's tags are also present.
    assert {run: list(tags) for run, tags in found.items()} == {
        "train": ["training_loss"],
        "validation": ["validation_loss"],
        "validation/noisy": ["validation_loss"],
        "other": ["validation_loss"],
    }
