import numpy as np
import tensorflow as tf
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.plugins.histogram import metadata as histogram_metadata
from tensorboard.plugins.image import metadata as image_metadata

from official_lite import telemetry

IMAGE = np.arange(24, dtype=np.uint8).reshape([2, 4, 3])
HISTOGRAM = telemetry.Histogram(edges=np.array([-1.0, 0.0, 2.0]), counts=np.array([3.0, 4.0]))


def read(directory):
    accumulator = event_accumulator.EventAccumulator(str(directory))
    accumulator.Reload()
    return accumulator


def write(directory, media):
    with tf.summary.create_file_writer(str(directory)).as_default():
        telemetry.write_media(media, step=7)
    return read(directory)


def test_tensorboard_reads_images(tmp_path):
    found = write(tmp_path, telemetry.Events(images={"a/b": IMAGE}))
    [event] = found.Tensors("a/b")
    width, height, png = tf.make_ndarray(event.tensor_proto)
    assert (event.step, width, height) == (7, b"4", b"2")
    np.testing.assert_array_equal(tf.io.decode_png(png), IMAGE)
    plugin = found.SummaryMetadata("a/b").plugin_data
    assert plugin.plugin_name == image_metadata.PLUGIN_NAME
    image_metadata.parse_plugin_metadata(plugin.content)


def test_tensorboard_reads_histograms(tmp_path):
    found = write(tmp_path, telemetry.Events(histograms={"h": HISTOGRAM}))
    [event] = found.Tensors("h")
    assert tf.make_ndarray(event.tensor_proto).tolist() == [[-1, 0, 3], [0, 2, 4]]
    plugin = found.SummaryMetadata("h").plugin_data
    assert plugin.plugin_name == histogram_metadata.PLUGIN_NAME
    histogram_metadata.parse_plugin_metadata(plugin.content)


def test_summaries_are_those_of_tensorflow(tmp_path):
    """The same kinds of data as `tf.summary.image` and `tf.summary.histogram` write."""
    with tf.summary.create_file_writer(str(tmp_path / "theirs")).as_default():
        tf.summary.image("i", IMAGE[None], step=7)
        tf.summary.histogram("h", [1.0, 2.0], step=7)
    theirs = read(tmp_path / "theirs")
    media = telemetry.Events(images={"i": IMAGE}, histograms={"h": HISTOGRAM})
    ours = write(tmp_path / "ours", media)
    for tag in ("i", "h"):
        assert ours.SummaryMetadata(tag) == theirs.SummaryMetadata(tag)
        [my_event], [other_event] = ours.Tensors(tag), theirs.Tensors(tag)
        assert my_event.tensor_proto.dtype == other_event.tensor_proto.dtype


def test_record_has_media_too(tmp_path):
    record = telemetry.Record(step=1, split="train", values={}, images={"i": IMAGE})
    assert write(tmp_path, record).Tags()["tensors"] == ["i"]
