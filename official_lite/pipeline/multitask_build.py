"""The second stage of a run with several tasks."""

from typing import Any

from official_lite.core import train_lib as core_lib
from official_lite.modeling.multitask import train_lib
from official_lite.pipeline.build import Build
from official_lite.pipeline.context import ExperimentContext

__all__ = ["MultiTaskBuild"]


class MultiTaskBuild(Build):
    """Makes the parts of an experiment whose config is a `MultiTaskExperimentConfig`.

    The config names it as `official_lite.pipeline.multitask_build:MultiTaskBuild`, and its `task`
    stands for a `MultiTask` that makes the models of all tasks::

        class MyTasks(multitask.MultiTask):
            def build_multitask_model(self):
                return MyModels()

        task_factory.register_task_cls(MyTasksConfig)(MyTasks.from_config)
    """

    def make_model(self, ctx: ExperimentContext) -> Any:
        """Lets the task make its models."""
        return ctx.require("task").build_multitask_model()

    def make_trainer(self, ctx: ExperimentContext) -> Any:
        """Makes the trainer that `trainer.trainer_type` names; None if nothing is trained."""
        if "train" not in ctx.mode:
            return None
        return train_lib.get_trainer(
            ctx.require("strategy"),
            ctx.require("params"),
            ctx.require("task"),
            ctx.require("model"),
            ctx.optimizer,
        )

    def make_runner(self, ctx: ExperimentContext) -> core_lib.OrbitExperimentRunner:
        """Makes an evaluator of all tasks beside the rest; restores nothing."""
        trainer: Any = ctx.trainer
        runner = train_lib.create_runner(
            distribution_strategy=ctx.require("strategy"),
            task=ctx.require("task"),
            model=ctx.require("model"),
            mode=ctx.mode,
            params=ctx.require("params"),
            model_dir=ctx.model_dir,
            trainer=trainer,
            optimizer=ctx.optimizer,
            enable_async_checkpointing=ctx.enable_async_checkpointing,
            restore=False,
        )
        # The evaluator, if nothing is trained.
        ctx.trainer = runner.trainer
        return runner
