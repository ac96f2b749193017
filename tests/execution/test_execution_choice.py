import json

import pytest
import tensorflow as tf

from official_lite import orbit
from official_lite.core import base_trainer, train_lib
from official_lite.execution import auto, execution_record
from tests.execution.test_auto import EndlessTask
from tests.line_experiment import LineTask


def _run(params, task, model_dir, mode="train") -> train_lib.OrbitExperimentRunner:
    runner = train_lib.OrbitExperimentRunner(
        tf.distribute.get_strategy(), task, mode, params, str(model_dir)
    )
    runner.run()
    return runner


def test_resumed_run_keeps_to_the_mode_that_was_chosen(experiment, make_task, tmp_path) -> None:
    params = experiment(trainer={"train_steps": 4})
    record = {
        "execution": "xla",
        "reason": "the fastest of those tried",
        "train_steps": 4,
        "seconds_per_step": {"graph": 2e-3, "xla": 1e-3},
    }
    (tmp_path / "execution.json").write_text(json.dumps(record))
    runner = _run(params, make_task(params, EndlessTask), tmp_path)
    assert runner.trainer.execution == "xla"
    # What is written to `params.yaml` repeats the run.
    assert runner.params.runtime.execution == "xla"
    assert params.runtime.execution == "auto"


def test_mode_that_is_configured_is_taken_whatever_was_chosen(
    experiment, make_task, tmp_path
) -> None:
    (tmp_path / "execution.json").write_text("damaged")
    params = experiment(runtime={"execution": "xla"})
    runner = _run(params, make_task(params, EndlessTask), tmp_path)
    assert runner.trainer.execution == "xla"
    assert runner.execution_record is None


def test_choice_is_written_beside_the_checkpoints(experiment, make_task, tmp_path) -> None:
    params = experiment(trainer={"train_steps": 200, "steps_per_loop": 100})
    runner = _run(params, make_task(params, EndlessTask), tmp_path)
    record = json.loads((tmp_path / "execution.json").read_text())
    assert record["execution"] == runner.trainer.execution == "graph"
    assert record["train_steps"] == 200
    assert runner.trainer.global_step.numpy() == 200


def test_short_runs_leave_no_record(experiment, make_task, tmp_path) -> None:
    params = experiment()
    _run(params, make_task(params, EndlessTask), tmp_path)
    assert not (tmp_path / "execution.json").exists()


def test_mode_that_two_replicas_can_not_take_over_is_chosen_again(
    experiment, make_trainer, two_replicas, tmp_path
) -> None:
    record = execution_record.ExecutionRecord(
        execution="xla_loop",
        reason="the fastest of those tried",
        train_steps=4,
        seconds_per_step={"graph": 2e-3, "xla_loop": 1e-3},
    )
    execution_record.save(record, str(tmp_path))
    with two_replicas.scope():
        trainer = make_trainer(experiment(), task_cls=EndlessTask)
    found = auto.choose(trainer, 4, str(tmp_path), evaluates=True)
    assert found.execution == trainer.execution == "graph"


def test_mode_of_a_shorter_training_that_compared_nothing_is_chosen_again(
    experiment, make_trainer, tmp_path
) -> None:
    record = execution_record.ExecutionRecord(
        execution="xla", reason="told so", train_steps=4, seconds_per_step={"graph": 1e-3}
    )
    execution_record.save(record, str(tmp_path))
    trainer = make_trainer(experiment(), task_cls=EndlessTask)
    assert auto.choose(trainer, 4, str(tmp_path), evaluates=True).execution == "xla"
    assert auto.choose(trainer, 5, str(tmp_path), evaluates=True).execution == "graph"


@pytest.mark.sample(1)
@pytest.mark.parametrize(("evaluates", "mode"), [(True, "xla_loop"), (False, "graph")])
def test_evaluations_of_all_the_data_count(
    experiment, make_trainer, tmp_path, monkeypatch, evaluates, mode
) -> None:
    params = experiment(trainer={"validation_steps": -1, "validation_interval": 1})
    trainer = make_trainer(params, task_cls=EndlessTask)
    seconds = {"graph": 1e-3, "xla_loop": 1e-4}
    monkeypatch.setattr(auto, "_seconds_of", lambda loop, n: n * seconds[trainer.execution])
    record = auto.choose(trainer, 10**9, str(tmp_path), evaluates=evaluates)
    assert (record.execution, record.eval_execution) == ("xla_loop", mode)


