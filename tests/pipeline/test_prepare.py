import os
import shutil

import pytest

from official_lite import pipeline
from official_lite.common import errors
from official_lite.config import epochs


def test_prepare_runs_before_anything_is_there_and_the_data_see_its_environment(
    experiment, tmp_path, monkeypatch
) -> None:
    class Prepare(pipeline.Prepare):
        def __call__(self, ctx):
            seen.append((ctx.strategy, ctx.task, ctx.model))
            monkeypatch.setitem(os.environ, "LINE_SLOPE", "-5.0")

    seen = []
    params = experiment(trainer={"train_steps": 100})
    model, _ = pipeline.RunPipeline(params, "train", str(tmp_path), {"prepare": Prepare}).run()
    assert seen == [(None, None, None)]
    assert -5.1 < float(model.layers[0].kernel[0, 0]) < -4.9


@pytest.mark.parametrize(
    ("trainer", "steps"), [({}, 8), ({"train_epochs": 3, "steps_per_epoch": 0}, 12)]
)
def test_prepare_may_find_other_data_and_set_other_epochs(
    experiment, tmp_path, trainer, steps
) -> None:
    class Prepare(pipeline.Prepare):
        def __call__(self, ctx):
            seen.append((ctx.params.trainer.train_steps, ctx.params.trainer.train_epochs))
            ctx.params = ctx.params.replace(
                task={"train_data": {"num_examples": 32}}, trainer=trainer
            )

    class Finalize(pipeline.Finalize):
        def __call__(self, ctx):
            seen.append((ctx.global_step, ctx.params.trainer.steps_per_epoch))

    seen = []
    params = epochs.resolve(
        experiment(task={"train_data": {"num_examples": 16}}, trainer={"train_epochs": 2.0})
    )
    stages = {"prepare": Prepare, "finalize": Finalize}
    pipeline.RunPipeline(params, "train", str(tmp_path), stages).run()
    assert seen == [(4, None), (steps, 4)]


def test_prepare_may_fetch_what_is_to_be_evaluated(experiment, tmp_path) -> None:
    class Prepare(pipeline.Prepare):
        def __call__(self, ctx):
            shutil.copytree(tmp_path / "elsewhere", ctx.model_dir, dirs_exist_ok=True)

    pipeline.RunPipeline(experiment(), "train", str(tmp_path / "elsewhere")).run()
    model_dir = str(tmp_path / "run")
    _, logs = pipeline.RunPipeline(experiment(), "eval", model_dir, {"prepare": Prepare}).run()
    assert logs["validation_loss"] > 0


def test_prepare_that_fetched_nothing_does_not_lead_to_random_weights(experiment, tmp_path) -> None:
    class Prepare(pipeline.Prepare):
        pass

    with pytest.raises(errors.CheckpointError, match="random weights"):
        pipeline.RunPipeline(experiment(), "eval", str(tmp_path), {"prepare": Prepare}).run()
