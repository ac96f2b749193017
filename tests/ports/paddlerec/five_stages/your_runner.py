"""Train epoch by epoch, as PaddleRec's runner for parameter servers does."""

import time

from official_lite.pipeline.paddlerec import RunnerBase


class Runner(RunnerBase):
    def __init__(self, context):
        print("Running Runner.")

    def run(self, context):
        config = context.params.trainer
        model_dict = context["env"]["phase"][0]
        while context.global_step < config.train_steps and not context.controller.stop_reason:
            epoch = context.global_step // config.steps_per_epoch
            begin_time = time.time()
            self._run(context, model_dict)
            seconds = time.time() - begin_time
            print(f"epoch {epoch} done, use time: {seconds}")
            self.save(epoch, context, True)
        context["status"] = "terminal_pass"
