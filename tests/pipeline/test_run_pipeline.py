"""The order of stages and phases, and what happens when one of them fails."""

import json
import os
import signal
import sys
import threading

import keras
import mlflow
import pytest
import tensorflow as tf

from official_lite import orbit, pipeline
from official_lite.checkpoint import async_checkpoint_manager
from official_lite.common import errors, flags, preemption
from official_lite.core import preflight
from official_lite.run import run_reading
from tests import row_files, waiting


def _run(params, model_dir, mode="train", **stages):
    return pipeline.RunPipeline(params, mode, str(model_dir), stages).run()


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_each_pipeline_stage_runs_once_and_in_order_in_train_and_eval_mode(
    experiment, recorders, tmp_path, mode
) -> None:
    calls, stages = recorders
    if mode == "eval":
        _run(experiment(), tmp_path)
    _run(experiment(), tmp_path, mode, **stages)
    assert calls == ["prepare", "build", "initialize", "run", "finalize"]


def test_stage_that_returns_a_stage_name_jumps_to_the_named_stage(
    experiment, recorders, tmp_path
) -> None:
    calls, stages = recorders

    class Initialize(stages["initialize"]):
        def __call__(self, ctx):
            super().__call__(ctx)
            return "finalize"

    _run(experiment(), tmp_path, **stages | {"initialize": Initialize})
    assert calls == ["prepare", "build", "initialize", "finalize"]


@pytest.mark.parametrize("jump", ["foo", "build"])
def test_stage_that_returns_anything_but_a_later_stage_name_raises_an_error_that_lists_later_stages(
    experiment, recorders, tmp_path, jump
) -> None:
    calls, stages = recorders

    class Build(pipeline.Build):
        def __call__(self, ctx):
            return jump

    with pytest.raises(errors.UnknownNameError, match=r"`build` returned .*`initialize`.*`run`"):
        _run(experiment(), tmp_path, **stages | {"build": Build})
    assert calls == ["prepare", "finalize"]


@pytest.mark.parametrize(
    ("failing", "place", "error"),
    [
        ("prepare", "__init__", ZeroDivisionError),
        ("initialize", "__call__", ZeroDivisionError),
        ("run", "__call__", KeyboardInterrupt),
        ("finalize", "__call__", ZeroDivisionError),
        ("build", "__call__", SystemExit),
    ],
)
def test_finalize_runs_once_whichever_stage_fails(
    experiment, recorders, tmp_path, failing, place, error
) -> None:
    calls, stages = recorders

    def fail(self, ctx):
        seen.append(ctx.error)
        raise error("on purpose")

    seen = []
    stages[failing] = type("Failing", (stages[failing],), {place: fail})
    with pytest.raises(error, match="on purpose"):
        _run(experiment(), tmp_path, **stages)
    assert calls.count("finalize") == (failing != "finalize")
    assert seen == [None]
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["status"] == "failed"
    assert record["exit_reason"] == f"{error.__name__}: on purpose"


@pytest.mark.parametrize(("code", "said"), [(0, "`run` called `sys.exit`"), (3, "3")])
def test_sys_exit_in_a_stage_fails_the_run_even_with_code_zero(
    experiment, tmp_path, code, said
) -> None:
    class Run(pipeline.Run):
        def train(self, ctx):
            sys.exit(code)

    with pytest.raises(SystemExit, match=said) as caught:
        _run(experiment(), tmp_path, run=Run)
    # `sys.exit` with a string prints the string and exits with code 1.
    assert caught.value.code
    assert said in json.loads((tmp_path / "run.json").read_text())["exit_reason"]


class _FailsAtTheEnd(pipeline.Run):
    def train(self, ctx):
        super().train(ctx)
        raise ZeroDivisionError("at the end")


