import numpy as np
import tensorflow as tf
from tensorboard import context
from tensorboard.backend.event_processing import (
    data_provider,
    plugin_event_accumulator,
    plugin_event_multiplexer,
)

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


def _write(writer, *steps, split="validation"):
    for step in steps:
        writer.write(telemetry.Record(step=step, split=split, values={"loss": float(step)}))
    writer.flush()


def _in_files(directory):
    paths = sorted(directory.glob("events*"))
    events = (e for path in paths for e in tf.compat.v1.train.summary_iterator(str(path)))
    return [(e.step, v.tag) for e in events for v in e.summary.value]


def _as_tensorboard_reads(directory):
    """The steps of each tag in each folder, from the provider behind TensorBoard's pages."""
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


def test_steps_that_come_again_are_read_once(tmp_path):
    killed = telemetry.TensorBoardWriter(tmp_path)
    _write(killed, 10, 20, 30)
    with telemetry.TensorBoardWriter(tmp_path) as writer:
        writer.rewind(20)
        assert _in_files(tmp_path / "validation") == [(10, "loss"), (20, "loss")]
        # That of an evaluation that is repeated.
        _write(writer, 20, 30)
    assert [step for step, _ in _in_files(tmp_path / "validation")] == [10, 20, 30]
    assert _as_tensorboard_reads(tmp_path) == {"validation/loss": [10, 20, 30]}


def test_tensorboard_that_has_read_them_forgets_the_steps_that_come_again(tmp_path):
    read = plugin_event_accumulator.EventAccumulator(str(tmp_path / "validation"))
    _write(telemetry.TensorBoardWriter(tmp_path), 10, 20, 30)
    assert [e.step for e in read.Reload().Tensors("loss")] == [10, 20, 30]
    with telemetry.TensorBoardWriter(tmp_path) as writer:
        writer.rewind(20)
        _write(writer, 30)
    assert [e.step for e in read.Reload().Tensors("loss")] == [10, 20, 30]


def test_training_that_goes_back_in_the_same_process_is_read_once(tmp_path):
    with telemetry.TensorBoardWriter(tmp_path) as writer:
        _write(writer, 10, 20, 30)
        writer.rewind(10)
        _write(writer, 20, 30)
    assert _as_tensorboard_reads(tmp_path) == {"validation/loss": [10, 20, 30]}
    # A writer that was closed opens another file, and may cut off its first one.
    writer.rewind(20)
    with writer:
        _write(writer, 30)
    assert _as_tensorboard_reads(tmp_path) == {"validation/loss": [10, 20, 30]}


def test_summary_of_the_step_after_the_checkpoint_comes_again(tmp_path):
    # Inside of a step the number of the step before is written.
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


def test_training_and_a_job_that_evaluates_beside_it_leave_each_other_alone(tmp_path):
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


def test_event_that_a_kill_cut_off_is_passed_over(tmp_path):
    _write(telemetry.TensorBoardWriter(tmp_path), 10, 20)
    [path] = (tmp_path / "validation").glob("events*")
    path.write_bytes(path.read_bytes()[:-3])
    with telemetry.TensorBoardWriter(tmp_path) as writer:
        writer.rewind(10)
        _write(writer, 20)
    assert _as_tensorboard_reads(tmp_path) == {"validation/loss": [10, 20]}


def test_run_in_a_folder_below_is_left_alone(tmp_path):
    for folder in ("nested", "other_run"):
        _write(telemetry.TensorBoardWriter(tmp_path / folder), 10, 20)
    (tmp_path / "other_run" / "params.yaml").write_text("")
    telemetry.TensorBoardWriter(tmp_path).rewind(10)
    left = [_in_files(tmp_path / folder / "validation") for folder in ("nested", "other_run")]
    assert [len(events) for events in left] == [1, 2]
