import json
import sys

import pytest
import tensorflow as tf
from absl import logging

from official_lite import pipeline, telemetry
from official_lite.common import errors
from official_lite.core import writer_factory


def _run(params, model_dir, mode="train", **stages):
    return pipeline.RunPipeline(params, mode, str(model_dir), stages).run()


@pytest.mark.parametrize("mode", ["train", "eval", "train_and_eval"])
def test_stages_run_once_and_in_order_in_every_mode(experiment, recorders, tmp_path, mode) -> None:
    calls, stages = recorders
    if mode == "eval":
        _run(experiment(), tmp_path)
    _run(experiment(), tmp_path, mode, **stages)
    assert calls == ["prepare", "build", "initialize", "run", "finalize"]


def test_what_one_stage_puts_into_the_context_another_finds(experiment, tmp_path) -> None:
    class Prepare(pipeline.Prepare):
        def __call__(self, ctx):
            ctx.extras["greeting"] = "hello"

    class Finalize(pipeline.Finalize):
        def __call__(self, ctx):
            ctx.extras["found"].append(ctx.extras["greeting"])

    class Run(pipeline.Run):
        def __init__(self, ctx):
            ctx.extras["found"] = found

    found = []
    _run(experiment(), tmp_path, prepare=Prepare, run=Run, finalize=Finalize)
    assert found == ["hello"]


def test_returned_name_is_a_jump(experiment, recorders, tmp_path) -> None:
    calls, stages = recorders

    class Initialize(stages["initialize"]):
        def __call__(self, ctx):
            super().__call__(ctx)
            return "finalize"

    _run(experiment(), tmp_path, **stages | {"initialize": Initialize})
    assert calls == ["prepare", "build", "initialize", "finalize"]


@pytest.mark.parametrize("jump", ["foo", "build", "prepare", 0])
def test_jump_to_anything_but_a_later_stage_fails_and_names_them(
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
        *((stage, "__call__", ZeroDivisionError) for stage in pipeline.STAGES),
        ("prepare", "__init__", ZeroDivisionError),
        ("finalize", "__init__", ZeroDivisionError),
        ("run", "__call__", KeyboardInterrupt),
        ("build", "__call__", SystemExit),
    ],
)
def test_finalize_runs_once_whatever_fails(
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


@pytest.mark.parametrize(
    ("code", "exit_code", "reason"),
    [(0, "`run` called `sys.exit`", "called"), (None, "`run` called", "called"), (3, "3", "3")],
)
def test_exit_from_a_stage_is_never_a_success(
    experiment, tmp_path, code, exit_code, reason
) -> None:
    class Run(pipeline.Run):
        def train(self, ctx):
            sys.exit(code)

    with pytest.raises(SystemExit, match=exit_code) as caught:
        _run(experiment(), tmp_path, run=Run)
    # A text is printed, and makes the exit code 1.
    assert caught.value.code
    assert reason in json.loads((tmp_path / "run.json").read_text())["exit_reason"]


def test_finalize_sees_the_error_and_its_own_does_not_hide_it(experiment, log_of, tmp_path) -> None:
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


def test_last_line_of_the_log_says_how_it_ended(experiment, log_of, tmp_path) -> None:
    class Finalize(pipeline.Finalize):
        def __call__(self, ctx):
            logging.info("the last stage")

    _run(experiment(), tmp_path, finalize=Finalize)
    *_, before, last = log_of().splitlines()
    assert before.endswith("the last stage")
    assert last.endswith("Experiment finished: status=done, step=8.")


def test_log_says_which_class_of_which_file_each_stage_is(experiment, log_of, tmp_path) -> None:
    class Mine(pipeline.Prepare):
        pass

    _run(experiment(), tmp_path, prepare=Mine)
    lines = [line for line in log_of().splitlines() if "] stage " in line]
    assert len(lines) == 5
    assert "Mine" in lines[0]
    assert lines[0].endswith(f"({__file__})")
    assert "stage run: Run (" in lines[3]


def test_writers_are_closed_before_finalize_after_success_and_failure(experiment, tmp_path) -> None:
    class Counted(telemetry.Writer):
        def __init__(self, run):
            pass

        def write(self, record):
            pass

        def close(self):
            events.append("closed")

    class Finalize(pipeline.Finalize):
        def __call__(self, ctx):
            events.append(f"finalize {ctx.error is None}")

    class Failing(pipeline.Run):
        def train(self, ctx):
            raise ZeroDivisionError

    events = []
    writer_factory.register_writer("tests/counted")(Counted)
    params = experiment(trainer={"writers": ["tests/counted"]})
    _run(params, tmp_path / "a", finalize=Finalize)
    with pytest.raises(ZeroDivisionError):
        _run(params, tmp_path / "b", finalize=Finalize, run=Failing)
    assert events == ["closed", "finalize True", "closed", "finalize False"]


def test_changed_params_are_what_is_recorded(experiment, tmp_path) -> None:
    class Prepare(pipeline.Prepare):
        def __call__(self, ctx):
            ctx.params = ctx.params.replace(trainer={"train_steps": 4})

    _run(experiment(), tmp_path, prepare=Prepare)
    assert "train_steps: 4" in (tmp_path / "params.yaml").read_text()
    assert json.loads((tmp_path / "run.json").read_text())["train_steps"] == 4


def test_stages_after_build_are_in_the_scope_of_the_strategy(experiment, tmp_path) -> None:
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


def test_exit_stack_is_closed_last(experiment, recorders, tmp_path) -> None:
    calls, stages = recorders

    class Prepare(pipeline.Prepare):
        def __call__(self, ctx):
            ctx.exit_stack.callback(calls.append, "closed")

    _run(experiment(), tmp_path, **stages | {"prepare": Prepare})
    assert calls[-2:] == ["finalize", "closed"]


class _OnlyTrains(pipeline.Run):
    """Does not ask for the mode."""

    def __call__(self, ctx):
        while ctx.global_step < ctx.params.trainer.train_steps:
            ctx.controller.train(ctx.global_step + 4)


class _EvaluatesAsWell(pipeline.Run):
    def __call__(self, ctx):
        self.evaluate(ctx)


@pytest.mark.parametrize(("stage", "is_told"), [(_OnlyTrains, True), (_EvaluatesAsWell, False)])
def test_mode_that_should_evaluate_and_does_not_is_told(
    experiment, log_of, tmp_path, stage, is_told
) -> None:
    _run(experiment(), tmp_path, run=_OnlyTrains)
    assert "evaluated nothing" not in log_of()
    _run(experiment(), tmp_path, "eval", run=stage)
    log = (tmp_path / "log.eval.txt").read_text()
    told = "The mode `eval` evaluated nothing, because the stage run: _OnlyTrains"
    assert (told in log) == is_told
    assert (tmp_path / "metrics.eval.json").exists() != is_told


def test_stage_that_trains_in_a_mode_that_does_not_is_told_why(experiment, tmp_path) -> None:
    _run(experiment(), tmp_path)
    longer = experiment(trainer={"train_steps": 12})
    with pytest.raises(errors.ConfigValueError, match="only training modes have one"):
        _run(longer, tmp_path, "eval", run=_OnlyTrains)