def test_only_the_chief_writes_the_choice(experiment, make_trainer, tmp_path, monkeypatch) -> None:
    trainer = make_trainer(experiment(), task_cls=EndlessTask)
    extended = type(trainer.strategy.extended)
    monkeypatch.setattr(extended, "should_checkpoint", property(lambda self: False))
    record = auto.choose(trainer, 500, str(tmp_path), evaluates=False)
    assert record.seconds_per_step
    assert not (tmp_path / "execution.json").exists()


class Buffered(base_trainer.Trainer):
    """Fills a buffer when an interval begins; its step fails if the buffer is empty."""

    def __init__(self, *args, **kwargs) -> None:
        self.buffer = tf.Variable(0.0, trainable=False)
        super().__init__(*args, **kwargs)

    def train_loop_begin(self) -> None:
        super().train_loop_begin()
        self.buffer.assign_add(1.0)

    def replica_train_step(self, inputs) -> None:
        with tf.control_dependencies([tf.debugging.assert_positive(self.buffer)]):
            super().replica_train_step(inputs)


def test_modes_are_tried_in_the_state_in_which_training_begins(experiment, tmp_path) -> None:
    seen = []
    params = experiment(trainer={"train_steps": 200, "steps_per_loop": 100})
    hook = orbit.hooks.LambdaHook(
        before_train=lambda hook: hook.controller.trainer.buffer.assign_sub(0.5),
        after_step=lambda hook: seen.append(float(hook.controller.trainer.buffer)),
        every_n_steps=100,
    )
    task = EndlessTask(params.task)
    optimizer = task.create_optimizer(params.trainer.optimizer_config)
    trainer = Buffered(params, task, task.build_model(), optimizer)
    runner = train_lib.OrbitExperimentRunner(
        tf.distribute.get_strategy(),
        task,
        "train",
        params,
        str(tmp_path),
        trainer=trainer,
        hooks=[hook],
    )
    runner.run()
    assert "graph" in runner.execution_record.seconds_per_step
    # As without a choice: once for the hook, and once for each interval of 4 steps.
    assert seen == [25 - 0.5, 50 - 0.5]


class RandomTask(EndlessTask):
    """Draws numbers of which XLA makes others."""

    def build_losses(self, labels, model_outputs, aux_losses=None):
        noise = tf.random.stateless_truncated_normal(tf.shape(labels), (1, 2))
        return super().build_losses(labels + noise, model_outputs, aux_losses)


def test_no_mode_is_chosen_that_draws_other_random_numbers(experiment, make_trainer) -> None:
    record = auto.choose_execution(make_trainer(experiment(), task_cls=RandomTask), 10**9)
    assert record.execution == "graph"
    assert "other random numbers" in record.reason


class UnevenTask(LineTask):
    """Has batches of many sizes."""

    def build_inputs(self, params, input_context=None):
        data = super().build_inputs(params, input_context).unbatch().repeat()
        if not params.is_training:
            return data.take(8).batch(8)
        sizes = tf.data.Dataset.range(1, 12).repeat()
        return tf.data.Dataset.zip((sizes, data.batch(12))).map(
            lambda size, batch: (batch[0][:size], batch[1][:size])
        )


def test_many_sizes_of_batches_are_told_once_and_not_chosen(
    experiment, make_trainer, caplog
) -> None:
    trainer = make_trainer(experiment(runtime={"execution": "xla"}), task_cls=UnevenTask)
    for _ in range(2):
        trainer.train(tf.constant(11))
    told = [r.message for r in caplog.records if "different sizes" in r.message]
    assert len(told) == 1
    assert "8 different sizes" in told[0]
    trainer.execution = "graph"
    record = auto.choose_execution(trainer, 10**9)
    assert (record.execution, set(record.seconds_per_step)) == ("graph", {"graph"})
