import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import pipeline
from official_lite.core import base_trainer, task_factory, train_lib, trainer_factory


def _run(params, mode, model_dir, **stages):
    return pipeline.RunPipeline(params, mode, str(model_dir), stages).run()


def test_build_that_swaps_the_model_leaves_the_config_as_it_is(experiment, tmp_path) -> None:
    class Build(pipeline.Build):
        def make_model(self, ctx):
            layers = [keras.Input((2,)), keras.layers.Dense(5), keras.layers.Dense(1)]
            return keras.Sequential(layers)

    _run(experiment(), "train", tmp_path / "default")
    model, _ = _run(experiment(), "train", tmp_path / "swapped", build=Build)
    assert model.count_params() == 21
    record = json.loads((tmp_path / "swapped" / "run.json").read_text())
    assert record["num_parameters"] == 21
    texts = [(tmp_path / d / "params.yaml").read_text() for d in ("default", "swapped")]
    assert texts[0] == texts[1]


def test_build_may_override_only_the_trainer(experiment, records, tmp_path) -> None:
    class Trainer(base_trainer.Trainer):
        def train_loop_end(self):
            return super().train_loop_end() | {"mine": 1.0}

    class Build(pipeline.Build):
        def make_trainer(self, ctx):
            return trainer_factory.create_trainer(
                ctx.params,
                ctx.task,
                train=True,
                evaluate=True,
                trainer_cls=Trainer,
                model=ctx.model,
                optimizer=ctx.optimizer,
            )

    _, logs = _run(experiment(), "train_and_eval", tmp_path, build=Build)
    assert logs["validation_loss"] > 0
    assert records(tmp_path, "train") == records(tmp_path, "validation") == [4, 8]
    assert '"mine": 1.0' in (tmp_path / "metrics.json").read_text()
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("ckpt-8")


def test_optimizer_of_build_is_the_one_that_trains(experiment, tmp_path) -> None:
    class Build(pipeline.Build):
        def make_optimizer(self, ctx):
            return keras.optimizers.SGD(0.0)

    class Run(pipeline.Run):
        def train(self, ctx):
            before = ctx.model.get_weights()
            super().train(ctx)
            for ours, theirs in zip(ctx.model.get_weights(), before, strict=True):
                np.testing.assert_array_equal(ours, theirs)
            seen.append(ctx.trainer.optimizer is ctx.optimizer)

    seen = []
    _run(experiment(), "train", tmp_path, build=Build, run=Run)
    assert seen == [True]


def test_model_and_optimizer_that_a_trainer_brings_are_those_of_the_context(context) -> None:
    class Build(pipeline.Build):
        def make_trainer(self, ctx):
            model = ctx.task.build_model()
            return trainer_factory.create_trainer(
                ctx.params, ctx.task, train=True, evaluate=False, model=model
            )

    ctx = context()
    Build(ctx)(ctx)
    assert ctx.model is ctx.trainer.model
    assert ctx.optimizer is ctx.trainer.optimizer
    ctx.runner.close()
    ctx.exit_stack.close()


def test_run_in_stages_is_the_run_of_run_experiment(experiment, tmp_path) -> None:
    params = experiment(runtime={"seed": 3}, trainer={"train_epochs": 2.0})
    model, _ = _run(params, "train", tmp_path / "stages")
    task = task_factory.get_task(params.task)
    other, _ = train_lib.run_experiment(None, task, "train", params, str(tmp_path / "function"))
    for ours, theirs in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    texts = [(tmp_path / d / "params.yaml").read_text() for d in ("stages", "function")]
    assert texts[0] == texts[1]


def test_seed_is_set_before_the_task_is_built(experiment, tmp_path) -> None:
    class Build(pipeline.Build):
        def make_task(self, ctx):
            task = super().make_task(ctx)
            drawn.append((float(tf.random.uniform([])), float(np.random.random())))
            return task

    drawn: list[tuple[float, float]] = []
    for name in ("one", "other"):
        _run(experiment(runtime={"seed": 3}), "train", tmp_path / name, build=Build)
    assert drawn[0] == drawn[1]


def test_epochs_are_steps_before_anything_is_built(experiment, tmp_path) -> None:
    class Build(pipeline.Build):
        def make_model(self, ctx):
            seen.append((ctx.params.trainer.train_steps, ctx.params.trainer.train_epochs))
            return super().make_model(ctx)

    seen = []
    _run(experiment(trainer={"train_epochs": 3.0}), "train", tmp_path, build=Build)
    assert seen == [(12, None)]
    assert "train_steps: 12" in (tmp_path / "params.yaml").read_text()
    assert json.loads((tmp_path / "run.json").read_text())["global_step"] == 12


@pytest.mark.usefixtures("bfloat16_kernels")
def test_precision_is_not_set_in_prepare_and_holds_until_the_end(experiment, tmp_path) -> None:
    def recorder(base):
        class Recorder(base):
            def __call__(self, ctx):
                super().__call__(ctx)
                seen.append(keras.mixed_precision.dtype_policy().name)

        return Recorder

    seen = []
    stages = {"prepare": pipeline.Prepare, "run": pipeline.Run, "finalize": pipeline.Finalize}
    stages = {name: recorder(base) for name, base in stages.items()}
    params = experiment(runtime={"mixed_precision_dtype": "bfloat16"})
    _run(params, "train", tmp_path, **stages)
    assert seen == ["float32", "mixed_bfloat16", "mixed_bfloat16"]
    assert keras.mixed_precision.dtype_policy().name == "float32"


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_trainer_is_built_for_what_the_mode_does(context, mode) -> None:
    ctx = context(mode, task={"init_checkpoint": "somewhere"})
    pipeline.Build(ctx)(ctx)
    assert ctx.trainer.evaluates == (mode == "eval")
    assert ctx.controller.trainer is (ctx.trainer if mode == "train" else None)
    ctx.runner.close()
    ctx.exit_stack.close()
