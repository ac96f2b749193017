"""Trains epoch by epoch, as PaddleRec's runner for parameter servers does."""

import time

from official_lite.pipeline.paddlerec import RunnerBase


class Runner(RunnerBase):
    def __init__(self, context):
        print("Running Runner.")

    def run(self, context):
        trainer_config = context.params.trainer
        epochs = trainer_config.train_steps // trainer_config.steps_per_epoch
        model_dict = context["env"]["phase"][0]
        for epoch in range(epochs):
            begin_time = time.time()
            self._run(context, model_dict)
            seconds = time.time() - begin_time
            print(f"epoch {epoch} done, use time: {seconds}")
            self.save(epoch, context, True)
        context["status"] = "terminal_pass"
