import json
import pathlib
import re

import tensorflow as tf
from absl import logging

from official_lite import pipeline
from official_lite.core import base_trainer, trainer_factory


def _run(params, mode, model_dir, **stages):
    return pipeline.RunPipeline(params, mode, str(model_dir), stages).run()


def _checkpoints(model_dir) -> list[int]:
    return sorted(int(path.stem.split("-")[1]) for path in model_dir.glob("ckpt-*.index"))


def test_training_alone_can_be_replaced(experiment, records, tmp_path) -> None:
    class Run(pipeline.Run):
        def train(self, ctx):
            while ctx.global_step < ctx.params.trainer.train_steps:
                ctx.controller.train(ctx.global_step + 2)

    _, logs = _run(experiment(), "train_and_post_eval", tmp_path, run=Run)
    assert "validation_loss" in logs
    assert records(tmp_path, "validation") == [8]
    assert _checkpoints(tmp_path) == [2, 4, 6, 8]


def test_passes_of_the_page_end_with_the_training(experiment, tmp_path) -> None:
    page = (pathlib.Path(__file__).parents[2] / "docs" / "stages.md").read_text()
    (code,) = re.findall(r"```python\n([^`]*class Passes.*?)```", page, re.DOTALL)
    found = {"pipeline": pipeline}
    exec(code, found)
    params = experiment(
        task={"train_data": {"num_examples": 20}},
        trainer={"train_epochs": 10.0, "checkpoint_interval": 0},
    )
    _run(params, "train", tmp_path, run=found["Passes"])
    step = json.loads((tmp_path / "run.json").read_text())["global_step"]
    assert step == 25


def test_inner_loop_alone_can_be_replaced(experiment, records, tmp_path) -> None:
    class Eager(base_trainer.Trainer):
        def run_steps(self, num_steps):
            iterator = iter(self.train_dataset)
            for _ in range(int(num_steps)):
                self.train_step(iterator)
            passes.append(int(num_steps))

    class Build(pipeline.Build):
        def make_trainer(self, ctx):
            return trainer_factory.create_trainer(
                ctx.params, ctx.task, train=True, evaluate=True, trainer_cls=Eager, model=ctx.model
            )

    passes = []
    _run(experiment(), "train_and_eval", tmp_path, build=Build)
    # In one pass or in several, between which signals are looked for.
    assert sum(passes) == 8
    assert records(tmp_path, "validation") == [4, 8]
    assert _checkpoints(tmp_path) == [4, 8]


def test_two_trainers_that_share_a_model_may_take_turns(experiment, log_of, tmp_path) -> None:
    class Build(pipeline.Build):
        def make_runner(self, ctx):
            other = ctx.task.task_config.replace(slope=-3.0)
            ctx.extras["trainers"] = {
                "up": ctx.trainer,
                "down": trainer_factory.create_trainer(
                    ctx.params, type(ctx.task)(other), True, False, model=ctx.model
                ),
            }
            return super().make_runner(ctx)

    class Run(pipeline.Run):
        def train(self, ctx):
            for epoch in range(2):
                for name, trainer in ctx.extras["trainers"].items():
                    logs = trainer.train(tf.constant(ctx.params.trainer.steps_per_epoch))
                    losses.append(float(logs["training_loss"]))
                    logging.info("epoch %d of %s is done", epoch, name)
            ctx.controller.save_checkpoint()

    losses = []
    params = experiment(trainer={"train_epochs": 2.0})
    _run(params, "train", tmp_path, build=Build, run=Run)
    turns = [line.split("] ")[1] for line in log_of().splitlines() if "is done" in line]
    assert turns == [f"epoch {e} of {name} is done" for e in (0, 1) for name in ("up", "down")]
    # What one has learnt, the other has to unlearn.
    assert losses[1] > losses[0]
    assert _checkpoints(tmp_path) == [8]
