import pytest
import tensorflow as tf

from official_lite import orbit, telemetry
from official_lite.orbit import reports


def test_summaries_and_records_hold_the_same(tmp_path, make_trainer, make_controller):
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
def test_summaries_inside_the_step_come_at_their_interval(
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
    [path] = tmp_path.glob("events*")
    events = tf.compat.v1.train.summary_iterator(str(path))
    tags = [(event.step, value.tag) for event in events for value in event.summary.value]
    assert [step for step, tag in tags if tag == "weight"] == [0, 7, 14]


def test_evaluations_have_event_files_of_their_own_only_where_they_are_named(tmp_path):
    step = tf.Variable(3, dtype=tf.int64)
    shared = reports.Summaries(step, directory=tmp_path)
    assert shared.eval_manager is shared.manager
    apart = reports.Summaries(step, directory=tmp_path, eval_directory=tmp_path / "validation")
    assert apart.eval_manager is not apart.manager


def test_steps_that_write_are_events_of_their_own():
    step = tf.Variable(0, dtype=tf.int64)
    assert reports.Summaries(step, interval=4).next_step(5) == 8
    assert reports.Summaries(step).next_step(5) == float("inf")
