"""Online learning: the clicks of each day are first predicted and then learned."""

import pathlib

import numpy as np
from absl import logging

from official_lite import pipeline
from official_lite.data import length

DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")


class Download(pipeline.Prepare):
    """A `prepare` stage that writes the files that a real one would download."""

    def __call__(self, ctx):
        folder = pathlib.Path(ctx.model_dir, "clicks")
        folder.mkdir(exist_ok=True)
        for number, day in enumerate(DAYS, 1):
            x = np.random.default_rng(number).normal(size=64)
            np.savetxt(folder / f"{day}.csv", np.stack([x, number * x], axis=1), delimiter=",")
        ctx.extras["folder"] = folder


class DayByDay(pipeline.Run):
    """A `run` stage that trains one epoch per day."""

    def train(self, ctx):
        config = ctx.params.trainer
        logs = None
        while ctx.global_step < config.train_steps and not ctx.controller.stop_reason:
            number, steps_done = divmod(ctx.global_step, config.steps_per_epoch)
            self._turn_to(ctx, DAYS[number])
            # An interrupted day was already predicted before the interruption.
            if steps_done == 0:
                logs = super().evaluate(ctx)
            logging.info("Learns %s.", DAYS[number])
            last_step = (number + 1) * config.steps_per_epoch
            ctx.controller.train(min(last_step, config.train_steps))
        return logs

    def evaluate(self, ctx):
        """Predict the next day, or the last day again if there is no next one."""
        number = ctx.global_step // ctx.params.trainer.steps_per_epoch
        self._turn_to(ctx, DAYS[min(number, len(DAYS) - 1)])
        return super().evaluate(ctx)

    def _turn_to(self, ctx, day):
        path = str(ctx.extras["folder"] / f"{day}.csv")
        data = ctx.params.task.train_data.replace(input_path=path)
        trainer, build_inputs = ctx.trainer, ctx.task.build_inputs
        trainer.eval_dataset = trainer.distribute_dataset(build_inputs, data)
        trainer.train_dataset = trainer.distribute_dataset(length.repeat(build_inputs), data)
