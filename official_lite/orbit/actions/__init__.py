"""Actions, which process the output of a training interval or of an evaluation.

An action is any callable that takes the output. Conditions and actions are separate objects::

    new_best = actions.NewBestMetric("accuracy", filename="runs/mnist/best.json")
    export_best = actions.ConditionalAction(
        condition=new_best.test,
        action=[
            actions.ExportSavedModel(model, actions.ExportFileManager("runs/mnist/export"), None),
            new_best.commit,  # Last, so that a failed export is tried again.
        ],
    )
    controller = orbit.Controller(..., eval_actions=[export_best])
"""

from official_lite.common import plugins

__getattr__, __all__ = plugins.attach_stub(__name__, __file__)
