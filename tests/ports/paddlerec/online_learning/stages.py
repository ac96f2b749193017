"""Online learning: each day's clicks are first predicted, then learnt."""

import pathlib

import numpy as np
from absl import logging

from official_lite import pipeline
from official_lite.data import length

DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")


class Download(pipeline.Prepare):
    """What would come from elsewhere."""

    def __call__(self, ctx):
        folder = pathlib.Path(ctx.model_dir, "clicks")
        folder.mkdir(exist_ok=True)
        for number, day in enumerate(DAYS, 1):
            x = np.random.default_rng(number).normal(size=64)
            np.savetxt(folder / f"{day}.csv", np.stack([x, number * x], axis=1), delimiter=",")
        ctx.extras["folder"] = folder


class DayByDay(pipeline.Run):
    """An epoch a day."""

    def __call__(self, ctx):
        config = ctx.params.trainer
        while ctx.global_step < config.train_steps and not ctx.controller.stop_reason:
            number, steps_done = divmod(ctx.global_step, config.steps_per_epoch)
            self._turn_to(ctx, str(ctx.extras["folder"] / f"{DAYS[number]}.csv"))
            # A day that was broken off has been predicted before.
            if steps_done == 0:
                ctx.logs = self.evaluate(ctx)
            logging.info("Learns %s.", DAYS[number])
            last_step = (number + 1) * config.steps_per_epoch
            ctx.controller.train(min(last_step, config.train_steps))

    def _turn_to(self, ctx, path):
        data = ctx.params.task.train_data.replace(input_path=path)
        trainer, build_inputs = ctx.trainer, ctx.task.build_inputs
        trainer.eval_dataset = trainer.distribute_dataset(build_inputs, data)
        trainer.train_dataset = trainer.distribute_dataset(length.endless(build_inputs), data)
