import pytest
import tensorflow as tf

from official_lite import orbit, telemetry
from official_lite.orbit import reports, utils


class Recorder(utils.SummaryManagerInterface):
    def __init__(self):
        self.written, self.flushes = [], 0

    def flush(self):
        self.flushes += 1

    def summary_writer(self, relative_path=""):
        return tf.summary.create_noop_writer()

    def write_summaries(self, summary_dict):
        self.written.append(summary_dict)


@pytest.fixture
def storage():
    return telemetry.EventStorage()


@pytest.fixture
def manager():
    return Recorder()


@pytest.fixture
def make_reports(storage, manager):
    return lambda *writers: reports.Reports(storage, writers, manager, Recorder())


def test_report_training_writes_summaries_immediately_but_defers_records_until_write(
    recording_writer, make_reports, manager
):
    outlet = make_reports(recording_writer)
    outlet.report_training({"loss": 0.5}, step=3, total_steps=9)
    assert manager.written == [{"loss": 0.5}]
    assert manager.flushes == 1
    assert not recording_writer.records
    outlet.write()
    expected = telemetry.Record(step=3, split="train", values={"loss": 0.5}, total_steps=9)
    assert recording_writer.records == [expected]


def test_trainer_outputs_take_precedence_over_values_in_the_event_storage(
    recording_writer, make_reports, storage
):
    outlet = make_reports(recording_writer)
    for name in ("loss", "norm"):
        storage.put_scalar(name, 7.0)
    outlet.report_training({"loss": 0.5}, step=3, total_steps=9)
    assert outlet.train_logs == {"loss": 0.5, "norm": 7.0}


def test_report_without_values_writes_nothing(recording_writer, make_reports):
    outlet = make_reports(recording_writer)
    outlet.report_training({}, step=3, total_steps=9)
    outlet.report_what_is_left(step=3)
    outlet.write()
    assert recording_writer.records == []


def test_writers_receive_all_records_even_if_another_writer_fails(recording_writer, make_reports):
    class Full(telemetry.Writer):
        def write(self, record):
            if record.split == "train":
                raise OSError("disk full")

    outlet = make_reports(Full(), recording_writer)
    outlet.report_training({"loss": 0.5}, step=3, total_steps=9)
    outlet.report_evaluation({"loss": 0.4}, step=3)
    with pytest.raises(OSError, match="disk full"):
        outlet.write()
    outlet.write()
    assert [record.split for record in recording_writer.records] == ["train", "validation"]


def test_nested_tensors_are_converted_to_numbers_in_a_new_dictionary():
    output = {"a": tf.constant(1.0), "b": {"c": 2}}
    converted = reports.as_numpy(output)
    assert converted == {"a": 1.0, "b": {"c": 2}}
    assert not tf.is_tensor(converted["a"])
    assert converted is not output


def test_training_and_evaluation_both_write_summaries_and_records(
    tmp_path, make_trainer, make_controller
):
    trainer = make_trainer()
    with telemetry.JsonLinesWriter(tmp_path / "metrics.json") as writer:
        make_controller(
            trainer,
            summary_dir=tmp_path / "train",
            eval_summary_dir=tmp_path / "validation",
            writers=[writer],
        ).train_and_evaluate(4)
    assert list((tmp_path / "train").glob("events*"))
    assert list((tmp_path / "validation").glob("events*"))
    assert (tmp_path / "metrics.json").read_text().count("\n") == 2


@pytest.mark.parametrize("tpu_programs", [True, False])
def test_summaries_inside_the_train_step_are_written_at_the_summary_interval(
    tmp_path, make_trainer, make_controller, tpu_programs
):
    class Summarizing(make_trainer):
        def train_step(self, iterator):
            tf.summary.scalar("weight", self.weight)
            super().train_step(iterator)

    options = orbit.StandardTrainerOptions(use_tpu_summary_optimization=tpu_programs)
    make_controller(
        Summarizing(options=options), summary_dir=tmp_path, summary_interval=7, steps_per_loop=10
    ).train(20)
    assert _summarized_steps(tmp_path) == [0, 7, 14]


def _summarized_steps(directory):
    [path] = directory.glob("events*")
    events = tf.compat.v1.train.summary_iterator(str(path))
    tags = [(event.step, value.tag) for event in events for value in event.summary.value]
    return [step for step, tag in tags if tag == "weight"]


def test_summaries_have_the_step_of_their_own_controller_if_a_process_has_two_controllers(
    tmp_path, make_trainer, make_controller
):
    class Summarizing(make_trainer):
        def train_step(self, iterator):
            tf.summary.scalar("weight", self.weight)
            super().train_step(iterator)

        def eval_end(self):
            tf.summary.scalar("weight", self.weight)
            return super().eval_end()

    first = make_controller(
        Summarizing(),
        summary_dir=tmp_path / "train",
        eval_summary_dir=tmp_path / "validation",
        summary_interval=7,
        steps_per_loop=10,
    )
    make_controller(make_trainer())
    first.train_and_evaluate(20)
    assert _summarized_steps(tmp_path / "train") == [0, 7, 14]
    assert _summarized_steps(tmp_path / "validation") == [20]


def test_evaluations_share_the_event_files_unless_eval_directory_is_set(tmp_path):
    step = tf.Variable(3, dtype=tf.int64)
    shared = reports.Summaries(step, directory=tmp_path)
    assert shared.eval_manager is shared.manager
    apart = reports.Summaries(step, directory=tmp_path, eval_directory=tmp_path / "validation")
    assert apart.eval_manager is not apart.manager


def test_next_summary_step_is_a_multiple_of_the_interval():
    step = tf.Variable(0, dtype=tf.int64)
    assert reports.Summaries(step, interval=4).next_step(5) == 8
    assert reports.Summaries(step).next_step(5) == float("inf")