def test_mlflow_run_of_a_failed_training_stays_failed_when_an_evaluation_adds_its_results(
    experiment, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    params = experiment(trainer={"writers": ["mlflow"]})

    def mlflow_run():
        return mlflow.MlflowClient().get_run((tmp_path / "run" / "mlflow_run_id").read_text())

    with pytest.raises(ZeroDivisionError, match="at the end"):
        _run(params, tmp_path / "run", run=_FailsAtTheEnd)
    assert mlflow_run().info.status == "FAILED"
    _run(params, tmp_path / "run", mode="eval")
    assert mlflow_run().info.status == "FAILED"
    assert "validation/validation_loss" in mlflow_run().data.metrics


def test_step_of_a_resumed_run_that_fails_before_restoring_is_read_from_its_checkpoint(
    experiment, tmp_path
) -> None:
    class Initialize(pipeline.Initialize):
        def __call__(self, ctx):
            raise ZeroDivisionError("before the restore")

    _run(experiment(), tmp_path)
    longer = experiment(trainer={"train_steps": 16})
    with pytest.raises(ZeroDivisionError):
        _run(longer, tmp_path, initialize=Initialize)
    run = run_reading.read_run(str(tmp_path))
    assert (run.status, run.step) == ("failed", 8)


def test_error_in_finalize_is_logged_and_the_run_error_is_raised(
    experiment, log_of, tmp_path
) -> None:
    class Run(pipeline.Run):
        def train(self, ctx):
            raise ZeroDivisionError("the first one")

    class Finalize(pipeline.Finalize):
        def __call__(self, ctx):
            raise RuntimeError(f"after {ctx.error}")

    with pytest.raises(ZeroDivisionError, match="the first one"):
        _run(experiment(), tmp_path, run=Run, finalize=Finalize)
    assert "RuntimeError: after the first one" in log_of()
    assert log_of().splitlines()[-1].endswith("Experiment finished: status=failed, step=0.")


def test_class_and_file_of_each_stage_are_logged(experiment, log_of, tmp_path) -> None:
    class Mine(pipeline.Prepare):
        pass

    _run(experiment(), tmp_path, prepare=Mine)
    lines = [line for line in log_of().splitlines() if "] stage " in line]
    assert len(lines) == 5
    assert "Mine" in lines[0]
    assert lines[0].endswith(f"({__file__})")
    assert "stage run: Run (" in lines[3]


def test_stages_after_build_run_in_the_strategy_scope(experiment, tmp_path) -> None:
    def recorder(base):
        class Recorder(base):
            def __call__(self, ctx):
                replicas.append(tf.distribute.get_strategy().num_replicas_in_sync)
                return super().__call__(ctx)

        return Recorder

    replicas = []
    stages = {"prepare": pipeline.Prepare, "initialize": pipeline.Initialize, "run": pipeline.Run}
    stages |= {"finalize": pipeline.Finalize}
    devices = {"distribution_strategy": "mirrored", "devices": ["CPU:0", "CPU:1"]}
    stages = {name: recorder(base) for name, base in stages.items()}
    _run(experiment(runtime=devices), tmp_path, **stages)
    assert replicas == [1, 2, 2, 2]


def test_exit_stack_of_the_context_is_closed_after_finalize(
    experiment, recorders, tmp_path
) -> None:
    calls, stages = recorders

    class Prepare(pipeline.Prepare):
        def __call__(self, ctx):
            ctx.exit_stack.callback(calls.append, "closed")

    _run(experiment(), tmp_path, **stages | {"prepare": Prepare})
    assert calls[-2:] == ["finalize", "closed"]


class _OnlyTrains(pipeline.Run):
    """A run stage that trains in every mode."""

    def __call__(self, ctx):
        while ctx.global_step < ctx.params.trainer.train_steps:
            ctx.controller.train(ctx.global_step + 4)


class _EvaluatesAsWell(pipeline.Run):
    def __call__(self, ctx):
        self.evaluate(ctx)


@pytest.mark.parametrize(("stage", "is_told"), [(_OnlyTrains, True), (_EvaluatesAsWell, False)])
def test_eval_mode_logs_a_warning_if_the_run_stage_does_not_evaluate(
    experiment, log_of, tmp_path, stage, is_told
) -> None:
    _run(experiment(), tmp_path, run=_OnlyTrains)
    assert "evaluated nothing" not in log_of()
    _run(experiment(), tmp_path, "eval", run=stage)
    log = (tmp_path / "log.eval.txt").read_text()
    told = "The mode `eval` evaluated nothing, because the stage run: _OnlyTrains"
    assert (told in log) == is_told
    assert (tmp_path / "metrics.eval.json").exists() != is_told


def test_error_for_a_run_stage_that_trains_in_eval_mode_explains_the_missing_trainer(
    experiment, tmp_path
) -> None:
    _run(experiment(), tmp_path)
    longer = experiment(trainer={"train_steps": 12})
    with pytest.raises(errors.ConfigValueError, match="only training modes have a trainer"):
        _run(longer, tmp_path, "eval", run=_OnlyTrains)


TWO = [
    {"name": "first", "mode": "train", "overrides": {"trainer.train_steps": 4}},
    {"name": "second", "mode": "train_and_eval", "init_from": "previous"},
]


def _global_step(model_dir) -> int:
    return json.loads((model_dir / "run.json").read_text())["global_step"]


def test_continuous_eval_mode_evaluates_every_checkpoint(experiment, records, tmp_path) -> None:
    params = experiment(trainer={"train_steps": 12})
    _run(params, tmp_path)
    _run(params, tmp_path, "continuous_eval")
    assert records(tmp_path, "validation", "metrics.continuous_eval.json") == [4, 8, 12]


def _describe_cluster(monkeypatch, task_type) -> None:
    workers = ["127.0.0.1:1", "127.0.0.1:2"]
    config = {"cluster": {"worker": workers}, "task": {"type": task_type, "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))


def test_continuous_eval_of_an_evaluator_in_tf_config_stops_on_a_signal(
    experiment, monkeypatch, tmp_path
) -> None:
    params = experiment(trainer={"continuous_eval_timeout": 60})
    _run(params, tmp_path)
    _describe_cluster(monkeypatch, "evaluator")

    class Run(pipeline.Run):
        def evaluate(self, ctx):
            os.kill(os.getpid(), signal.SIGTERM)
            waiting.wait_for(preemption.requested)
            return super().evaluate(ctx)

    with pytest.raises(errors.PreemptedError):
        _run(params, tmp_path, "continuous_eval", run=Run)


def test_error_of_a_process_that_trains_alone_is_not_reported_as_the_loss_of_a_worker(
    experiment, monkeypatch, tmp_path
) -> None:
    class Run(pipeline.Run):
        def train(self, ctx):
            raise tf.errors.InvalidArgumentError(None, None, "on purpose")

    _describe_cluster(monkeypatch, "worker")
    with pytest.raises(tf.errors.InvalidArgumentError, match="on purpose"):
        _run(experiment(), tmp_path, run=Run)


class _DifferentWorkers(tf.distribute.MultiWorkerMirroredStrategy):
    """The strategy of one worker, which gets other messages than its own from a second one."""

    def gather(self, value, axis):
        return tf.concat([value, value + 1], axis)


def test_workers_with_different_seeds_raise_before_they_build_their_task(
    experiment, monkeypatch, tmp_path
) -> None:
    class Build(pipeline.Build):
        def make_strategy(self, ctx):
            strategy = _DifferentWorkers()
            _describe_cluster(monkeypatch, "worker")
            return strategy

        def make_task(self, ctx):
            raise AssertionError("the workers must be compared first")

    with pytest.raises(errors.ConfigValueError, match="The seed of worker 0 and of worker 1"):
        _run(experiment(), tmp_path, build=Build)


def test_workers_compare_training_data_only_after_a_custom_build_stage_that_may_download_them(
    experiment, monkeypatch, tmp_path
) -> None:
    class Build(pipeline.Build):
        pass

    compares_data = []

    def compare(params, strategy, mode):
        compares_data.append(flags.Mode(mode).trains)

    monkeypatch.setattr(preflight, "require_agreement", compare)
    _run(experiment(), tmp_path / "default")
    _run(experiment(), tmp_path / "custom", build=Build)
    assert compares_data == [True, True, False, True]


def test_signal_at_the_end_of_a_phase_stops_the_run_before_the_next_phase_trains(
    experiment, tmp_path
) -> None:
    class Finalize(pipeline.Finalize):
        def __call__(self, ctx):
            if ctx.phase == "first":
                os.kill(os.getpid(), signal.SIGTERM)
                waiting.wait_for(preemption.requested)

    with pytest.raises(errors.PreemptedError) as caught:
        _run(experiment(phases=TWO), tmp_path, finalize=Finalize)
    assert caught.value.exit_code == errors.ExitCode.PREEMPTED
    assert _global_step(tmp_path / "first") == 4
    assert not list((tmp_path / "second").rglob("*.index"))
    assert not preemption.is_caught()


def test_phases_run_in_order_and_start_from_the_weights_of_the_previous_phase(
    experiment, records, log_of, tmp_path
) -> None:
    class Initialize(pipeline.Initialize):
        def __call__(self, ctx):
            super().__call__(ctx)
            weights.append(ctx.model.get_weights()[0].tolist())
            names.append(ctx.model.name)

    weights, names = [], []
    keras.utils.clear_session()
    _, logs = _run(experiment(phases=TWO), tmp_path, initialize=Initialize)
    assert _global_step(tmp_path / "first") == 4
    assert _global_step(tmp_path / "second") == 8
    assert records(tmp_path / "second", "validation") == [4, 8]
    assert not (tmp_path / "run.json").exists()
    assert "validation_loss" in logs
    assert f"warm start from {tmp_path / 'first'}" in log_of(tmp_path / "second")
    assert weights[0] != weights[1]
    assert names[0] == names[1], "Keras must restart the numbering of its names in each phase"


@pytest.mark.slow
def test_later_phases_can_access_the_models_of_earlier_phases(experiment, tmp_path) -> None:
    class Run(pipeline.Run):
        def __call__(self, ctx):
            super().__call__(ctx)
            counts.append([phase.model.count_params() for phase in ctx.phases.values()])
            names.append((ctx.phase, ctx.model.name, [*ctx.logs]))

    counts, names = [], []
    phases = [{"name": name, "mode": "train_and_post_eval"} for name in "abc"]
    _run(experiment(phases=phases), tmp_path, run=Run)
    assert counts == [[], [3], [3, 3]]
    assert [name for name, *_ in names] == ["a", "b", "c"]
    # The numbering of Keras names restarts in each phase.
    assert names[1][1:] == names[2][1:]


@pytest.mark.slow
def test_finished_phase_is_skipped_and_an_unfinished_phase_resumes(
    experiment, recorders, log_of, tmp_path
) -> None:
    calls, stages = recorders

    class Run(stages["run"]):
        def train(self, ctx):
            if ctx.phase == "second":
                raise ZeroDivisionError
            return super().train(ctx)

    with pytest.raises(ZeroDivisionError):
        _run(experiment(phases=[*TWO, {"name": "third"}]), tmp_path, run=Run)
    assert not (tmp_path / "third").exists()
    calls.clear()
    _run(experiment(phases=TWO), tmp_path, **stages)
    assert calls == list(pipeline.STAGES)
    calls.clear()
    model, logs = _run(experiment(phases=TWO), tmp_path, **stages)
    assert (model, logs, calls) == (None, {}, [])


class StopsAtStepFour(orbit.Hook):
    every_n_steps = 0

    def after_eval(self, logs):
        self.controller.request_stop("target reached")


def _early_stopping(patience):
    # No loss is below the baseline, so `patience` evaluations end the phase.
    hook = {"name": "early_stopping", "metric": "validation_loss", "baseline": -1.0}
    return [hook | {"patience": patience}]


@pytest.mark.parametrize("hooks", [_early_stopping(1), [f"{__name__}:StopsAtStepFour"]])
def test_phase_that_was_stopped_early_is_skipped_until_its_config_changes(
    hooks, experiment, recorders, caplog, tmp_path
) -> None:
    calls, stages = recorders

    def start(hooks, **stages):
        first = {"name": "first", "overrides": {"trainer.hooks": hooks}}
        phases = [first, {"name": "second", "init_from": "previous"}]
        _run(experiment(phases=phases), tmp_path, "train_and_eval", **stages)

    start(hooks)
    assert [_global_step(tmp_path / name) for name in ("first", "second")] == [4, 8]
    (tmp_path / "second" / "ckpt-8.index").unlink()
    start(hooks, **stages)
    assert calls == list(pipeline.STAGES)
    assert "has been trained further" not in caplog.text
    start(_early_stopping(2))
    assert _global_step(tmp_path / "first") == 8


def test_finished_phase_with_train_epochs_of_unknown_length_is_skipped(
    experiment, recorders, tmp_path
) -> None:
    calls, stages = recorders
    phases = [{"name": "only", "overrides": {"trainer.train_epochs": 1.0}}]
    _run(experiment(phases=phases), tmp_path, **stages)
    assert _global_step(tmp_path / "only") == 4
    calls.clear()
    _run(experiment(phases=phases), tmp_path, **stages)
    assert calls == []
    longer = [{"name": "only", "overrides": {"trainer.train_epochs": 2.0}}]
    _run(experiment(phases=longer), tmp_path, **stages)
    assert _global_step(tmp_path / "only") == 8


@pytest.mark.slow
def test_phases_share_one_strategy_object_when_there_are_two_replicas(experiment, tmp_path) -> None:
    class Build(pipeline.Build):
        def make_strategy(self, ctx):
            strategy = super().make_strategy(ctx)
            seen.append((strategy, ctx.engine))
            return strategy

    seen = []
    devices = {"distribution_strategy": "mirrored", "devices": ["CPU:0", "CPU:1"]}
    _run(experiment(phases=TWO, runtime=devices), tmp_path, build=Build)
    assert [engine for _, engine in seen] == [pipeline.Engine.LOCAL_CLUSTER] * 2
    assert seen[0][0] is seen[1][0]


def test_phases_with_different_strategies_raise_before_any_phase_runs(experiment, tmp_path) -> None:
    other = {"name": "other", "overrides": {"runtime.distribution_strategy": "one_device"}}
    with pytest.raises(errors.ConfigValueError, match=r"runtime.distribution_strategy.*one_device"):
        _run(experiment(phases=[{"name": "first"}, other]), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    threads = {"name": "other", "overrides": {"runtime.intra_op_parallelism_threads": 2}}
    with pytest.raises(errors.ConfigValueError, match=r"intra_op_parallelism_threads`: None and 2"):
        _run(experiment(phases=[{"name": "first"}, threads]), tmp_path / "run")
    seeded = {"name": "other", "overrides": {"runtime.seed": 5}}
    pipeline.RunPipeline(experiment(phases=[{"name": "first"}, seeded]), "train", str(tmp_path))


def test_error_for_an_unknown_name_in_a_phase_names_the_phase(experiment, tmp_path) -> None:
    check = {"name": "check", "overrides": {"pipeline.run": "no_such_stage"}}
    with pytest.raises(errors.UnknownNameError, match=r"'check'.*no_such_stage"):
        pipeline.RunPipeline(experiment(phases=[*TWO, check]), "train", str(tmp_path))


def test_missing_checkpoint_of_a_later_phase_raises_before_the_first_phase_runs(
    experiment, tmp_path
) -> None:
    def plan(init_from, mode="train", **stages):
        params = experiment(phases=[*TWO, {"name": "check", "init_from": init_from}])
        pipeline.RunPipeline(params, mode, str(tmp_path / "run"), stages)

    class Prepare(pipeline.Prepare):
        """A stage that may fetch the checkpoint."""

    with pytest.raises(errors.CheckpointError, match=r"'check': .*'secnd/best_ckpt'.*`second`"):
        plan("secnd/best_ckpt")
    plan("second/best_ckpt")
    plan("secnd/best_ckpt", prepare=Prepare)
    single = experiment(task={"init_checkpoint": "/nonexistent/dir"})
    with pytest.raises(errors.CheckpointError, match=r"^`task.init_checkpoint`"):
        pipeline.RunPipeline(single, "train", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_phase_can_train_on_files_that_an_earlier_phase_predicts(experiment, tmp_path) -> None:
    predicted = tmp_path / "label" / "predictions"
    phases = [
        {"name": "teach", "mode": "train"},
        {"name": "label", "mode": "predict", "init_from": "teach"},
        {"name": "learn", "overrides": {"task.train_data.input_path": f"{predicted}/*.jsonl"}},
    ]
    _run(experiment(phases=phases), tmp_path)
    assert list(predicted.glob("*.jsonl"))
    assert _global_step(tmp_path / "learn") == 8


def test_hooks_of_a_pipeline_start_each_phase_without_the_state_of_earlier_phases(
    experiment, tmp_path
) -> None:
    hooks = [
        orbit.hooks.BestCheckpoint("validation_loss", "minimize", directory="kept"),
        # No loss is below the baseline, so the first evaluation of each phase ends the phase.
        orbit.hooks.EarlyStopping("validation_loss", patience=1, baseline=-1.0),
        orbit.hooks.StallWarning(),
    ]
    phases = [{"name": "first"}, {"name": "second"}]
    params = experiment(phases=phases)
    pipeline.RunPipeline(params, "train_and_eval", str(tmp_path), hooks=hooks).run()
    for name in ("first", "second"):
        assert _global_step(tmp_path / name) == 4
        assert (tmp_path / name / "kept" / "best_ckpt-4.index").exists()


def test_hooks_start_an_evaluation_phase_without_their_state_from_training(
    experiment, tmp_path
) -> None:
    counts = []

    def count(hook, logs):
        hook.evaluations = getattr(hook, "evaluations", 0) + 1
        counts.append(hook.evaluations)

    hook = orbit.hooks.LambdaHook(after_eval=count)
    phases = [{"name": "first", "mode": "train_and_eval"}, {"name": "check", "mode": "eval"}]
    phases[1]["init_from"] = "first"
    params = experiment(phases=phases)
    pipeline.RunPipeline(params, "train_and_eval", str(tmp_path), hooks=[hook]).run()
    *trained, checked = counts
    assert trained == list(range(1, len(trained) + 1))
    assert trained
    assert checked == 1


def test_hook_that_cannot_be_copied_is_shared_by_all_phases_with_a_warning_and_others_are_copied(
    experiment, tmp_path, caplog
) -> None:
    shared, copied = [], []
    hook = orbit.hooks.LambdaHook(after_train=lambda hook: shared.append(hook))
    hook.lock = threading.Lock()
    other = orbit.hooks.LambdaHook(after_train=lambda hook: copied.append(hook))
    hooks = [hook, other]
    pipeline.RunPipeline(experiment(phases=TWO), "train", str(tmp_path), hooks=hooks).run()
    assert shared == [hook, hook]
    assert copied[0] is not other
    assert copied[1] is other
    assert "A hook of the pipeline, LambdaHook, can't be copied for each phase" in caplog.text
    assert "`trainer.hooks`" in caplog.text


def test_hook_object_passed_by_the_caller_is_used_in_the_last_training_phase(
    experiment, tmp_path
) -> None:
    hook = orbit.hooks.LambdaHook(after_train=lambda hook, success: setattr(hook, "seen", success))
    phases = [{"name": "first"}, {"name": "second"}, {"name": "check", "mode": "eval"}]
    phases[2]["init_from"] = "second"
    params = experiment(phases=phases)
    pipeline.RunPipeline(params, "train", str(tmp_path), hooks=[hook]).run()
    assert hook.seen


def test_init_from_a_phase_that_only_evaluates_raises(experiment, tmp_path) -> None:
    phases = [{"name": "first"}, {"name": "second", "mode": "train", "init_from": "first"}]
    with pytest.raises(errors.CheckpointError, match=r"'second': .*/first'"):
        pipeline.RunPipeline(
            experiment(phases=phases, task={"init_checkpoint": _checkpoint(tmp_path)}),
            "eval",
            str(tmp_path),
        )


def _checkpoint(directory) -> str:
    return tf.train.Checkpoint(v=tf.Variable(1.0)).save(str(directory / "other" / "ckpt"))


def test_phase_directory_that_is_a_file_raises_before_any_phase_runs(experiment, tmp_path) -> None:
    (tmp_path / "second").touch()
    with pytest.raises(errors.ConfigValueError, match=r"'second': .*is a file"):
        pipeline.RunPipeline(experiment(phases=TWO), "train", str(tmp_path))
    assert not (tmp_path / "first").exists()


@pytest.mark.slow
def test_phase_keeps_its_weights_and_warns_if_its_source_phase_was_trained_further(
    experiment, recorders, caplog, tmp_path
) -> None:
    calls, stages = recorders
    _run(experiment(phases=TWO), tmp_path)
    _run(experiment(phases=TWO), tmp_path, **stages)
    assert (calls, caplog.text.count("has been trained further")) == ([], 0)
    longer = [TWO[0] | {"overrides": {"trainer.train_steps": 6}}, TWO[1]]
    _run(experiment(phases=longer), tmp_path, **stages)
    assert calls == list(pipeline.STAGES)
    assert "`second` resumes from its own checkpoint" in caplog.text
    assert f"Remove {tmp_path / 'second'}" in caplog.text


@pytest.mark.parametrize("wanted", [True, False])
def test_enable_async_checkpointing_selects_background_or_blocking_saves(
    wanted, experiment, tmp_path, monkeypatch
) -> None:
    asked = []
    manager = async_checkpoint_manager.AsyncCheckpointManager
    save = manager.save

    def record_and_save(self, checkpoint_number=None, check_interval=True, options=None):
        asked.append(options is not None and options.enable_async)
        return save(self, checkpoint_number, check_interval, options)

    monkeypatch.setattr(manager, "save", record_and_save)
    pipeline.RunPipeline(
        experiment(), "train", str(tmp_path), enable_async_checkpointing=wanted
    ).run()
    assert set(asked) == {wanted}
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("ckpt-8")


def test_model_directory_may_begin_with_a_tilde(experiment, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    _run(experiment(), "~/run")
    assert _global_step(tmp_path / "run") == 8
    assert not (tmp_path / "~").exists()


def test_record_of_the_first_phase_lists_no_input_files_of_other_phases(
    experiment, tmp_path
) -> None:
    path = row_files.write("parquet", tmp_path / "data", num_rows=10)
    files = {"task.train_data.source": "parquet", "task.train_data.input_path": path}
    phases = [{"name": "first"}, {"name": "second", "overrides": files}]
    _run(experiment(phases=phases, trainer={"train_steps": 4}), tmp_path)

    def patterns(phase):
        record = json.loads((tmp_path / phase / "run.json").read_text())
        return [each["pattern"] for each in record["inputs"]]

    assert path in patterns("second")
    assert path not in patterns("first")
