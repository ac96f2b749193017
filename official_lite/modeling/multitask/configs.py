"""Configs of multi-task runs, importable without TensorFlow."""

import collections
import dataclasses

from official_lite.common import errors, suggestions
from official_lite.core import config_definitions as cfg
from official_lite.modeling import hyperparams

__all__ = [
    "AnnealingSampleConfig",
    "MultiEvalExperimentConfig",
    "MultiTaskConfig",
    "MultiTaskExperimentConfig",
    "MultiTaskTrainerConfig",
    "ProportionalSampleConfig",
    "TaskRoutine",
    "TaskSamplingConfig",
]

TRAINER_TYPES = ("interleaving", "joint")

# Trainer fields that multi-task experiments do not support, with the value that disables each.
_ONE_TASK_ONLY: dict[str, object] = {
    "name": None,
    "overfit_batches": 0,
    "virtual_replicas": 0,
    "freeze": [],
    "remat": [],
    "fit_memory": False,
}


@dataclasses.dataclass
class TaskRoutine(hyperparams.Config):
    """Config of one task within a multi-task run.

    Attributes:
        task_name: The task's name in logs and in the model's `sub_tasks`; if empty,
            `task_config.name` is used.
        task_config: The config of the task.
        eval_steps: The number of batches in an evaluation of this task; None uses
            `trainer.validation_steps`.
        task_weight: The factor of the task's loss in joint training, or its weight for the sampler
            in interleaved training. None means 1.
    """

    task_name: str = ""
    task_config: cfg.TaskConfig | None = None
    eval_steps: int | None = None
    task_weight: float | None = 1.0

    @property
    def resolved_name(self) -> str:
        """The name of the task.

        Raises:
            errors.ConfigValueError: The routine has no name.
        """
        name = self.task_name or getattr(self.task_config, "name", None)
        if not name:
            raise errors.ConfigValueError(
                "A task routine has no name. Set its `task_name`, or `task_config.name`."
            )
        return name

    def validate_fields(self) -> None:
        if self.task_config is None:
            raise errors.ConfigValueError("`task_config` is None; expected the config of a task.")
        if self.task_weight is not None and not self.task_weight >= 0:
            raise errors.ConfigValueError(
                f"`task_weight` is {self.task_weight}; expected 0 or a positive number."
            )
        if self.eval_steps is not None and self.eval_steps != -1 and self.eval_steps < 1:
            raise errors.ConfigValueError(
                f"`eval_steps` is {self.eval_steps}; expected a number of batches, -1 for the "
                "whole validation data, or None for `trainer.validation_steps`."
            )


@dataclasses.dataclass
class MultiTaskConfig(hyperparams.Config):
    """Config of tasks that are trained together.

    Attributes:
        init_checkpoint: A checkpoint for the model's `initialize` to load; nothing else reads it.
        model: The config of the model.
        task_routines: The tasks, in the order that the sampler uses.
        differential_privacy_config: Accepted from Model Garden files, with a warning.
    """

    init_checkpoint: str = ""
    model: hyperparams.Config | None = None
    task_routines: tuple[TaskRoutine, ...] = ()
    differential_privacy_config: hyperparams.Config | None = None

    def validate_fields(self) -> None:
        _require_distinct_names(self.task_routines)


@dataclasses.dataclass
class ProportionalSampleConfig(hyperparams.Config):
    """Sampling in proportion to `weight ** alpha`: 1 follows the weights, 0 ignores them."""

    alpha: float = 1.0


@dataclasses.dataclass
class AnnealingSampleConfig(hyperparams.Config):
    """Proportional sampling; `alpha` falls from 1 in the first epoch to 0.2 in the last.

    Attributes:
        steps_per_epoch: The number of steps per epoch, over all tasks together.
        total_steps: The number of steps after which `alpha` stays constant.
    """

    steps_per_epoch: int = 5
    total_steps: int = 20

    def validate_fields(self) -> None:
        for name in ("steps_per_epoch", "total_steps"):
            if getattr(self, name) < 1:
                raise errors.ConfigValueError(
                    f"`{name}` is {getattr(self, name)}; expected a positive number."
                )


@dataclasses.dataclass
class TaskSamplingConfig(hyperparams.OneOfConfig):
    """Choice of how the task of a step is drawn: `uniform`, `proportional` or `annealing`."""

    type: str = ""
    uniform: hyperparams.Config = dataclasses.field(default_factory=hyperparams.Config)
    proportional: ProportionalSampleConfig = dataclasses.field(
        default_factory=ProportionalSampleConfig
    )
    annealing: AnnealingSampleConfig = dataclasses.field(default_factory=AnnealingSampleConfig)


@dataclasses.dataclass
class MultiTaskTrainerConfig(cfg.TrainerConfig):
    """`TrainerConfig` for several tasks.

    Attributes:
        trainer_type: `interleaving` trains one task per step, `joint` trains all tasks in each
            step.
        task_sampler: How interleaved training draws the task of a step.
    """

    trainer_type: str = "interleaving"
    task_sampler: TaskSamplingConfig = dataclasses.field(
        default_factory=lambda: TaskSamplingConfig(type="proportional")
    )

    def validate_fields(self) -> None:
        super().validate_fields()
        if self.trainer_type not in TRAINER_TYPES:
            raise errors.ConfigValueError(
                f"`trainer_type` is {self.trainer_type!r}. "
                f"{suggestions.did_you_mean(self.trainer_type, TRAINER_TYPES)}"
            )
        if self.grad_accum_steps != 1:
            raise errors.ConfigValueError(
                f"`grad_accum_steps` is {self.grad_accum_steps}; gradient accumulation is not "
                "supported with several tasks. Set it to 1."
            )
        for name, default in _ONE_TASK_ONLY.items():
            if getattr(self, name):
                raise errors.ConfigValueError(
                    f"`{name}` is {getattr(self, name)!r}, but this field supports only "
                    f"experiments with one task. Set it to {default}."
                )


@dataclasses.dataclass
class MultiTaskExperimentConfig(cfg.ExperimentConfig):
    """Config of an experiment with several tasks that are trained and evaluated together."""

    # This class is accepted as an `ExperimentConfig` everywhere, but its `task` has another type.
    task: MultiTaskConfig = dataclasses.field(  # type: ignore[assignment]
        default_factory=MultiTaskConfig
    )
    trainer: MultiTaskTrainerConfig = dataclasses.field(default_factory=MultiTaskTrainerConfig)
    runtime: cfg.RuntimeConfig = dataclasses.field(default_factory=cfg.RuntimeConfig)


@dataclasses.dataclass
class MultiEvalExperimentConfig(cfg.ExperimentConfig):
    """Config of an experiment that trains one task and evaluates it on several.

    Attributes:
        eval_tasks: The tasks of each evaluation; their weights are ignored.
    """

    eval_tasks: tuple[TaskRoutine, ...] = ()

    def validate_fields(self) -> None:
        super().validate_fields()
        _require_distinct_names(self.eval_tasks)
        if self.eval_tasks and self.trainer.overfit_batches:
            raise errors.ConfigValueError(
                f"`trainer.overfit_batches` is {self.trainer.overfit_batches}, but the tasks in "
                "`eval_tasks` would be evaluated on other data than these batches. Set it to 0, or "
                "`eval_tasks` to []."
            )


def _require_distinct_names(routines: tuple[TaskRoutine, ...]) -> None:
    counts = collections.Counter(routine.resolved_name for routine in routines)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise errors.ConfigValueError(
            f"More than one task routine is named {', '.join(map(repr, twice))}. Set a unique "
            "`task_name` for each."
        )
