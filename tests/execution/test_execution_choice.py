import json

import pytest
import tensorflow as tf

from official_lite.core import train_lib
from official_lite.execution import auto, execution_record
from tests.execution.test_auto import EndlessTask


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
