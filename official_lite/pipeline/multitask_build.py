"""The `build` stage of runs with several tasks."""

from typing import Any

from official_lite.common import flags
from official_lite.core import train_lib as core_lib
from official_lite.modeling.multitask import train_lib
from official_lite.pipeline.stages import Build, ExperimentContext


class MultiTaskBuild(Build):
    """The `build` stage for experiments whose config is a `MultiTaskExperimentConfig`.

    The config names this stage as `official_lite.pipeline.multitask_build:MultiTaskBuild`. The
    `task` of the config must be the config of a `MultiTask` that builds the models of all tasks::

        class MyTasks(multitask.MultiTask):
            def build_multitask_model(self):
                return MyModels()

        task_factory.register_task_cls(MyTasksConfig)(MyTasks.from_config)
    """

    def make_model(self, ctx: ExperimentContext) -> Any:
        """Let the task create its models."""
        return train_lib.build_model(ctx.require("task"))

    def make_trainer(self, ctx: ExperimentContext) -> Any:
        """Build the trainer that `trainer.trainer_type` names; return None in evaluation modes."""
        if not ctx.trains:
            return None
        return train_lib.get_trainer(
            ctx.require("strategy"),
            ctx.require("params"),
            ctx.require("task"),
            ctx.require("model"),
            ctx.optimizer,
            evaluates=flags.Mode.parse(ctx.mode).evaluates,
        )

    def make_runner(self, ctx: ExperimentContext) -> core_lib.OrbitExperimentRunner:
        """Build the runner with an evaluator for all tasks, without restoring."""
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
            hooks=ctx.hooks,
            restore=False,
        )
        # In runs without training, `runner.trainer` is the evaluator.
        ctx.trainer = runner.trainer
        return runner
