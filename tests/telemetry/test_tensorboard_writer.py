import numpy as np
import tensorflow as tf

from official_lite import telemetry


def read(directory):
    [path] = directory.glob("events*")
    events = tf.compat.v1.train.summary_iterator(str(path))
    return [
        (e.step, v.tag, float(tf.make_ndarray(v.tensor))) for e in events for v in e.summary.value
    ]


def test_splits_and_nested_names_are_folders(tmp_path):
    with telemetry.TensorBoardWriter(tmp_path) as writer:
        writer.write(telemetry.Record(step=2, split="train", values={"loss": 0.5}))
        values = {"accuracy": 0.75, "noisy": {"accuracy": 0.25}}
        writer.write(telemetry.Record(step=3, split="validation", values=values))
    assert read(tmp_path / "train") == [(2, "loss", 0.5)]
    assert read(tmp_path / "validation") == [(3, "accuracy", 0.75)]
    assert read(tmp_path / "validation" / "noisy") == [(3, "accuracy", 0.25)]


def test_scalars_are_what_tensorflow_writes(tmp_path):
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


def test_nothing_written_leaves_nothing_behind(tmp_path):
    with telemetry.TensorBoardWriter(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_value_that_is_no_scalar_is_left_out(tmp_path):
    with telemetry.TensorBoardWriter(tmp_path) as writer:
        writer.write_values({"matrix": np.zeros([2, 2]), "loss": 0.5}, step=1)
    assert read(tmp_path) == [(1, "loss", 0.5)]


def test_no_directory_writes_nothing():
    with telemetry.TensorBoardWriter(None) as writer:
        writer.write(telemetry.Record(step=1, split="train", values={"loss": 0.5}))


def test_images_and_histograms_stand_beside_the_scalars_of_their_split(tmp_path):
    histogram = telemetry.Histogram(edges=np.array([0.0, 1.0]), counts=np.array([2.0]))
    image = np.zeros([2, 2, 3], np.uint8)
    with telemetry.TensorBoardWriter(tmp_path) as writer:
        writer.write(
            telemetry.Record(
                step=2, split="train", values={}, images={"i": image}, histograms={"h": histogram}
            )
        )
    [path] = (tmp_path / "train").glob("events*")
    events = tf.compat.v1.train.summary_iterator(str(path))
    assert [(e.step, v.tag) for e in events for v in e.summary.value] == [(2, "i"), (2, "h")]
