import pytest

from official_lite import pipeline
from official_lite.common import errors


def test_missing_part_is_named_with_the_stage_that_needs_it(experiment, tmp_path) -> None:
    class Build(pipeline.Build):
        def __call__(self, ctx):
            return "run"

    with pytest.raises(errors.ConfigValueError, match=r"`run` needs `ctx.runner`"):
        pipeline.RunPipeline(experiment(), "train", str(tmp_path), {"build": Build}).run()


def test_engine_is_that_of_the_strategy_or_of_the_config(context, two_replicas) -> None:
    ctx = context()
    assert ctx.engine is pipeline.Engine.SINGLE
    ctx.strategy = two_replicas
    assert ctx.engine is pipeline.Engine.LOCAL_CLUSTER


def test_step_is_zero_before_there_is_a_trainer(context) -> None:
    assert context().global_step == 0


def test_model_of_a_phase_of_another_process_is_a_clear_error() -> None:
    phase = pipeline.FinishedPhase(name="pretrain", mode="train", model_dir="/runs/pretrain")
    with pytest.raises(errors.CheckpointError, match=r"no model in this process.*/runs/pretrain"):
        phase.model  # noqa: B018  (the access is what fails)
