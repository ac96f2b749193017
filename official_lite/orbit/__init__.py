"""The training loop: an outer Python loop around a compiled inner loop.

A `StandardTrainer` defines one step. A `Controller` schedules everything between steps::

    class Trainer(orbit.StandardTrainer):
        def train_step(self, iterator):
            self.loss.update_state(...)
            self.global_step.assign_add(1)

        def train_loop_end(self):
            return {"loss": self.loss.result()}

    orbit.Controller(trainer=Trainer(...), global_step=..., steps_per_loop=100).train(steps=1000)
"""

from official_lite.orbit import (
    actions as actions,
    hooks as hooks,
    triggers as triggers,
    utils as utils,
)
from official_lite.orbit.controller import Action as Action, Controller as Controller
from official_lite.orbit.hooks.hook import GraphHook as GraphHook, Hook as Hook
from official_lite.orbit.runner import (
    AbstractEvaluator as AbstractEvaluator,
    AbstractTrainer as AbstractTrainer,
)
from official_lite.orbit.standard_runner import (
    StandardEvaluator as StandardEvaluator,
    StandardEvaluatorOptions as StandardEvaluatorOptions,
    StandardTrainer as StandardTrainer,
    StandardTrainerOptions as StandardTrainerOptions,
    TrainLoop as TrainLoop,
)
from official_lite.orbit.triggers import Trigger as Trigger
from official_lite.orbit.xla_loops import (
    StackedLoop as StackedLoop,
    XlaEvalLoop as XlaEvalLoop,
    steps_per_stack as steps_per_stack,
)
