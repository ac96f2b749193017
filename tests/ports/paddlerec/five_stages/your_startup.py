"""Initialize the weights."""

from official_lite.pipeline.paddlerec import StartupBase


class Startup(StartupBase):
    def startup(self, context):
        self.load(context)
        print("startup")
        context["status"] = "train_pass"
