"""Event files as TensorBoard reads them."""

import numpy as np
import tensorflow as tf
from tensorboard import context
from tensorboard.backend.event_processing import (
    data_provider,
    event_accumulator,
    plugin_event_accumulator,
    plugin_event_multiplexer,
)
from tensorboard.plugins.histogram import metadata as histogram_metadata
from tensorboard.plugins.image import metadata as image_metadata

from official_lite import telemetry


def read(directory):
    [path] = directory.glob("events*")
    events = tf.compat.v1.train.summary_iterator(str(path))
    return [
        (e.step, v.tag, float(tf.make_ndarray(v.tensor))) for e in events for v in e.summary.value
    ]


def test_tensorboard_writer_writes_splits_and_nested_names_to_subdirectories(tmp_path):
    with telemetry.TensorBoardWriter(tmp_path) as writer:
        writer.write(telemetry.Record(step=2, split="train", values={"loss": 0.5}))
        values = {"accuracy": 0.75, "noisy": {"accuracy": 0.25}}
        writer.write(telemetry.Record(step=3, split="validation", values=values))
    assert read(tmp_path / "train") == [(2, "loss", 0.5)]
    assert read(tmp_path / "validation") == [(3, "accuracy", 0.75)]
    assert read(tmp_path / "validation" / "noisy") == [(3, "accuracy", 0.25)]


def test_scalar_summaries_equal_those_written_by_tensorflow(tmp_path):
    values = {"loss": np.float32(0.3), "a/b": tf.constant(2), "nan": float("nan")}
    step = tf.Variable(7, dtype=tf.int64)
    with telemetry.TensorBoardWriter(tmp_path / "own") as writer:
        writer.write_values(values, step=step)
    with tf.summary.create_file_writer(str(tmp_path / "plain")).as_default():
        for name, value in values.items():
            telemetry.scalar_summary(name, value, step=step)
    own, plain = (_summaries(tmp_path / name) for name in ("own", "plain"))
    assert own == plain
    assert len(own) == 3


def _summaries(directory):
    [path] = directory.glob("events*")
    return [
        (
            e.step,
            v.tag,
            v.metadata.SerializeToString(),
            v.tensor.dtype,
            repr(tf.make_ndarray(v.tensor)),
        )
        for e in tf.compat.v1.train.summary_iterator(str(path))
        for v in e.summary.value
    ]


