"""Trial trainings, built as by `train.py` in a temporary directory."""

import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from official_lite import pipeline
from official_lite.common import errors

__all__ = ["train"]

# Disables all output, the handling of non-finite values, which are expected here, and epochs, which
# do not matter for a few steps.
_LEFT_OUT: dict[str, Any] = {
    "train_epochs": None,
    "validate_every_epochs": None,
    "checkpoint_every_epochs": None,
    "steps_per_epoch": 0,
    "hooks": [],
    "writers": [],
    "recovery_max_trials": -1,
    "best_checkpoint_export_subdir": "",
    "best_checkpoint_eval_metric": "",
}


def train(
    params: Any,
    run: Callable[[pipeline.ExperimentContext], None],
    *,
    trainer: Mapping[str, Any],
    task: Mapping[str, Any] | None = None,
) -> None:
    """Prepare, build and initialize a training, then call `run` in place of the training.

    Args:
        params: The config. Its hooks and writers are ignored.
        run: Replaces the `run` stage.
        trainer: Overrides of `params.trainer`.
        task: Overrides of `params.task`.

    Raises:
        errors.ConfigValueError: The experiment has phases.
        errors.OfficialLiteError: The training failed.
    """
    if params.phases:
        raise errors.ConfigValueError(
            "The experiment has `phases`. Pass the model directory of one phase, or set "
            "`phases=[]` and the fields of that phase."
        )
    changed = params.replace(trainer={**_LEFT_OUT, **trainer}, task=dict(task or {}))
    changed.validate()
    changed.lock()

    class Trial(pipeline.Run):
        def __call__(self, ctx: pipeline.ExperimentContext) -> str | None:
            run(ctx)
            return None

    stages = {"run": Trial, "finalize": _Silence}
    with tempfile.TemporaryDirectory() as model_dir:
        pipeline.RunPipeline(changed, "train", model_dir, stages=stages).run()


class _Silence(pipeline.Finalize):
    """A `finalize` stage that does nothing: there are no results to show or return."""

    def __call__(self, ctx: pipeline.ExperimentContext) -> str | None:
        return None
