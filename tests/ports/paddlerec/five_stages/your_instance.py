"""Prepare the environment before the network is built."""

import os

from official_lite.pipeline.paddlerec import InstanceBase


class Instance(InstanceBase):
    def __init__(self, context):
        context["greeting"] = "hello"

    def instance(self, context):
        os.environ["NUM_UNITS"] = "16"
        print("instance")
