"""The five stages of a run, each of which can be replaced in the config.

::

    prepare     downloads and environment variables, before anything is built
    build       strategy, task, model, optimizer, trainer
    initialize  the run's checkpoint, or pretrained weights
    run         training and evaluation, depending on the mode
    finalize    always runs, even after a failure

A custom stage is a subclass of the default stage. Name it in the config, for example as
`pipeline: {initialize: "{workspace}/warm_start.py"}`::

    class WarmStart(pipeline.Initialize):
        def __call__(self, ctx: pipeline.ExperimentContext) -> None:
            super().__call__(ctx)
            ...
"""

from official_lite.pipeline.stages import (
    Engine as Engine,
    ExperimentContext as ExperimentContext,
    FinishedPhase as FinishedPhase,
)
from official_lite.pipeline.run_pipeline import RunPipeline as RunPipeline
from official_lite.pipeline.stages import (
    STAGES as STAGES,
    Build as Build,
    Finalize as Finalize,
    Initialize as Initialize,
    Prepare as Prepare,
    Run as Run,
    Stage as Stage,
    register_stage as register_stage,
)
