"""The second stage, which builds the parts of a run."""

import keras
import tensorflow as tf

from official_lite.core import (
    base_task,
    base_trainer,
    config_changes,
    epochs,
    runtime,
    task_factory,
    train_lib,
    trainer_factory,
)
from official_lite.pipeline.context import ExperimentContext
from official_lite.pipeline.stage import Stage

__all__ = ["Build"]


class Build(Stage):
    """The stage that builds the parts of a run. Each part has a method that can be overridden.

    The methods are called in this order::

        make_strategy
        with the strategy's scope:
            make_task
            epochs in the config become steps; seed and precision are set
            make_model  make_optimizer  make_trainer
        make_runner
    """

    def __call__(self, ctx: ExperimentContext) -> str | None:
        self.build(ctx)
        return None

    def build(self, ctx: ExperimentContext) -> None:
        """Build all parts in order and store them in the context."""
        ctx.strategy = self.make_strategy(ctx)
        with ctx.strategy.scope():
            ctx.task = self.make_task(ctx)
            own_config = "" if "train" in ctx.mode else config_changes.own_config(ctx.model_dir)
            ctx.params = epochs.resolve(ctx.params, ctx.task, own_config)
            ctx.exit_stack.enter_context(runtime.seed_and_precision(ctx.params.runtime))
            ctx.model = self.make_model(ctx)
            ctx.optimizer = self.make_optimizer(ctx)
            ctx.trainer = self.make_trainer(ctx)
        # A custom trainer may replace or wrap the model and the optimizer.
        ctx.model = getattr(ctx.trainer, "model", ctx.model)
        ctx.optimizer = getattr(ctx.trainer, "optimizer", ctx.optimizer)
        ctx.runner = self.make_runner(ctx)

    def make_strategy(self, ctx: ExperimentContext) -> tf.distribute.Strategy:
        """Build the strategy that `runtime` describes. Later phases reuse that of the first."""
        if ctx.strategy is None:
            return runtime.build_strategy(ctx.params.runtime)
        runtime.set_intra_op_threads(ctx.params.runtime.intra_op_parallelism_threads)
        return ctx.strategy

    def make_task(self, ctx: ExperimentContext) -> base_task.Task:
        """Build the task that `task` describes."""
        task: base_task.Task = task_factory.get_task(ctx.params.task, logging_dir=ctx.model_dir)
        return task

    def make_model(self, ctx: ExperimentContext) -> keras.Model:
        """Let the task create its model. The model may not be built yet."""
        task: base_task.Task = ctx.require("task")
        return task.build_model()

    def make_optimizer(self, ctx: ExperimentContext) -> keras.optimizers.Optimizer:
        """Let the task create its optimizer."""
        return trainer_factory.create_optimizer(ctx.require("task"), ctx.params)

    def make_trainer(self, ctx: ExperimentContext) -> base_trainer.Trainer:
        """Build the trainer that `trainer.name` or gin names."""
        return trainer_factory.create_trainer(
            ctx.params,
            ctx.require("task"),
            train="train" in ctx.mode,
            evaluate="eval" in ctx.mode,
            checkpoint_exporter=train_lib.maybe_create_best_ckpt_exporter(
                ctx.params, ctx.model_dir
            ),
            model=ctx.model,
            optimizer=ctx.optimizer,
        )

    def make_runner(self, ctx: ExperimentContext) -> train_lib.OrbitExperimentRunner:
        """Build the controller, checkpoint manager, hooks and writers without restoring."""
        return train_lib.OrbitExperimentRunner(
            distribution_strategy=ctx.strategy,
            task=ctx.require("task"),
            mode=ctx.mode,
            params=ctx.params,
            model_dir=ctx.model_dir,
            trainer=ctx.trainer,
            enable_async_checkpointing=ctx.enable_async_checkpointing,
            restore=False,
        )
