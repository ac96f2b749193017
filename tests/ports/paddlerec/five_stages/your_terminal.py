"""Run after the training."""

from official_lite.pipeline.paddlerec import TerminalBase


class Terminal(TerminalBase):
    def terminal(self, context):
        print(context["greeting"], "and PaddleRec Finish")
