import re

import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import tf_example_builder
from official_lite.data import data_service, input_errors


@pytest.fixture(autouse=True)
def nothing_read():
    input_errors.forget()


@pytest.fixture
def write_records():
    def write(path, *features):
        with tf.io.TFRecordWriter(str(path)) as writer:
            example = tf_example_builder.TfExampleBuilder()
            for name in features:
                example.add_ints_feature(name, 1)
            writer.write(example.serialized_example)
        return str(path)

    return write


def failed(run):
    """Return the TensorFlow error that `run` raises."""
    with pytest.raises(tf.errors.OpError) as caught:
        run()
    return caught.value


def explanation(error, **arguments):
    with pytest.raises(errors.DataError) as caught:
        input_errors.raise_if_of_data(error, tf.Variable(7), **arguments)
    assert caught.value.__cause__ is error
    return str(caught.value)


def draw_in_graph(dataset):
    iterator = iter(dataset)
    tf.function(lambda: next(iterator))()


@pytest.mark.parametrize("draw", [draw_in_graph, list], ids=["graph", "eager"])
def test_generator_error_is_reported_with_its_source_line(draw):
    def rows():
        yield 1
        raise OSError("no answer")

    dataset = tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec([], tf.int32))
    text = explanation(failed(lambda: draw(dataset.batch(2))))
    assert "The training data can't be used around step 7: OSError: no answer (" in text
    assert re.search(r"test_input_errors\.py:\d+, in `rows`\)", text)


@pytest.mark.parametrize(
    "run",
    [
        lambda: tf.nn.sparse_softmax_cross_entropy_with_logits([5], [[0.0, 1.0]]),
        lambda: tf.gather(tf.zeros([3, 2]), tf.constant([9])),
    ],
)
def test_out_of_range_label_or_index_is_reported_as_a_data_error(run):
    for call in (run, tf.function(run)):
        assert "a label or an index in a batch is out of range" in explanation(failed(call))


def test_text_feature_where_a_number_is_needed_is_reported_as_a_data_error():
    step = tf.function(lambda label: tf.cast(label, tf.float32))
    text = explanation(failed(lambda: step(tf.constant("cat"))))
    assert "a feature or label is text, but a number is needed" in text
    assert "StringLookup" in text


def test_examples_of_different_shapes_in_a_batch_are_reported_with_a_remedy():
    rows = tf.data.Dataset.range(1, 3).map(lambda size: tf.zeros([size]))
    text = explanation(failed(lambda: draw_in_graph(rows.batch(2))))
    assert "Shapes are: [tensor]: [2], [batch]: [1]" in text
    assert text.endswith("Use `padded_batch`, or give all examples the same shape.")


def decoding(dataset, feature):
    wanted = {feature: tf.io.FixedLenFeature((), tf.int64)}
    return dataset.map(lambda record: tf.io.parse_single_example(record, wanted))


def test_missing_feature_is_named_in_a_one_line_error(write_records, tmp_path):
    path = write_records(tmp_path / "train", "label")
    error = failed(lambda: list(decoding(tf.data.TFRecordDataset(path), "lable")))
    text = explanation(error, split="eval")
    assert text.startswith("The eval data can't be used around step 7: ")
    assert "Feature: lable (data type: int64) is required" in text
    assert "{{" not in text
    assert "\n" not in text


@pytest.mark.parametrize("example", [{"label": 1}, ({"label": 1}, 2)])
def test_error_about_a_key_missing_from_the_examples_suggests_the_nearest_key(example):
    def parse(row, *_):
        return row["lable"]

    dataset = tf.data.Dataset.from_tensors(example)
    with (
        pytest.raises(KeyError) as caught,
        input_errors.naming_the_keys(parse, dataset.element_spec),
    ):
        dataset.map(parse)
    assert caught.value.args == (
        "The examples passed to `parse` have no key 'lable'. Did you mean `label`?",
    )


def test_key_error_unrelated_to_the_examples_is_unchanged():
    def parse(row):
        return {"one": row}["two"]

    dataset = tf.data.Dataset.range(3)
    with (
        pytest.raises(KeyError) as caught,
        input_errors.naming_the_keys(parse, dataset.element_spec),
    ):
        dataset.map(parse)
    assert "have no key" not in str(caught.value)


def test_model_error_is_not_reported_as_a_data_error():
    error = failed(lambda: tf.linalg.matmul(tf.zeros([2, 3]), tf.zeros([2, 3])))
    input_errors.raise_if_of_data(error, None)


def test_dispatcher_that_lost_its_state_raises_a_cluster_error():
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    worker = service.WorkerServer(
        service.WorkerConfig(dispatcher.target.split("://")[1], heartbeat_interval_ms=10)
    )
    dataset = tf.data.Dataset.range(10).repeat()
    served = data_service.distribute(
        dataset, data_service.DataServiceOptions(address=dispatcher.target)
    )
    elements = iter(served)
    draw = tf.function(lambda: next(elements))
    draw()
    dispatcher.stop()
    port = int(dispatcher.target.rpartition(":")[2])
    restarted = service.DispatchServer(service.DispatcherConfig(port=port))

    def draw_on() -> None:
        while True:
            draw()

    error = failed(draw_on)
    with pytest.raises(errors.ClusterError, match="--work_dir"):
        input_errors.raise_if_of_data(error, tf.Variable(7))
    worker.stop()
    restarted.stop()


@pytest.fixture
def write_file(tmp_path):
    def write_file(name, count=3, length=None, options=None):
        path = tmp_path / name
        with tf.io.TFRecordWriter(str(path), options) as writer:
            for _ in range(count):
                writer.write(b"0123456789")
        path.write_bytes(path.read_bytes()[:length])
        return str(path)

    return write_file


def test_search_for_damaged_files_begins_with_the_most_recently_read_files(write_file):
    for names in (("a", "b"), ("c", "d")):
        files = [write_file(names[0]), write_file(names[1], length=40)]
        input_errors.remember(files, tf.data.TFRecordDataset)
        assert f"{files[1]}` can't be read: truncated record at 26" in input_errors.find_damage()


def test_error_for_a_csv_file_read_as_tfrecords_suggests_the_source_field(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n" + "1,2\n" * 9)
    input_errors.remember([str(tmp_path / "x.csv")], tf.data.TFRecordDataset)
    assert input_errors.find_damage().endswith("for example, CSV, set `source`.")


def test_search_for_damaged_files_stops_at_its_time_limit(write_file, monkeypatch, caplog):
    monkeypatch.setattr(input_errors, "_MAX_SECONDS", -1.0)
    input_errors.remember([write_file("a"), write_file("b", length=40)], tf.data.TFRecordDataset)
    assert input_errors.find_damage() is None
    assert "Stopped searching for a damaged file" in caplog.text


def test_files_without_any_record_are_refused(write_file):
    files = [write_file("a", count=0), write_file("b")]
    input_errors.require_records(files, tf.data.TFRecordDataset, "*")
    with pytest.raises(errors.DataError, match=r"0 examples matched '\*': .*\(1 in all\) is empty"):
        input_errors.require_records(files[:1], tf.data.TFRecordDataset, "*")


def test_error_about_an_unreadable_gzip_file_suggests_checking_its_compression(write_file):
    with pytest.raises(errors.DataError, match="compression"):
        input_errors.require_records(
            [write_file("a", options="GZIP")], tf.data.TFRecordDataset, "*"
        )