def test_tensorboard_writer_without_records_creates_no_files(tmp_path):
    with telemetry.TensorBoardWriter(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_writer_omits_values_that_are_not_scalars(tmp_path):
    with telemetry.TensorBoardWriter(tmp_path) as writer:
        writer.write_values({"matrix": np.zeros([2, 2]), "loss": 0.5}, step=1)
    assert read(tmp_path) == [(1, "loss", 0.5)]


def _write(writer, *steps, split="validation"):
    for step in steps:
        writer.write(telemetry.Record(step=step, split=split, values={"loss": float(step)}))
    writer.flush()


def _in_files(directory):
    paths = sorted(directory.glob("events*"))
    events = (e for path in paths for e in tf.compat.v1.train.summary_iterator(str(path)))
    return [(e.step, v.tag) for e in events for v in e.summary.value]


def _as_tensorboard_reads(directory):
    """Return the steps of each tag in each run, as TensorBoard's data provider reads them."""
    multiplexer = plugin_event_multiplexer.EventMultiplexer().AddRunsFromDirectory(str(directory))
    provider = data_provider.MultiplexerDataProvider(multiplexer.Reload(), str(directory))
    read = provider.read_scalars(
        context.RequestContext(), experiment_id="", plugin_name="scalars", downsample=1000
    )
    return {
        f"{run}/{tag}": [each.step for each in values]
        for run, tags in read.items()
        for tag, values in tags.items()
    }


def test_running_tensorboard_drops_the_old_values_of_repeated_steps(tmp_path):
    read = plugin_event_accumulator.EventAccumulator(str(tmp_path / "validation"))
    _write(telemetry.TensorBoardWriter(tmp_path), 10, 20, 30)
    assert [e.step for e in read.Reload().Tensors("loss")] == [10, 20, 30]
    with telemetry.TensorBoardWriter(tmp_path) as writer:
        writer.rewind(20)
        _write(writer, 30)
    assert [e.step for e in read.Reload().Tensors("loss")] == [10, 20, 30]


def test_tensorboard_shows_each_step_once_after_a_restore_in_the_same_process(tmp_path):
    with telemetry.TensorBoardWriter(tmp_path) as writer:
        _write(writer, 10, 20, 30)
        writer.rewind(10)
        _write(writer, 20, 30)
    assert _as_tensorboard_reads(tmp_path) == {"validation/loss": [10, 20, 30]}
    # A closed writer opens a new file and may truncate its previous one.
    writer.rewind(20)
    with writer:
        _write(writer, 30)
    assert _as_tensorboard_reads(tmp_path) == {"validation/loss": [10, 20, 30]}


def test_summary_of_a_step_after_the_checkpoint_is_replaced_when_the_step_is_repeated(tmp_path):
    # A summary inside a step carries the number of the preceding step.
    def step_after(writer, step):
        with writer.file_writer("train").as_default():
            telemetry.scalar_summary("norm", 1.0, step=step)

    killed = telemetry.TensorBoardWriter(tmp_path)
    step_after(killed, 10)
    _write(killed, 20, split="train")
    killed.mark_checkpoint(20)
    step_after(killed, 20)
    killed.flush()
    with telemetry.TensorBoardWriter(tmp_path) as writer:
        writer.rewind(20)
        step_after(writer, 20)
    assert _in_files(tmp_path / "train") == [(10, "norm"), (20, "loss"), (20, "norm")]


def test_training_and_an_evaluation_job_do_not_change_each_others_event_files(tmp_path):
    with telemetry.TensorBoardWriter(tmp_path, job="eval") as evaluation:
        _write(evaluation, 10, 20, 30)
    for _ in range(2):
        with telemetry.TensorBoardWriter(tmp_path) as training:
            training.rewind(10)
            _write(training, 20)
    assert sorted(_in_files(tmp_path / "validation")) == sorted(
        [(10, "loss"), (20, "loss"), (30, "loss"), (20, "loss")]
    )
    assert 30 in _as_tensorboard_reads(tmp_path)["validation/loss"]


def test_rewind_of_event_files_does_not_change_another_run_in_a_subdirectory(tmp_path):
    for folder in ("nested", "other_run"):
        _write(telemetry.TensorBoardWriter(tmp_path / folder), 10, 20)
    (tmp_path / "other_run" / "params.yaml").write_text("")
    telemetry.TensorBoardWriter(tmp_path).rewind(10)
    left = [_in_files(tmp_path / folder / "validation") for folder in ("nested", "other_run")]
    assert [len(events) for events in left] == [1, 2]


IMAGE = np.arange(24, dtype=np.uint8).reshape([2, 4, 3])
HISTOGRAM = telemetry.Histogram(edges=np.array([-1.0, 0.0, 2.0]), counts=np.array([3.0, 4.0]))


def _accumulated(directory):
    return event_accumulator.EventAccumulator(str(directory)).Reload()


def test_image_and_histogram_summaries_have_the_formats_of_tensorflow(tmp_path):
    with tf.summary.create_file_writer(str(tmp_path / "theirs")).as_default():
        tf.summary.image("i", IMAGE[None], step=7)
        tf.summary.histogram("h", [1.0, 2.0], step=7)
    record = telemetry.Record(
        step=7, split="train", values={}, images={"i": IMAGE}, histograms={"h": HISTOGRAM}
    )
    with telemetry.TensorBoardWriter(tmp_path / "ours") as writer:
        writer.write(record)
    ours, theirs = _accumulated(tmp_path / "ours" / "train"), _accumulated(tmp_path / "theirs")
    for tag in ("i", "h"):
        assert ours.SummaryMetadata(tag) == theirs.SummaryMetadata(tag)
        [my_event], [other_event] = ours.Tensors(tag), theirs.Tensors(tag)
        assert my_event.step == other_event.step == 7
        assert my_event.tensor_proto.dtype == other_event.tensor_proto.dtype
    width, height, png = tf.make_ndarray(ours.Tensors("i")[0].tensor_proto)
    assert (width, height) == (b"4", b"2")
    np.testing.assert_array_equal(tf.io.decode_png(png), IMAGE)
    buckets = tf.make_ndarray(ours.Tensors("h")[0].tensor_proto).tolist()
    assert buckets == [[-1, 0, 3], [0, 2, 4]]
    for tag, plugin in (("i", image_metadata), ("h", histogram_metadata)):
        data = ours.SummaryMetadata(tag).plugin_data
        assert data.plugin_name == plugin.PLUGIN_NAME
        plugin.parse_plugin_metadata(data.content)
